"""Survival of the scheduler's death: which process runs what.

- The keeper runs ``keeper/``. It holds a duplicate of each socket. Input cannot end it, because it
  reads none.
- The scheduler process runs ``durability.py``, which brings the rest together. ``log/`` writes what
  it reads and does.
- A standby is a copy of it that sleeps in ``standby/``. So is the first process of another release
  in an upgrade, which reads a snapshot instead of being forked.
- ``channel/`` is for all of them: messages and shared memory between the keeper and the others.
- A program with ``LocalCluster(durable=DIR)`` runs ``scheduler_process.py``, which starts a keeper.

When the scheduler process dies:

1. The keeper notices its end, and records which input it was handling (``keeper/keeper.py``).
2. It wakes a standby and sends it the sockets (``keeper/standbys.py``). Without a standby, it forks
   a scheduler process, which reads the log from its start.
3. The standby forks the next standby (``standby/standby.py``) and becomes the scheduler process.
4. It repeats the log since the standby was forked (``recovery/replay.py``), and adds the data that
   was read but not logged (``recovery/tcp_counters.py``).
5. It continues each connection (``recovery/adoption.py``).
6. It compares the state of each worker with its own (``recovery/reconcile.py``).
"""
