"""Graphs that are being received, and what tasks are counted by: computations and spans."""
