"""Commit of graphs: rows of a compiled graph become tasks, over as many turns as needed."""
