"""Pytest plugin that lets distributed's own tests run on paceline's class.

Loaded by ``run.py``, in processes in which ``paceline takeover`` has replaced ``distributed.Scheduler``. The fixtures of
distributed keep track of schedulers in ``Scheduler._instances``, which is private and absent here.
"""

from __future__ import annotations

import weakref

import distributed

if not hasattr(distributed.Scheduler, "_instances"):
    distributed.Scheduler._instances = weakref.WeakSet()
