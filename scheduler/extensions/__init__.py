"""Coordination between clients and tasks: small machines of the core's shape.

Each machine takes messages and timers in and gives replies out through the turn: synchronous, deterministic,
without a clock. ``machine.py`` says what they have in common.

Must not know: sockets, clocks, threads, pickles, dask; who asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.scheduler.core.config import SchedulerConfig

    from .machine import Machine


def default_extensions(config: SchedulerConfig) -> list[Machine]:
    """The machines of a scheduler, new ones: two schedulers in one process share nothing.

    They are imported here and not above, so that the core's state may import ``EventLog`` while the
    machines import the core.
    """
    from .event_flags import Events
    from .memory_manager import MemoryManager
    from .multi_locks import MultiLocks
    from .publish import PublishedDatasets
    from .queues import Queues
    from .semaphores import Semaphores
    from .topics import Topics
    from .variables import Variables

    return [
        Topics(config.events_cleanup_delay_seconds),
        PublishedDatasets(),
        Queues(),
        Variables(),
        Semaphores(config.locks_lease_validation_interval_seconds),
        Events(),
        MultiLocks(),
        MemoryManager(config.amm_interval_seconds, config.amm_measure),
    ]
