"""Chaos: the scheduler process is killed again and again while stock workers and clients compute.

python -m benchmarks.chaos --kills 100 --interval 10
"""
