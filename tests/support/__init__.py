"""Clusters, peers, certificates and other parts that tests and benchmarks share."""
