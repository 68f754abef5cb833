"""The scheduler process: sockets, clock, child processes, HTTP and the command line.

- ``comm``: sockets and frames.
- ``peers``: connections, streams, and the pool of outgoing connections.
- ``driver``: the core's clock and outbox.
- ``server``: combines them; ``scheduler``: the ``Scheduler`` class.
- ``requests``: handlers of requests.
- ``compilers``: graph compilers in child processes or threads.
- ``journal``: recording and replay of stimuli.
- ``durable``: the keeper, the log of input, and recovery from it.
- ``runtime``: garbage collection, metrics, child processes. ``http``, ``cli`` and ``wiretap``: the
  interfaces.
"""
