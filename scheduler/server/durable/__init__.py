"""Survival of the scheduler's death: the keeper, the log of input, and recovery from it."""
