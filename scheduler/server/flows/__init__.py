"""Conversations of several awaits: gather, scatter, broadcast, restart, retire, plugins, ...

Each is a free coroutine ``name(server, ...)``. ``server`` is the port of ``rpc/base.py`` with what
``ports.py`` adds. A flow reads the core's state between its awaits and changes it by stimuli alone; what it
learnt before an await is checked again after it.

Must not know: sockets, frames, how requests are decoded.
"""
