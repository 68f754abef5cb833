"""What all messages share.

A message is a frozen struct whose tag is the ``op`` of the wire. Field names are those of the wire. Keys of tasks
and untyped values are annotated ``Any``, because no decoder can be told "a tuple at any depth"; the class variables
here say which fields they are, and the codec makes them right after decoding.

Must not know: bytes, frames, who sends what to whom.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec


class Message(
    msgspec.Struct, tag_field="op", kw_only=True, frozen=True, gc=False, omit_defaults=False
):
    """Base of all messages: of streams, and of requests.

    Attributes:
        KEY_FIELDS: fields that hold one key.
        KEYS_FIELDS: fields that hold a list of keys.
        KEY_MAPS: fields that hold a dict by keys.
        UNTYPED_FIELDS: fields that hold any value: arrays in it are tuples, closed values ``Payload`` objects.
        EXTRA_FIELD: the field that takes arguments which the class does not name, or None where such are an error.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ()
    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ()
    KEY_MAPS: ClassVar[tuple[str, ...]] = ()
    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ()
    EXTRA_FIELD: ClassVar[str | None] = None

    @classmethod
    def op(cls) -> str:
        """The name of the message on the wire."""
        return str(cls.__struct_config__.tag)


class Request(Message, frozen=True, kw_only=True):
    """Base of RPC requests. Stock: ``core.send_recv`` writes these fields, ``Server._handle_comm`` takes them.

    Attributes:
        reply: the sender waits for one reply message.
        close: the connection is closed after the reply.
        serializers: families of serializers the reply may use, best first; None for the default.
    """

    reply: bool = True
    close: bool = False
    serializers: list[str] | None = None


class StartStop(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A stretch of time that a worker spent on a task. Stock: ``worker_state_machine.StartStop``.

    Attributes:
        action: "compute", "transfer", "disk-read", "disk-write", "deserialize", ...
        start, stop: seconds since the epoch, by the worker's clock corrected to the scheduler's.
        source: address of the worker that data came from, for transfers.
    """

    action: str
    start: float
    stop: float
    source: str | None = None


class CloseStream(Message, frozen=True, kw_only=True, tag="close-stream"):
    """Ends a stream, in any direction: nothing follows. Stock: ``Server.handle_stream``."""


class UnknownMessage(msgspec.Struct, frozen=True, gc=False):
    """A message whose op the catalogue does not have; a plugin may have a handler for it.

    Attributes:
        op: its name; "" when it has none.
        raw: all of it, ``op`` included: arrays as tuples, closed values as ``Payload`` objects.
    """

    op: str
    raw: dict[str, Any]


class OddMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of a known op that is not as it should be.

    Attributes:
        op: its name.
        path: the field that is wrong, like ``$.nbytes``; "$" when a field is missing.
        error: what is wrong with it, in words.
        raw: all of it, as in ``UnknownMessage``.
        cls: the class it should have been.
    """

    op: str
    path: str
    error: str
    raw: dict[str, Any]
    cls: type[Message] | None = None


class CloseRequest(Request, frozen=True, kw_only=True, tag="close"):
    """Closes a connection in its RPC phase. Stock: ``Server._handle_comm``, ``core.rpc.close_rpc``. Returns: "OK"."""
