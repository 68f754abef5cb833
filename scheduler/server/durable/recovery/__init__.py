"""Recovery: a scheduler process continues the one before it."""
