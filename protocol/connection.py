"""An end of a connection, without I/O: frames in, events out; messages in, frames out.

The table ``PHASES`` lists the phases of a connection. Both ends begin with a handshake. Then the
end that connected sends requests, one at a time, and the end that listens replies. A reply has no
id; it belongs to the oldest request without a reply.

A request that registers a peer (``register-worker``, ``register-client``) turns the connection into
a stream of batches in both directions. The server calls ``become_stream`` for that, because only
the server knows whether it accepted the registration.

A stream ends with ``close-stream``, a connection in its RPC phase with ``close``, and either of
them when the socket closes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from msgspec.structs import force_setattr
from paceline.protocol.messages.base import (
    CloseRequest,
    CloseStream,
    InvalidMessage,
    Message,
    UnknownMessage,
)

from .catalogue import TABLES, Direction
from .codec import Codec
from .compression import Buffer
from .errors import LocalProtocolError
from .framing import Frames, frame_nbytes
from .handshake import Agreement, local_offer, negotiate, read_handshake
from .long_batch import LONG_BATCH_NBYTES, Piece, split_batch
from .messages import UpdateGraph
from .payload import FrameClaims
from .values import ScalarReader, ValueSerializer

Role = Literal["listener", "connector"]
Phase = Literal["handshake", "rpc", "worker-stream", "client-stream", "closed"]
#: What changes the phase: a handshake was received, a registration was accepted, or a closing
#: message was sent or received.
Move = Literal["handshake", "worker", "client", "close"]

#: (phase, move) -> the next phase. Any other move is an error of the end that makes it.
PHASES: Final[Mapping[tuple[Phase, Move], Phase]] = MappingProxyType(
    {
        ("handshake", "handshake"): "rpc",
        ("rpc", "worker"): "worker-stream",
        ("rpc", "client"): "client-stream",
        ("rpc", "close"): "closed",
        ("worker-stream", "close"): "closed",
        ("client-stream", "close"): "closed",
        ("closed", "close"): "closed",
    }
)

#: (phase, role) -> (direction received, direction sent). The listener of a stream is the scheduler.
_STREAMS: Mapping[tuple[Phase, Role], tuple[Direction, Direction]] = MappingProxyType(
    {
        ("worker-stream", "listener"): ("worker_to_scheduler", "scheduler_to_worker"),
        ("worker-stream", "connector"): ("scheduler_to_worker", "worker_to_scheduler"),
        ("client-stream", "listener"): ("client_to_scheduler", "scheduler_to_client"),
        ("client-stream", "connector"): ("scheduler_to_client", "client_to_scheduler"),
    }
)
_ALLOWED: Final[Mapping[Direction, frozenset[type]]] = MappingProxyType(
    {direction: frozenset(op.cls for op in table.values()) for direction, table in TABLES.items()}
)


@dataclass(frozen=True, slots=True)
class HandshakeDone:
    """The peer's handshake was received.

    Attributes:
        agreement: what both ends support.
        remote: the peer's handshake, as received.
    """

    agreement: Agreement
    remote: Any = None


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """The peer sent a request (RPC phase of a listener).

    Attributes:
        message: a class of the served table, ``UnknownMessage`` or ``InvalidMessage``.
        reply: whether the peer waits for a reply.
        close: whether to close the connection after the reply.
    """

    message: Message | UnknownMessage | InvalidMessage
    reply: bool
    close: bool


@dataclass(frozen=True, slots=True)
class Value:
    """A message that is neither a request nor a batch: a reply, or part of a longer exchange.

    Attributes:
        value: the decoded message: arrays as tuples, placeholders as ``Payload`` objects.
    """

    value: Any


@dataclass(slots=True, init=False)
class Batch:
    """Messages of a stream, in order. Do not modify it; it is not frozen only to save time.

    Attributes:
        messages: objects of the direction's classes, ``UnknownMessage`` or ``InvalidMessage``. A
            ``CloseStream`` comes last.
        more: for a long batch, an iterator over lists of the messages that follow, each decoded
            when it is requested; else None.
    """

    messages: list[Any]
    more: Iterator[list[Any]] | None

    # written out, so that mypyc compiles it
    def __init__(self, messages: list[Any], more: Iterator[list[Any]] | None = None) -> None:
        self.messages = messages
        self.more = more


Event = HandshakeDone | RequestReceived | Value | Batch


class Connection:
    """An end of a connection.

    Args:
        role: "listener" if this end accepted the connection, "connector" if it connected.
        offer: entries of this end's handshake that differ from ``local_offer()``. With
            ``local_offer(in_place=True)`` the in-place encoding is used with a peer that offers it
            too.
        serves: the table of requests that this end serves.
        read_scalar, serialize_value: see ``Codec``.

    Attributes:
        phase: current phase.
        agreement: what both ends support; None before the handshake.
        codec: encodes and decodes messages; after the handshake, in the agreed encoding.
    """

    def __init__(
        self,
        role: Role,
        offer: Mapping[str, Any] | None = None,
        *,
        serves: Direction = "scheduler_rpc",
        read_scalar: ScalarReader | None = None,
        serialize_value: ValueSerializer | None = None,
    ) -> None:
        self.role: Role = role
        self.phase: Phase = "handshake"
        self.agreement: Agreement | None = None
        self.codec = Codec(read_scalar=read_scalar, serialize_value=serialize_value)
        self._read_scalar = read_scalar
        self._serialize_value = serialize_value
        self._offer = {**local_offer(), **(offer or {})}
        self._serves: Direction = serves
        self._started = False
        self._in: Direction = serves
        self._out: Direction = serves

    def start(self) -> Frames:
        """Return this end's handshake, to be sent first.

        Raises:
            LocalProtocolError: it was already sent.
        """
        if self._started:
            raise LocalProtocolError("the handshake has been sent already")
        self._started = True
        return self.codec.encode(self._offer)

    def receive_frames(self, frames: Sequence[Buffer]) -> list[Event]:
        """Return the events for one message from the peer; none after the connection has closed.

        Raises:
            RemoteProtocolError: the message is invalid; close the connection.
        """
        phase = self.phase
        if phase in ("worker-stream", "client-stream"):
            return self._receive_batch(frames)
        if phase == "rpc":
            return [self._receive_one(frames)]
        if phase == "handshake":
            remote = read_handshake(frames)
            agreement = negotiate(self._offer, remote)
            self.agreement = agreement
            self.codec = self._agreed_codec(agreement)
            self._move("handshake")
            return [HandshakeDone(agreement, remote)]
        return []

    def resume(self, phase: Phase, agreement: Agreement | None) -> None:
        """Continue a connection of another process, which had reached `phase`."""
        self._started = True
        self.agreement = agreement
        if agreement is not None:
            self.codec = self._agreed_codec(agreement)
        self.phase = phase
        if (phase, self.role) in _STREAMS:
            self._in, self._out = _STREAMS[phase, self.role]

    def _agreed_codec(self, agreement: Agreement) -> Codec:
        return Codec(
            agreement, read_scalar=self._read_scalar, serialize_value=self._serialize_value
        )

    def become_stream(self, kind: Literal["worker", "client"]) -> None:
        """Switch to batches in both directions, after a registration was accepted (or sent).

        Raises:
            LocalProtocolError: the connection is not in its RPC phase.
        """
        self._move(kind)
        self._in, self._out = _STREAMS[self.phase, self.role]

    def send(self, value: Any) -> Frames:
        """Return the frames of `value`.

        In a stream, `value` is a list of messages, or one message, which is sent as such a list.
        Before that, it is a request or a reply. A value that is not a ``Message`` is encoded as it
        is.

        Raises:
            LocalProtocolError: `value` cannot be sent in this phase or by this end, or cannot be
                encoded.
        """
        phase = self.phase
        if phase in ("worker-stream", "client-stream"):
            if type(value) is list:
                return self._send_batch(value)
            if isinstance(value, Message):
                return self._send_batch([value])
        elif phase != "rpc":
            raise LocalProtocolError(f"nothing can be sent in the phase {phase!r}")
        elif self.role == "listener" and isinstance(value, Message):
            raise LocalProtocolError(
                f"{type(value).__name__} cannot be sent by the end that answers requests"
            )
        frames = self.codec.encode(value)
        if type(value) is CloseRequest:
            self._move("close")
        return frames

    def _move(self, move: Move) -> None:
        following = PHASES.get((self.phase, move))
        if following is None:
            raise LocalProtocolError(
                f"the move {move!r} is not possible in the phase {self.phase!r}"
            )
        self.phase = following

    def _receive_batch(self, frames: Sequence[Buffer]) -> list[Event]:
        """Decode a message of a stream: all of it, or the first piece if it is long."""
        is_long = frames and frame_nbytes(frames[0]) > LONG_BATCH_NBYTES
        pieces = split_batch(frames[0]) if is_long else None
        if pieces is None:
            messages = self.codec.decode_batch(frames, self._in)
            self._truncate_at_close(messages)
            return [Batch(messages)]
        more = self._decode_pieces(pieces, frames[1:])
        return [Batch(next(more), more)]

    def _decode_pieces(
        self, pieces: Iterator[Piece], others: Sequence[Buffer]
    ) -> Iterator[list[Any]]:
        """Decode a long batch piece by piece."""
        claims = FrameClaims(1 + len(others))
        for piece in pieces:
            messages = self.codec.decode_batch([piece.frame, *others], self._in, claims)
            if piece.packed and type(messages[0]) is UpdateGraph:
                for name, value in piece.packed.items():
                    force_setattr(messages[0], name, value)
            is_closed = self._truncate_at_close(messages)
            yield messages
            if is_closed:
                return

    def _truncate_at_close(self, messages: list[Any]) -> bool:
        """Remove the messages after a ``CloseStream``; return whether `messages` contain one."""
        for position, message in enumerate(messages):
            if type(message) is CloseStream:
                del messages[position + 1 :]
                if (self.phase, "close") in PHASES:  # not if it closed before this was decoded
                    self._move("close")
                return True
        return False

    def _receive_one(self, frames: Sequence[Buffer]) -> Event:
        """Decode a message of the RPC phase."""
        value = self.codec.decode_value(frames)
        if self.role == "connector" or not isinstance(value, dict):
            return Value(value)
        if not isinstance(value.get("op"), str):
            return Value(value)
        message = self.codec.as_message(value, self._serves)
        return RequestReceived(
            message, bool(value.get("reply", True)), bool(value.get("close", False))
        )

    def _send_batch(self, messages: list[Any]) -> Frames:
        """Encode messages of a stream. Dicts are messages of plugins, which have their own ops."""
        allowed = _ALLOWED[self._out]
        has_dicts = False
        for message in messages:
            kind = type(message)
            if kind is dict:
                has_dicts = True
            elif kind not in allowed:
                raise LocalProtocolError(
                    f"{kind.__name__} cannot be sent from {self._out.replace('_', ' ')}"
                )
        encode = self.codec.encode if has_dicts else self.codec.encode_batch
        frames = encode(messages)
        if messages and type(messages[-1]) is CloseStream:
            self._move("close")
        return frames
