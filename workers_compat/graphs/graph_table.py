"""Messages between the scheduler and its graph compilers, and their encoding.

The scheduler sends ``ChildSetup`` first and receives ``CompilerReady``. Each ``CompileRequest`` is
answered, in order, by ``GraphChunk`` messages, one ``GraphCommit`` or ``GraphFailed`` (neither
after ``Cancel``) and ``GraphDone``. All but the last can be fed to the core unchanged.

Each message is ``[u64 length of the rest][u8 kind][u8 0][u16 0][u32 number of buffers][u64 length
of the body][u64 length of each buffer ...][body][buffers ...]``, little-endian, with a msgpack
body. Large buffers are neither copied nor parsed: decoded values hold views of the message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from paceline.protocol.payload import Payload
from paceline.scheduler.core.stimuli import GraphChunk, GraphCommit, GraphFailed

from .shared_buffers import flat_view

#: A longer message means that the pipe does not carry messages of this format.
MESSAGE_MAX_NBYTES = 1 << 40

#: Buffers up to this size are copied out of their message, which they would keep alive otherwise.
COPY_MAX_NBYTES = 65_536

BytesLike = bytes | bytearray | memoryview


# Messages


@dataclass(slots=True)
class CompileRequest:
    """The part of ``update-graph`` that compiling needs.

    Attributes:
        graph_id: unique within a scheduler; every reply contains it.
        client: the client that sent the graph.
        expr_ser: the serialized expression.
        keys: the keys that the client wants.
        internal_priority: key -> place, if the client has ordered the graph itself.
        submitting_task: key of the task that sent the graph, or None.
        user_priority: a number, or a number per key.
        actors: True, the keys of tasks that create actors, or None.
        fifo_timeout: as sent by the client: seconds, or text such as "100 ms".
        code: the client's source lines, serialized or plain.
        annotations: annotations of the whole submission, serialized or plain.
        span_metadata: serialized or plain.
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
        warm: modules to import before ``CompilerReady`` if they are installed.
    """

    config: dict[str, Any] = field(default_factory=dict)
    sys_path: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    chunk_size: int = 1000
    warm: list[str] = field(default_factory=list)


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
    """The process has imported its dependencies.

    Attributes:
        pid: the process id.
        seconds: duration of the start.
    """

    pid: int
    seconds: float


@dataclass(slots=True)
class GraphDone:
    """The last message about a graph, which is committed, failed or cancelled."""

    graph_id: int


Request = CompileRequest | ChildSetup | UploadedFile | Cancel
Reply = CompilerReady | GraphChunk | GraphCommit | GraphFailed | GraphDone


# Framing

_HEAD = struct.Struct("<QB3xIQ")
_LENGTH = struct.Struct("<Q")


class WireError(ValueError):
    """The bytes on the pipe are not a message of this format."""


def _pack(kind: int, body: bytes, buffers: Sequence[BytesLike] = ()) -> list[BytesLike]:
    """Return the pieces of one message, to be written in order."""
    views = [flat_view(buffer) for buffer in buffers]
    sizes = [view.nbytes for view in views]
    rest = _HEAD.size - _LENGTH.size + 8 * len(sizes) + len(body) + sum(sizes)
    head = _HEAD.pack(rest, kind, len(sizes), len(body))
    return [head + struct.pack(f"<{len(sizes)}Q", *sizes) + body, *views]


def _unpack(message: BytesLike) -> tuple[int, memoryview, list[memoryview]]:
    """Return kind, body and buffers of one whole message, which includes its length prefix."""
    view = memoryview(message)
    try:
        rest, kind, n_buffers, body_nbytes = _HEAD.unpack_from(view)
        start = _HEAD.size + 8 * n_buffers
        sizes = struct.unpack_from(f"<{n_buffers}Q", view, _HEAD.size)
    except struct.error as error:
        raise WireError(f"message of {view.nbytes} bytes is shorter than its header") from error
    if (
        start + body_nbytes + sum(sizes) != rest + _LENGTH.size
        or view.nbytes != rest + _LENGTH.size
    ):
        raise WireError(f"message has {view.nbytes} bytes, not {rest + _LENGTH.size}")
    body = view[start : start + body_nbytes]
    place = start + body_nbytes
    buffers = []
    for size in sizes:
        buffers.append(view[place : place + size])
        place += size
    return kind, body, buffers


class MessageSplitter:
    """Cuts a stream of bytes into messages. Each large message gets a buffer of its own size."""

    def __init__(self, max_nbytes: int = MESSAGE_MAX_NBYTES) -> None:
        self._small = bytearray()
        self._large: bytearray | None = None
        self._filled = 0
        self._max_nbytes = max_nbytes

    def feed(self, data: BytesLike) -> list[bytes | bytearray]:
        """Add bytes and return the messages that are complete. Raises WireError."""
        messages: list[bytes | bytearray] = []
        view = memoryview(data)
        while view.nbytes:
            if self._large is not None:
                taken = min(view.nbytes, len(self._large) - self._filled)
                self._large[self._filled : self._filled + taken] = view[:taken]
                self._filled += taken
                view = view[taken:]
                if self._filled == len(self._large):
                    messages.append(self._large)
                    self._large = None
                continue
            missing = _LENGTH.size - len(self._small)
            self._small += view[:missing]
            view = view[missing:]
            if len(self._small) == _LENGTH.size:
                view = self._begin(view, messages)
        return messages

    def _begin(self, view: memoryview, messages: list[bytes | bytearray]) -> memoryview:
        """Cut out the message whose length prefix is complete, or allocate its buffer."""
        total = _LENGTH.unpack(self._small)[0] + _LENGTH.size
        if total > self._max_nbytes:
            raise WireError(
                f"message of {total} bytes exceeds the limit of {self._max_nbytes} bytes"
            )
        if _LENGTH.size + view.nbytes >= total:
            body = view[: total - _LENGTH.size]
            messages.append(bytes(self._small) + body)
            view = view[body.nbytes :]
        else:
            self._large = bytearray(total)
            self._large[: _LENGTH.size] = self._small
            self._filled = _LENGTH.size
        self._small.clear()
        return view


# Bodies

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
        raise WireError(f"unknown extension type {code}")
    kind, header, frames = msgspec.msgpack.decode(data)
    return Payload(kind, header, tuple(frames))


def _decode_hook(wanted: type, value: Any) -> Any:
    """Accept payloads in fields typed as Payload."""
    if wanted is Payload and isinstance(value, Payload):
        return value
    raise WireError(f"expected {wanted.__name__}, got {type(value).__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)


def _decoder(wanted: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(wanted, ext_hook=_ext_hook, dec_hook=_decode_hook)


_REQUESTS: tuple[type, ...] = (CompileRequest, ChildSetup, UploadedFile, Cancel)
_REPLIES: tuple[type, ...] = (CompilerReady, GraphChunk, GraphCommit, GraphFailed, GraphDone)
_request_decoders = tuple(_decoder(wanted) for wanted in (list[Any], *_REQUESTS[1:]))
_reply_decoders = tuple(_decoder(wanted) for wanted in _REPLIES)


def encode_request(request: Request) -> list[BytesLike]:
    """Return the pieces of a request, to be written in order. Large frames are not copied."""
    kind = _REQUESTS.index(type(request))
    if not isinstance(request, CompileRequest):
        return _pack(kind, _encoder.encode(request))
    expr = request.expr_ser
    priority = request.internal_priority
    body = [
        expr.kind,
        expr.header,
        None if priority is None else [list(priority), list(priority.values())],
        *(getattr(request, name) for name in _PLAIN_FIELDS),
    ]
    return _pack(kind, _encoder.encode(body), expr.frames)


_PLAIN_FIELDS = tuple(
    name
    for name in CompileRequest.__dataclass_fields__
    if name not in ("expr_ser", "internal_priority")
)
_KEY_FIELDS = ("keys", "submitting_task", "actors")


def decode_request(message: BytesLike) -> Request:
    """Decode a request. Raises WireError."""
    kind, body, buffers = _unpack(message)
    if kind >= len(_REQUESTS):
        raise WireError(f"unknown kind of request: {kind}")
    try:
        value = _request_decoders[kind].decode(body)
    except msgspec.MsgspecError as error:
        raise WireError(str(error)) from error
    if kind:
        return value  # type: ignore[no-any-return]
    expr_kind, header, priority, *plain = value
    fields = dict(zip(_PLAIN_FIELDS, plain, strict=True))
    for name in _KEY_FIELDS:
        fields[name] = _with_tuples(fields[name], name != "submitting_task")
    if priority is not None:
        priority = dict(zip(as_keys(priority[0]), priority[1], strict=True))
    return CompileRequest(
        expr_ser=Payload(expr_kind, header, tuple(buffers)), internal_priority=priority, **fields
    )


def _with_tuples(value: Any, plural: bool) -> Any:
    """Return keys with tuples in place of lists, and other values unchanged."""
    if plural and isinstance(value, list):
        return as_keys(value)
    return as_key(value)


def encode_reply(reply: Reply) -> list[BytesLike]:
    """Return the pieces of a reply, to be written in order. Buffers are not copied."""
    kind = _REPLIES.index(type(reply))
    if isinstance(reply, GraphChunk) and reply.buffers:
        return _pack(kind, _encoder.encode(replace(reply, buffers=[])), reply.buffers)
    return _pack(kind, _encoder.encode(reply))


def decode_reply(message: BytesLike) -> Reply:
    """Decode a reply, with hashable keys and large buffers as views. Raises WireError."""
    kind, body, buffers = _unpack(message)
    if kind >= len(_REPLIES):
        raise WireError(f"unknown kind of reply: {kind}")
    try:
        reply = _reply_decoders[kind].decode(body)
    except msgspec.MsgspecError as error:
        raise WireError(str(error)) from error
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
        reply.buffers = [
            bytes(buffer) if buffer.nbytes <= COPY_MAX_NBYTES else buffer for buffer in buffers
        ]
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
