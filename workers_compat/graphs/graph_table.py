"""Messages between the scheduler and its graph compilers, and their encoding.

The scheduler sends ``ChildSetup`` first and receives ``CompilerReady``. Each ``CompileRequest`` is
answered, in order, by ``GraphChunk`` messages, one ``GraphCommit`` or ``GraphFailed`` (neither
after ``Cancel``) and ``GraphDone``. All but the last can be fed to the core unchanged.

They are framed as Dask's messages are (``protocol.framing``). Frame 0 is the kind of the message,
one byte, and a msgpack body. The other frames are buffers, which are neither copied nor parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from paceline.protocol.compression import Buffer
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import Frames, pack_frames
from paceline.protocol.payload import Payload
from paceline.scheduler.core.stimuli import GraphChunk, GraphCommit, GraphFailed

# Messages


@dataclass(slots=True)
class CompileRequest:
    """The part of ``update-graph`` that compiling needs.

    Attributes:
        graph_id: unique within a scheduler; every reply contains it.
        expr_ser: the serialized expression.
        internal_priority: key -> place, if the client has ordered the graph itself.
        submitting_task: key of the task that sent the graph, or None.
        user_priority: a number, or a number per key.
        actors: True, the keys of tasks that create actors, or None.
        fifo_timeout: as sent by the client: seconds, or text such as "100 ms".
        code, annotations, span_metadata: of the whole submission, serialized or plain.
        received_at: seconds since the epoch.
        validate: check every key of the graph.
    """

    graph_id: int
    client: str
    expr_ser: Payload
    keys: list[Any]
    internal_priority: dict[Any, int] | None = None
    submitting_task: Any = None
    user_priority: Any = 0
    actors: Any = None
    fifo_timeout: Any = 0
    code: Any = None
    annotations: Any = None
    span_metadata: Any = None
    received_at: float = 0.0
    validate: bool = False


@dataclass(slots=True)
class ChildSetup:
    """The first message to a compiler process: what it shares with the scheduler.

    Attributes:
        config: dask's configuration (plain values).
        sys_path: the ``sys.path`` of the scheduler.
        files: uploaded files: name -> content, written to a folder at the front of the path.
        chunk_size: tasks per chunk.
    """

    config: dict[str, Any] = field(default_factory=dict)
    sys_path: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    chunk_size: int = 1000


@dataclass(slots=True)
class UploadedFile:
    """A module that a client uploaded. It replaces an older version."""

    name: str
    data: bytes


@dataclass(slots=True)
class Cancel:
    """Cancels a graph. Its compilation ends at the next chunk."""

    graph_id: int


@dataclass(slots=True)
class CompilerReady:
    """The process has imported its dependencies, which took ``seconds``."""

    pid: int
    seconds: float


@dataclass(slots=True)
class GraphDone:
    """The last message about a graph, which is committed, failed or cancelled."""

    graph_id: int


Request = CompileRequest | ChildSetup | UploadedFile | Cancel
Reply = CompilerReady | GraphChunk | GraphCommit | GraphFailed | GraphDone


# Encoding

_PAYLOAD_EXT = 1
_plain_encoder = msgspec.msgpack.Encoder()


def _encode_hook(value: Any) -> Any:
    """Encode payloads as an extension type, and sets as arrays."""
    if isinstance(value, Payload):
        return msgspec.msgpack.Ext(
            _PAYLOAD_EXT, _plain_encoder.encode((value.kind, value.header, value.frames))
        )
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    raise TypeError(f"{type(value).__name__} cannot be sent to the graph compiler")


def _ext_hook(code: int, data: memoryview) -> Any:
    """Decode the extension type of payloads."""
    if code != _PAYLOAD_EXT:
        raise RemoteProtocolError(f"unknown extension type {code}")
    kind, header, frames = msgspec.msgpack.decode(data)
    return Payload(kind, header, tuple(frames))


def _decode_hook(wanted: type, value: Any) -> Any:
    """Accept payloads in fields typed as Payload."""
    if wanted is Payload and isinstance(value, Payload):
        return value
    raise RemoteProtocolError(f"expected {wanted.__name__}, got {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)


def _pack(kind: int, body: Any, buffers: Sequence[Buffer] = ()) -> Frames:
    """Return the pieces of one message, to be written in order."""
    return pack_frames([bytes((kind,)) + _encoder.encode(body), *buffers])


def _unpack(frames: Frames, decoders: Sequence[msgspec.msgpack.Decoder[Any]]) -> tuple[int, Any]:
    """Return the kind and the body of a message."""
    head = memoryview(frames[0] if frames else b"")
    if not head or head[0] >= len(decoders):
        raise RemoteProtocolError(f"unknown kind of message: {bytes(head[:1])!r}")
    try:
        return head[0], decoders[head[0]].decode(head[1:])
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(str(error)) from error


def _decoder(wanted: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(wanted, ext_hook=_ext_hook, dec_hook=_decode_hook)


_REQUESTS: tuple[type, ...] = (CompileRequest, ChildSetup, UploadedFile, Cancel)
_REPLIES: tuple[type, ...] = (CompilerReady, GraphChunk, GraphCommit, GraphFailed, GraphDone)
_request_decoders = tuple(_decoder(wanted) for wanted in (list[Any], *_REQUESTS[1:]))
_reply_decoders = tuple(_decoder(wanted) for wanted in _REPLIES)


def encode_request(request: Request) -> Frames:
    """Return the pieces of a request, to be written in order. Large frames are not copied."""
    kind = _REQUESTS.index(type(request))
    if not isinstance(request, CompileRequest):
        return _pack(kind, request)
    expr = request.expr_ser
    priority = request.internal_priority
    body = [
        expr.kind,
        expr.header,
        None if priority is None else [list(priority), list(priority.values())],
        *(getattr(request, name) for name in _PLAIN_FIELDS),
    ]
    return _pack(kind, body, expr.frames)


_PLAIN_FIELDS = tuple(
    name
    for name in CompileRequest.__dataclass_fields__
    if name not in ("expr_ser", "internal_priority")
)
_KEY_FIELDS = ("keys", "submitting_task", "actors")


def decode_request(frames: Frames) -> Request:
    """Decode a request. Raises RemoteProtocolError."""
    kind, value = _unpack(frames, _request_decoders)
    if kind:
        return value  # type: ignore[no-any-return]
    expr_kind, header, priority, *plain = value
    fields = dict(zip(_PLAIN_FIELDS, plain, strict=True))
    for name in _KEY_FIELDS:
        fields[name] = _with_tuples(fields[name], name != "submitting_task")
    if priority is not None:
        priority = dict(zip(as_keys(priority[0]), priority[1], strict=True))
    return CompileRequest(
        expr_ser=Payload(expr_kind, header, tuple(frames[1:])), internal_priority=priority, **fields
    )


def _with_tuples(value: Any, plural: bool) -> Any:
    """Return keys with tuples in place of lists, and other values unchanged."""
    if plural and isinstance(value, list):
        return as_keys(value)
    return as_key(value)


def encode_reply(reply: Reply) -> Frames:
    """Return the pieces of a reply, to be written in order. Buffers are not copied."""
    kind = _REPLIES.index(type(reply))
    if isinstance(reply, GraphChunk) and reply.buffers:
        return _pack(kind, replace(reply, buffers=[]), reply.buffers)
    return _pack(kind, reply)


def decode_reply(frames: Frames) -> Reply:
    """Decode a reply, with hashable keys. Raises RemoteProtocolError."""
    kind, reply = _unpack(frames, _reply_decoders)
    if kind == 1:
        reply.keys = as_keys(reply.keys)
        if reply.new_externals:
            reply.new_externals = as_keys(reply.new_externals)
        reply.new_groups = [
            (as_key(name) if type(name) is list else name, prefix)
            for name, prefix in reply.new_groups
        ]
        for annotations in reply.new_annotations:
            if annotations.workers:
                annotations.workers = as_keys(annotations.workers)
        reply.buffers = frames[1:]
    elif kind == 2:
        reply.keys = as_keys(reply.keys)
        reply.submitting_task = as_key(reply.submitting_task)
        if isinstance(reply.actors, list):
            reply.actors = as_keys(reply.actors)
    elif kind == 3:
        reply.keys = as_keys(reply.keys)
    return reply  # type: ignore[no-any-return]


def as_keys(values: list[Any]) -> list[Any]:
    """Return decoded keys with tuples in place of lists. Tuples share equal first elements."""
    shared: dict[str, str] = {}
    for row, value in enumerate(values):
        if type(value) is list:
            if value and type(value[0]) is str:
                value[0] = shared.setdefault(value[0], value[0])
            key = tuple(value)
            try:
                hash(key)
            except TypeError:  # it contains lists
                key = as_key(value)
            values[row] = key
    return values


def as_key(value: Any) -> Any:
    """Return one decoded key with tuples in place of lists, at any depth."""
    if type(value) is list:
        return tuple([as_key(element) for element in value])
    return value
