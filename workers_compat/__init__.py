"""Everything that imports dask and distributed.

The graph compiler, stock's ``Scheduler`` for plugins, the dashboard, configuration and security.
Other packages receive plain values from here: rows, payloads, messages.
"""
