"""Graph compilation: from a pickled dask expression to rows of task specifications."""
