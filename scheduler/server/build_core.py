"""Construct a core with its extensions, for the server and for replays."""

from __future__ import annotations

from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.extensions import default_extensions
from paceline.workers_compat.errors import ErrorFactory


def build_core(config: SchedulerConfig) -> SchedulerCore:
    """Return a core without tasks, workers and clients.

    Raises:
        ValueError: a value in ``config`` is out of its range.
    """
    events = EventLog(config.low_level_log_length)
    return SchedulerCore(config, ErrorFactory(), events, default_extensions(config))
