"""Measurements of a scheduler process from outside, side by side with the stock scheduler.

The benchmarks do not import the scheduler: they start it as a command and read its costs from the
kernel.
"""
