"""Stimuli of the driver: ticks, timers, deferred work, and answers to instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Continue:
    """Continue work that was deferred to later turns."""


@dataclass(slots=True)
class Tick:
    """Check the timeouts of the core; ``active`` is that of ``Driver.is_active``."""

    active: bool = False


@dataclass(slots=True)
class IdleCheck:
    """Check for idleness now; see ``Tick``."""

    active: bool = False


@dataclass(slots=True)
class TimerDue:
    """The timer number ``timer_id``, set by ``turn.call_at``, is due; unknown ones are ignored."""

    timer_id: int


@dataclass(slots=True)
class SetAside:
    """A stimulus that ended several processes of the scheduler, and is not handled.

    Attributes:
        message: its message.
    """

    message: Any


@dataclass(slots=True)
class ErrorMatched:
    """The result of comparing the exception of a run with those after which its task is retried.

    Attributes:
        key, run_id: of the run.
        matches: its class is one of ``TaskPolicy.retry_on``, or a subclass.
        problem: why the exception could not be compared; empty if it could.
    """

    key: Any
    run_id: int
    matches: bool
    problem: str = ""
