"""Instructions of the core to the driver, in ``Outbox.instructions``."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload


@dataclass(slots=True)
class WantsContinue:
    """Feed ``Continue`` after the stimuli that are waiting: there is deferred work."""


@dataclass(slots=True)
class DropWorkerConnection:
    """Close the worker's stream after its messages are written."""

    address: str


@dataclass(slots=True)
class CloseScheduler:
    """Shut down (idle timeout)."""

    reason: str


@dataclass(slots=True)
class LogLine:
    """A log line.

    Attributes:
        level: as in ``logging``.
        text: the text.
        logger: name of the logger, as in stock.
    """

    level: int
    text: str
    logger: str


@dataclass(slots=True)
class RestartSilentWorkers:
    """Restart workers without heartbeats for worker-ttl through their nannies, or remove them."""

    addresses: list[str]


@dataclass(slots=True)
class RestartStuckWorker:
    """Drain a worker with a thread that does not end, and restart it through its nanny."""

    address: str


@dataclass(slots=True)
class MatchError:
    """Find out whether the class of an exception is one of ``names``; feed ``ErrorMatched``.

    It is requested again if there is no answer.
    """

    key: Key
    run_id: int
    exception: Payload
    names: list[str]


@dataclass(slots=True)
class SetTimer:
    """Feed ``TimerDue(timer_id)`` at ``when`` (seconds since the epoch)."""

    when: float
    timer_id: int
