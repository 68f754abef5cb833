"""The process: sockets, clock, child processes, HTTP, command line. Carries out what the core decided.

From below: ``transport`` (sockets and frames) | the seam | ``peers`` and ``streams`` (connections), ``driver`` (the core's clock
and outbox), ``server`` (all of it together), ``scheduler`` (the ``Scheduler`` class), ``cli``. ``children`` compile graphs, ``pool``
holds our own connections to workers, ``rpc/`` serves requests, ``flows/`` are conversations of several awaits, ``journal`` and
``replay`` write and repeat what happened.

Must not know: how the core decides.
"""
