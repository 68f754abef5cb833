"""Messages between the scheduler and its graph compilers, and their encoding.

The scheduler sends ``ChildSetup`` first and receives ``CompilerReady``. Each ``CompileRequest`` is
answered, in order, by ``GraphChunk`` messages, one ``GraphCommit`` or ``GraphFailed`` (neither
after ``Cancel``) and ``GraphDone``. A ``MatchRequest`` is answered by ``MatchReply`` and
``GraphDone``. All but the last can be fed to the core unchanged.

They are framed as Dask's messages are (``protocol.framing``). Frame 0 of a request is a pickle,
and frame 1 has the keys of a ``CompileRequest`` in msgpack, which takes the event loop a third of
the time. Frame 0 of a reply is its kind, one byte, and a msgpack body. The other frames are
buffers, which are neither copied nor parsed.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from paceline.protocol.compression import Buffer
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import Frames, pack_frames
from paceline.protocol.keys import normalize_key, normalize_keys
from paceline.protocol.packed_keys import PackedKeys, decode_or
from paceline.protocol.payload import Payload
from paceline.scheduler.core.stimuli import GraphChunk, GraphCommit, GraphFailed

_plain_encoder = msgspec.msgpack.Encoder()
_two_raws = msgspec.msgpack.Decoder(tuple[msgspec.Raw, msgspec.Raw])

# Messages


@dataclass(slots=True)
class CompileRequest:
    """The part of ``update-graph`` that compiling needs.

    Attributes:
        graph_id: unique within a scheduler; every reply contains it.
        expr_ser: the serialized expression.
        internal_priority: key -> place, if the client has ordered the graph itself; a long map may
            be in msgpack.
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
    keys: Collection[Any]
    internal_priority: dict[Any, int] | msgspec.Raw | None = None
    submitting_task: Any = None
    user_priority: Any = 0
    actors: Any = None
    fifo_timeout: Any = 0
    code: Any = None
    annotations: Any = None
    span_metadata: Any = None
    received_at: float = 0.0
    validate: bool = False

    @property
    def nbytes(self) -> int:
        """The size of the expression."""
        return self.expr_ser.nbytes


@dataclass(slots=True)
class MatchRequest:
    """A request to compare the class of a pickled exception, and its base classes, with names.

    Attributes:
        graph_id: negative number of the request. Those of graphs are positive and in the log of a
            durable scheduler.
        exception: as a worker sent it.
        names: full names of classes.
        client: a client's requests are handled one after the other, like its graphs.
        keys: none; see ``GraphFailed``.
    """

    graph_id: int
    exception: Payload
    names: list[str]
    client: str = ""
    keys: tuple[Any, ...] = ()

    @property
    def nbytes(self) -> int:
        """The size of the exception."""
        return self.exception.nbytes


@dataclass(slots=True)
class MatchReply:
    """The answer to ``MatchRequest``.

    Attributes:
        problem: why there is no answer, or "".
    """

    graph_id: int
    matches: bool
    problem: str = ""


@dataclass(slots=True)
class ChildSetup:
    """The first message to a compiler process: what it shares with the scheduler.

    Attributes:
        config: dask's configuration (plain values).
        sys_path: the ``sys.path`` of the scheduler.
        files: uploaded files: name -> content, written to a folder at the front of the path.
    """

    config: dict[str, Any] = field(default_factory=dict)
    sys_path: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


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


Request = CompileRequest | MatchRequest | ChildSetup | UploadedFile | Cancel
Reply = CompilerReady | GraphChunk | GraphCommit | GraphFailed | MatchReply | GraphDone


# Requests: pickled, because the compiler process trusts the scheduler


class _RequestPickler(pickle.Pickler):
    """Pickles a request. The frames of payloads become buffers."""

    def __init__(self, file: io.BytesIO) -> None:
        self.buffers: list[Buffer] = []
        super().__init__(file, protocol=5, buffer_callback=lambda _: None)

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Payload:
            return NotImplemented
        self.buffers += value.frames
        frames = tuple(map(pickle.PickleBuffer, value.frames))
        return Payload, (value.kind, bytes(value.header), frames)


def encode_request(request: Request) -> Frames:
    """Return the pieces of a request, to be written in order. Frames of payloads are not copied."""
    packed = b""
    if isinstance(request, CompileRequest):
        keys = request.keys.raw if isinstance(request.keys, PackedKeys) else request.keys
        packed = _plain_encoder.encode((keys, request.internal_priority))
        request = replace(request, keys=[], internal_priority=None)
    file = io.BytesIO()
    pickler = _RequestPickler(file)
    pickler.fast = True  # no memo, which would cost more than it saves
    pickler.dump(request)
    return pack_frames([file.getvalue(), packed, *pickler.buffers])


def decode_request(frames: Frames) -> Request:
    """Decode a request. Raises RemoteProtocolError."""
    try:
        request: Request = pickle.loads(frames[0], buffers=frames[2:])
        if isinstance(request, CompileRequest):
            keys, internal_priority = _two_raws.decode(frames[1])
            request.keys = normalize_keys(decode_or(keys, []))
            request.internal_priority = decode_or(internal_priority, None)
    except Exception as error:
        raise RemoteProtocolError(f"cannot decode a request: {error}") from error
    return request


# Replies: msgpack, because user code runs in the compiler process

_PAYLOAD_EXT = 1


def _encode_hook(value: Any) -> Any:
    """Encode payloads as an extension type, and sets as arrays."""
    if isinstance(value, Payload):
        return msgspec.msgpack.Ext(
            _PAYLOAD_EXT, _plain_encoder.encode((value.kind, value.header, value.frames))
        )
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    raise TypeError(f"{type(value).__name__} cannot be sent by the graph compiler")


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


_REPLIES: tuple[type, ...] = (
    *(CompilerReady, GraphChunk, GraphCommit, GraphFailed, MatchReply, GraphDone),
)
_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_decoders: tuple[msgspec.msgpack.Decoder[Any], ...] = tuple(
    msgspec.msgpack.Decoder(kind, ext_hook=_ext_hook, dec_hook=_decode_hook) for kind in _REPLIES
)


def encode_reply(reply: Reply) -> Frames:
    """Return the pieces of a reply, to be written in order. Buffers are not copied."""
    kind = bytes((_REPLIES.index(type(reply)),))
    buffers: Sequence[Buffer] = ()
    if isinstance(reply, GraphChunk):
        reply, buffers = replace(reply, buffers=[]), reply.buffers
    return pack_frames([kind + _encoder.encode(reply), *buffers])


def decode_reply(frames: Frames) -> Reply:
    """Decode a reply, with hashable keys. Raises RemoteProtocolError."""
    head = memoryview(frames[0] if frames else b"")
    if not head or head[0] >= len(_decoders):
        raise RemoteProtocolError(f"unknown kind of message: {bytes(head[:1])!r}")
    try:
        reply: Any = _decoders[head[0]].decode(head[1:])
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(str(error)) from error
    if isinstance(reply, GraphChunk):
        reply.keys = normalize_keys(reply.keys)
        if reply.new_externals:
            reply.new_externals = normalize_keys(reply.new_externals)
        reply.new_groups = [
            (normalize_key(name) if type(name) is list else name, prefix)
            for name, prefix in reply.new_groups
        ]
        for annotations in reply.new_annotations:
            if annotations.workers:
                annotations.workers = normalize_keys(annotations.workers)
        reply.buffers = frames[1:]  # type: ignore[assignment]
    elif isinstance(reply, GraphCommit):
        reply.keys = normalize_keys(reply.keys)
        reply.submitting_task = normalize_key(reply.submitting_task)
        if isinstance(reply.actors, list):
            reply.actors = normalize_keys(reply.actors)
    elif isinstance(reply, GraphFailed):
        reply.keys = normalize_keys(reply.keys)
    return reply  # type: ignore[no-any-return]
