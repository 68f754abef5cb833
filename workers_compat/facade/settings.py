"""Settings of the scheduler under the names of stock's attributes.

Reading returns the current configuration. Writing is a command of the core, so that a journal
contains it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.scheduler.core import stimuli
from paceline.scheduler.core.handlers.commands import check_setting
from paceline.workers_compat.config.config import seconds

from .base import FacadeBase


class Setting:
    """A setting.

    Args:
        field: the field of ``SchedulerConfig``.
        parse: converts what a program assigns to a value of the field.
        show: converts the field's value to what stock shows.
    """

    def __init__(
        self,
        field: str,
        parse: Callable[[Any], Any] = lambda value: value,
        show: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._field = field
        self._parse = parse
        self._show = show

    def __get__(self, facade: Any, owner: type | None = None) -> Any:
        if facade is None:
            return self
        return self._show(getattr(facade.state.config, self._field))

    def __set__(self, facade: Any, value: Any) -> None:
        facade.configure(self._field, self._parse(value))


class FacadeSettings(FacadeBase):
    """The part of the facade with stock's settings."""

    WORKER_SATURATION = Setting("worker_saturation", float)
    UNKNOWN_TASK_DURATION = Setting("unknown_task_duration_seconds", seconds)
    MEMORY_RECENT_TO_OLD_TIME = Setting("memory_recent_to_old_seconds", seconds)
    MEMORY_REBALANCE_MEASURE = Setting("rebalance_measure")
    MEMORY_REBALANCE_SENDER_MIN = Setting("rebalance_sender_min", float)
    MEMORY_REBALANCE_RECIPIENT_MAX = Setting("rebalance_recipient_max", float)
    MEMORY_REBALANCE_HALF_GAP = Setting("rebalance_gap", lambda half: 2 * half, lambda gap: gap / 2)
    allowed_failures = Setting("allowed_failures", int)
    idle_timeout = Setting("idle_timeout_seconds", seconds)
    no_workers_timeout = Setting("no_workers_timeout_seconds", seconds)
    rootish_tg_threshold = Setting("rootish_taskgroup", int)
    rootish_tg_dependencies_threshold = Setting("rootish_taskgroup_dependencies", int)
    validate = Setting("validate", bool)
    worker_ttl = Setting("worker_ttl_seconds", seconds)

    def configure(self, field: str, value: Any) -> None:
        """Change a setting, now or right after the current turn.

        Raises:
            AttributeError: The setting is fixed when the scheduler starts.
            ValueError: The value is out of range.
        """
        check_setting(self.state, field, value)
        self.send_stimulus(stimuli.Configure(field, value))


#: Attributes of the ``Scheduler`` object that are settings of the facade.
SETTINGS = frozenset(
    name for name, value in vars(FacadeSettings).items() if isinstance(value, Setting)
)
