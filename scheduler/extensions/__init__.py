"""Extensions of the core: queues, variables, locks, events, published datasets, memory manager.

An extension handles messages and timers and sends replies through the turn. Like the core, it is
synchronous, deterministic and has no clock. Their base class is in ``scheduler.core.extension``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .event_flags import EventFlags
from .memory_manager import MemoryManager
from .multi_locks import MultiLocks
from .publish import PublishedDatasets
from .queues import Queues
from .semaphores import Semaphores
from .topics import Topics
from .variables import Variables

if TYPE_CHECKING:
    from paceline.scheduler.core.config import SchedulerConfig
    from paceline.scheduler.core.extension import Extension


def default_extensions(config: SchedulerConfig) -> list[Extension]:
    """Return new extensions for one scheduler."""
    return [
        Topics(config.events_cleanup_delay_seconds),
        PublishedDatasets(),
        Queues(),
        Variables(),
        Semaphores(config.locks_lease_validation_interval_seconds),
        EventFlags(),
        MultiLocks(),
        MemoryManager(config.amm_interval_seconds, config.amm_measure),
    ]
