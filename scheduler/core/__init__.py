"""The state of the cluster, and what each stimulus does to it: pure, synchronous, deterministic.

Must not know: sockets, clocks, threads, pickles, dask.
"""
