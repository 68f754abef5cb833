"""The scheduler: ``core`` decides, ``extensions`` stand beside it, ``server`` carries out.

Importing this loads none of them, so that ``core`` imports where neither dask nor tornado is installed.

Must not know: anything; names of its rooms are imported from them.
"""
