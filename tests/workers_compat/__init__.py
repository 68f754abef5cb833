"""The part that imports dask and distributed."""
