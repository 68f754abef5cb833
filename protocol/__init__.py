"""The wire protocol of Dask: framing, typed messages, and the phases of a connection.

The package does no I/O, reads no clock and unpickles nothing. Start with ``connection.Connection``,
one end of a connection, and ``framing.FrameReader``, which feeds it from a socket. ``messages`` has
a class for each op; ``catalogue`` lists them.
"""
