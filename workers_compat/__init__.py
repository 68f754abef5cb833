"""The only room that knows the stock dask and distributed packages.

Graphs that clients send, replies whose shape stock peers read, plugins, versions, configuration. What it
gives to the other rooms is plain: rows, payloads, messages.
"""
