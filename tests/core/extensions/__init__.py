"""Locks, queues, variables and other coordination primitives."""
