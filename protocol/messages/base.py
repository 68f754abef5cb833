"""Base classes of messages, and messages of every direction.

A message is a frozen struct whose tag is the ``op`` on the wire and whose field names are those on
the wire. Task keys and untyped values are annotated ``Any``, because msgspec has no type for a
tuple nested to any depth. Class variables list these fields, and the codec converts them after
decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
from paceline.protocol.limits import Name, Seconds


class Message(
    msgspec.Struct, tag_field="op", kw_only=True, frozen=True, gc=False, omit_defaults=False
):
    """Base of all messages on streams and of all requests.

    Attributes:
        KEY_FIELDS: fields that hold one key.
        KEYS_FIELDS: fields that hold a list of keys.
        KEY_MAPS: fields that hold a dict with keys as its keys.
        UNTYPED_FIELDS: fields that hold any value. Arrays in it become tuples, serialized values
            become ``Payload`` objects.
        LENIENT_FIELDS: fields that get their default if their value does not fit their type, so
            that the rest of the message is still used.
        OPEN_MAPS: field -> a TypedDict of known members. Members with a wrong type are left out.
        EXTRA_FIELD: the field that collects arguments without a field of their own, or None if such
            arguments are an error.
    """

    KEY_FIELDS: ClassVar[tuple[str, ...]] = ()
    KEYS_FIELDS: ClassVar[tuple[str, ...]] = ()
    KEY_MAPS: ClassVar[tuple[str, ...]] = ()
    UNTYPED_FIELDS: ClassVar[tuple[str, ...]] = ()
    LENIENT_FIELDS: ClassVar[tuple[str, ...]] = ()
    OPEN_MAPS: ClassVar[Mapping[str, type]] = MappingProxyType({})
    EXTRA_FIELD: ClassVar[str | None] = None

    @classmethod
    def op(cls) -> str:
        """Return the name of the operation on the wire."""
        return str(cls.__struct_config__.tag)


class Request(Message, frozen=True, kw_only=True):
    """Base of RPC requests. Stock: sent by ``core.send_recv``, handled by ``Server._handle_comm``.

    Attributes:
        reply: whether the sender waits for one reply message.
        close: whether to close the connection after the reply.
        serializers: serialization families allowed in the reply, in order of preference; None for
            the default.
    """

    reply: bool = True
    close: bool = False
    serializers: list[str] | None = None


class StartStop(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A time interval that a worker spent on a task. Stock: ``worker_state_machine.StartStop``.

    Attributes:
        action: "compute", "transfer", "disk-read", "disk-write", "deserialize", ...
        start, stop: seconds since the epoch, by the worker's clock corrected to the scheduler's.
        source: for transfers, address of the worker that the data came from.
    """

    action: Name
    start: Seconds
    stop: Seconds
    source: str | None = None


class CloseStream(Message, frozen=True, kw_only=True, tag="close-stream"):
    """End a stream: no message follows. Either side sends it. Stock: ``Server.handle_stream``."""


class UnknownMessage(msgspec.Struct, frozen=True, gc=False):
    """A message whose operation is not in the catalogue. A plugin may have a handler for it.

    Attributes:
        op: name of the operation; "" if the message has none.
        raw: the whole message, ``op`` included, with arrays as tuples and serialized values as
            ``Payload`` objects.
    """

    op: str
    raw: dict[str, Any]


class InvalidMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of a known operation with a missing field or a field of a wrong type.

    Attributes:
        op: name of the operation.
        path: path of the invalid field, such as ``$.nbytes``; "$" if a field is missing.
        error: text that describes the error.
        raw: the whole message, as in ``UnknownMessage``.
        cls: class of messages with this operation.
    """

    op: str
    path: str
    error: str
    raw: dict[str, Any]
    cls: type[Message] | None = None


class CloseRequest(Request, frozen=True, kw_only=True, tag="close"):
    """Close a connection in its RPC phase.

    Stock: handled by ``Server._handle_comm``, sent by ``core.rpc.close_rpc``.

    Returns: "OK".
    """
