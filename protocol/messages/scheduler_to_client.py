"""Messages that the scheduler sends on a client's stream.

Stock sends them in ``scheduler.py``, batched every 2 ms. ``Client._handle_report`` passes their
fields as keyword arguments, so a field that stock does not have is an error in the client.
"""

from typing import Any

from paceline.protocol.payload import Payload

from .base import Key, Message


class StreamStart(Message, frozen=True, kw_only=True, tag="stream-start", omit_defaults=True):
    """Accept ``register-client`` and open the stream. It must be the only message in its batch.

    Attributes:
        warning: text on version differences; the client issues a warning.
        error: text on incompatible versions; the client raises an error.
    """

    warning: str | None = None
    error: str | None = None


class KeyInMemory(Message, frozen=True, kw_only=True, tag="key-in-memory", omit_defaults=True):
    """Report that a result is available.

    Attributes:
        type: pickled class of the result, as sent by the worker.
        workers: addresses of the workers that hold it, for data that was scattered.
    """

    key: Key
    type: Any = None
    workers: list[str] | None = None


class LostData(Message, frozen=True, kw_only=True, tag="lost-data"):
    """Report that a result was lost. It is recomputed if possible."""

    key: Key


class TaskErredReport(Message, frozen=True, kw_only=True, tag="task-erred", omit_defaults=True):
    """Report that a task, or one of its dependencies, failed.

    Attributes:
        exception: the serialized exception; or a pickle as bytes if the stock scheduler created the
            exception itself (``KilledWorker``, ``NoValidWorkerError``).
    """

    key: Key
    exception: Any = None
    traceback: Payload | None = None


class TaskRetried(Message, frozen=True, kw_only=True, tag="task-retried"):
    """Report that a failed task runs again."""

    key: Key


class CancelledKeys(Message, frozen=True, kw_only=True, tag="cancelled-keys", omit_defaults=True):
    """Report that futures are cancelled.

    Attributes:
        reason: short reason: "lost dependencies", "already forgotten", or the one given to
            ``cancel-keys``.
        msg: message for users.
    """

    keys: list[Key]
    reason: str | None = None
    msg: str | None = None


class Restart(Message, frozen=True, kw_only=True, tag="restart"):
    """Report that the scheduler has forgotten all tasks. The client cancels all its futures."""


class Event(Message, frozen=True, kw_only=True, tag="event"):
    """Deliver an event of a topic that the client has subscribed to.

    Attributes:
        event: (time in seconds since the epoch, logged value).
    """

    topic: Key
    event: Any


class Error(Message, frozen=True, kw_only=True, tag="error"):
    """Report an error in the scheduler, which the client logs.

    Stock clients handle it; stock never sends it.
    """

    exception: Payload | None = None


class AdjustHeartbeatInterval(Message, frozen=True, kw_only=True, tag="adjust-heartbeat-interval"):
    """Set the interval at which the client sends ``heartbeat-client``."""

    interval: float


class StreamClosed(Message, frozen=True, kw_only=True, tag="stream-closed"):
    """Announce that the scheduler closes the stream. It is the last message."""
