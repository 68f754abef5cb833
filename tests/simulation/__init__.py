"""Random workloads, timing and faults from a seed."""
