"""Measurements of a scheduler process from outside, side by side with the stock scheduler.

They must not import the scheduler: it is a command line here, and what it costs is read from the kernel.
"""
