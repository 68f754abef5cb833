"""Commit of graphs: turn the rows of a compiled graph into scheduled tasks, over as many turns as needed."""
