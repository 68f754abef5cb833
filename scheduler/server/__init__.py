"""The scheduler process: sockets, clock, child processes, HTTP and the command line.

The command (``cli.run_scheduler``) or a program constructs a ``Scheduler`` (``scheduler``). When it
starts, it constructs a core (``build_core``), a ``Server`` (``server``) with graph compilers, and
the HTTP server, and listens. The server constructs a ``Driver``, which feeds the core, and a
``Peer`` for each connection.

- ``comm``: sockets and frames.
- ``peers``: connections, streams, and the pool of outgoing connections.
- ``driver``: the core's clock and outbox; ``driver_ports``: what it needs of core and streams.
- ``server``: combines them; ``server_api``: its interface for connections and requests.
- ``requests``: handlers of requests.
- ``compilers``: graph compilers in child processes or threads.
- ``journal``: recording and replay of stimuli.
- ``durable``: the keeper, the log of input, and recovery from it.
- ``runtime``: garbage collection, metrics, child processes. ``http``, ``cli`` and ``wiretap``: the
  interfaces.
"""
