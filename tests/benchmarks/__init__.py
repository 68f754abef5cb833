"""Short runs of the benchmarks."""
