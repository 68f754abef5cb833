"""Read-only views of the state: queries, explanations, stories, dumps and invariants."""
