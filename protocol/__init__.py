"""The wire protocol of Dask: bytes to typed messages and back, and what a connection may say when.

Nothing here does I/O, reads a clock, or unpickles. Where to begin: ``connection.Connection`` is one end of a connection,
``framing.FrameReader`` feeds it from a socket, ``messages`` has a class for every op, ``catalogue`` lists them.

Must not know: dask, the scheduler, sockets.
"""
