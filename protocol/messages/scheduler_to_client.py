"""What the scheduler sends on a client's stream.

Stock writes these in ``scheduler.py``, batched every 2 ms; clients read them in ``Client._handle_report``, which
passes the fields as keyword arguments, so a field more than stock's is an error there.

Must not know: when they are sent.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..payload import Payload
from .base import Message


class StreamStart(Message, frozen=True, kw_only=True, tag="stream-start", omit_defaults=True):
    """The answer to ``register-client``: a stream begins. It must come alone in its list.

    Attributes:
        warning: differing versions, in words; the client warns.
        error: versions that cannot work together, in words; the client raises.
    """

    warning: str | None = None
    error: str | None = None


class KeyInMemory(Message, frozen=True, kw_only=True, tag="key-in-memory", omit_defaults=True):
    """A result is there.

    Attributes:
        key: which.
        type: its pickled class, as the worker gave it.
        workers: who holds it, where data was put there.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)
    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("type",)

    key: Any
    type: Any = None
    workers: list[str] | None = None


class LostData(Message, frozen=True, kw_only=True, tag="lost-data"):
    """A result is gone; it is computed again if it can be.

    Attributes:
        key: which.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)

    key: Any


class TaskErredReport(Message, frozen=True, kw_only=True, tag="task-erred", omit_defaults=True):
    """A task, or one that it depends on, has erred.

    Attributes:
        key: which.
        exception: closed; or a pickle as bytes, where the stock scheduler made it itself (``KilledWorker``, ``NoValidWorkerError``).
        traceback: closed.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)
    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("exception",)

    key: Any
    exception: Any = None
    traceback: Payload | None = None


class TaskRetried(Message, frozen=True, kw_only=True, tag="task-retried"):
    """An erred task is run again.

    Attributes:
        key: which.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("key",)

    key: Any


class CancelledKeys(Message, frozen=True, kw_only=True, tag="cancelled-keys", omit_defaults=True):
    """These keys will not come.

    Attributes:
        keys: which.
        reason: a word: "lost dependencies", "already forgotten", or what the canceller said.
        msg: a sentence for people.
    """

    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ("keys",)

    keys: list[Any]
    reason: str | None = None
    msg: str | None = None


class Restart(Message, frozen=True, kw_only=True, tag="restart"):
    """The scheduler has forgotten everything: all futures are cancelled."""


class Event(Message, frozen=True, kw_only=True, tag="event"):
    """An event of a topic that the client has subscribed to.

    Attributes:
        topic: which.
        event: (time in seconds since the epoch, what was logged).
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ("topic",)
    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ("event",)

    topic: Any
    event: Any


class Error(Message, frozen=True, kw_only=True, tag="error"):
    """Something failed in the scheduler; the client logs it. Stock clients read it; stock never sends it.

    Attributes:
        exception: closed.
    """

    exception: Payload | None = None


class AdjustHeartbeatInterval(Message, frozen=True, kw_only=True, tag="adjust-heartbeat-interval"):
    """How often the client should send ``heartbeat-client``.

    Attributes:
        interval: seconds.
    """

    interval: float


class StreamClosed(Message, frozen=True, kw_only=True, tag="stream-closed"):
    """The scheduler closes the stream; the last message."""
