"""One connection, as a machine without I/O: frames in, events out; messages in, frames out.

A connection's life is the table ``PHASES``. Both sides begin with a handshake. Then the side that connected asks, one request
at a time, and the side that listened answers; a reply has no mark of its own, its place in the order is what it is
known by. A request that registers somebody (``register-worker``, ``register-client``) turns the connection into a stream of
batches in both directions; the server says so with ``become_stream``, because only it knows whether it agreed. A stream ends with
``close-stream``, a connection in its RPC phase with ``close``, and either with the socket.

Must not know: sockets, time, what messages mean beyond those that move it from phase to phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from .catalogue import TABLES, Direction
from .codec import Codec
from .compression import Buffer
from .errors import LocalProtocolError
from .framing import Frames, frame_nbytes
from .handshake import IN_PLACE, Agreement, local_offer, negotiate
from .in_place import InPlaceCodec
from .long_batch import LONG_BATCH_NBYTES, pieces_of
from .messages.base import CloseRequest, CloseStream, Message, OddMessage, UnknownMessage
from .values import ScalarReader, ValueCloser

Role = Literal["listener", "connector"]
Phase = Literal["handshake", "rpc", "worker-stream", "client-stream", "closed"]
#: What moves a connection: a handshake came, a registration was accepted, a goodbye came or went, the socket ended.
Move = Literal["handshake", "worker", "client", "goodbye", "lost"]

#: (phase, move) -> the next phase. What is not here is an error of whoever made the move.
PHASES: Mapping[tuple[Phase, Move], Phase] = MappingProxyType(
    {
        ("handshake", "handshake"): "rpc",
        ("handshake", "lost"): "closed",
        ("rpc", "worker"): "worker-stream",
        ("rpc", "client"): "client-stream",
        ("rpc", "goodbye"): "closed",
        ("rpc", "lost"): "closed",
        ("worker-stream", "goodbye"): "closed",
        ("worker-stream", "lost"): "closed",
        ("client-stream", "goodbye"): "closed",
        ("client-stream", "lost"): "closed",
        ("closed", "goodbye"): "closed",
        ("closed", "lost"): "closed",
    }
)

#: (phase, role) -> (direction of what comes, direction of what goes). The listener of a stream is the scheduler.
_STREAMS: Mapping[tuple[Phase, Role], tuple[Direction, Direction]] = MappingProxyType(
    {
        ("worker-stream", "listener"): ("worker_to_scheduler", "scheduler_to_worker"),
        ("worker-stream", "connector"): ("scheduler_to_worker", "worker_to_scheduler"),
        ("client-stream", "listener"): ("client_to_scheduler", "scheduler_to_client"),
        ("client-stream", "connector"): ("scheduler_to_client", "client_to_scheduler"),
    }
)
_ALLOWED: Mapping[Direction, frozenset[type]] = MappingProxyType(
    {direction: frozenset(op.cls for op in table.values()) for direction, table in TABLES.items()}
)


@dataclass(frozen=True, slots=True)
class HandshakeDone:
    """The peer has said who it is.

    Attributes:
        agreement: what both sides can.
        remote: what it said, as it came.
    """

    agreement: Agreement
    remote: Any = None


@dataclass(frozen=True, slots=True)
class Request:
    """The peer asks (the RPC phase of a listener).

    Attributes:
        message: a class of the served table, ``UnknownMessage`` or ``OddMessage``.
        reply: it waits for one message.
        close: it wants the connection closed after that.
    """

    message: Message | UnknownMessage | OddMessage
    reply: bool
    close: bool


@dataclass(frozen=True, slots=True)
class Value:
    """A message that is neither a request nor a batch: a reply, or part of a conversation after a request.

    Attributes:
        value: it, as it stands: tuples for arrays, ``Payload`` objects in place.
    """

    value: Any


@dataclass(slots=True)
class Batch:
    """Messages of a stream, in order. Not to be changed: it is not frozen because that costs more than to read it.

    Attributes:
        messages: of the direction's classes, ``UnknownMessage`` or ``OddMessage``. ``CloseStream`` comes last.
        more: what follows in the same batch where that is long: lists of messages, each decoded when it is asked for; else None.
    """

    messages: list[Any]
    more: Iterator[list[Any]] | None = None


Event = HandshakeDone | Request | Value | Batch


class Connection:
    """One end of a connection.

    Args:
        role: "listener" accepted the connection, "connector" dialled.
        offer: what our handshake says otherwise than ``local_offer()``; with ``local_offer(in_place=True)`` the second encoding is
            spoken with a peer that offers it too.
        same_host: both ends are on one host.
        serves: the table of requests that this end serves.
        read_scalar, close_value: see ``Codec``.

    Attributes:
        phase: where in its life it is.
        agreement: what both sides can; None before the handshake.
        codec: how it reads and writes; after the handshake, in the encoding agreed on.
    """

    __slots__ = (
        "_close_value",
        "_in",
        "_offer",
        "_out",
        "_read_scalar",
        "_same_host",
        "_serves",
        "_started",
        "agreement",
        "codec",
        "phase",
        "role",
    )

    def __init__(
        self,
        role: Role,
        offer: Mapping[str, Any] | None = None,
        same_host: bool = False,
        *,
        serves: Direction = "scheduler_rpc",
        read_scalar: ScalarReader | None = None,
        close_value: ValueCloser | None = None,
    ) -> None:
        self.role: Role = role
        self.phase: Phase = "handshake"
        self.agreement: Agreement | None = None
        self.codec = Codec(read_scalar=read_scalar, close_value=close_value)
        self._read_scalar = read_scalar
        self._close_value = close_value
        self._offer = {**local_offer(), **(offer or {})}
        self._same_host = same_host
        self._serves: Direction = serves
        self._started = False
        self._in: Direction = serves
        self._out: Direction = serves

    def start(self) -> Frames:
        """Our handshake, to be sent at once.

        Raises:
            LocalProtocolError: it has been sent.
        """
        if self._started:
            raise LocalProtocolError("the handshake has been sent already")
        self._started = True
        return self.codec.encode(self._offer)

    def receive_frames(self, frames: Sequence[Buffer]) -> list[Event]:
        """What one message from the peer means. After the end of the connection, nothing.

        Raises:
            RemoteProtocolError: the peer broke the rules; drop it.
        """
        phase = self.phase
        if phase == "worker-stream" or phase == "client-stream":
            return self._batch(frames)
        if phase == "rpc":
            return [self._one(frames)]
        if phase == "handshake":
            remote = self.codec.decode_value(frames)
            agreement = negotiate(self._offer, remote, self._same_host)
            if agreement.encoding == IN_PLACE:
                self.codec = InPlaceCodec(
                    read_scalar=self._read_scalar, close_value=self._close_value
                )
            self.agreement = self.codec.agreement = agreement
            self._move("handshake")
            return [HandshakeDone(agreement, remote)]
        return []

    def become_stream(self, kind: Literal["worker", "client"]) -> None:
        """The registration was accepted (or, as its sender: asked for): batches follow in both directions.

        Raises:
            LocalProtocolError: not in this phase.
        """
        self._move(kind)
        self._in, self._out = _STREAMS[self.phase, self.role]

    def send(self, value: Any) -> Frames:
        """Frames of what we say: in a stream a list of messages (one alone becomes such a list), before that a request or
        a reply. A value that is no ``Message`` goes out as it is.

        Raises:
            LocalProtocolError: this may not be said in this phase, or not by this end, or cannot be said at all.
        """
        phase = self.phase
        if phase == "worker-stream" or phase == "client-stream":
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
            self._move("goodbye")
        return frames

    def lost(self) -> None:
        """The socket has ended."""
        self._move("lost")

    # ------------------------------------------------------------------ how

    def _move(self, move: Move) -> None:
        following = PHASES.get((self.phase, move))
        if following is None:
            raise LocalProtocolError(
                f"a connection in the phase {self.phase!r} cannot take {move!r}"
            )
        self.phase = following

    def _batch(self, frames: Sequence[Buffer]) -> list[Event]:
        is_long = frames and frame_nbytes(frames[0]) > LONG_BATCH_NBYTES
        pieces = pieces_of(frames[0]) if is_long else None
        if pieces is None:
            messages = self.codec.decode_batch(frames, self._in)
            self._ends(messages)
            return [Batch(messages)]
        more = self._decoded(pieces, frames[1:])
        return [Batch(next(more), more)]

    def _decoded(self, pieces: Iterator[bytes], others: Sequence[Buffer]) -> Iterator[list[Any]]:
        """The messages of a long batch, piece by piece."""
        for piece in pieces:
            messages = self.codec.decode_batch([piece, *others], self._in)
            ends = self._ends(messages)
            yield messages
            if ends:
                return

    def _ends(self, messages: list[Any]) -> bool:
        """Whether the stream ends with one of these; what follows that is taken out."""
        if CloseStream not in set(map(type, messages)):
            return False
        ends = next(i for i, message in enumerate(messages) if type(message) is CloseStream)
        del messages[ends + 1 :]
        if (self.phase, "goodbye") in PHASES:  # it may be over by the time that this is decoded
            self._move("goodbye")
        return True

    def _one(self, frames: Sequence[Buffer]) -> Event:
        """A message of the RPC phase."""
        value = self.codec.decode_value(frames)
        if self.role == "connector" or not isinstance(value, dict):
            return Value(value)
        if not isinstance(value.get("op"), str):
            return Value(value)
        message = self.codec.as_message(value, self._serves)
        return Request(message, bool(value.get("reply", True)), bool(value.get("close", False)))

    def _send_batch(self, messages: list[Any]) -> Frames:
        """Messages of a stream. Dicts among them are of plugins, which have ops of their own."""
        kinds = set(map(type, messages))
        strange = kinds - _ALLOWED[self._out]
        if not strange:
            frames = self.codec.encode_batch(messages, kinds)
        elif strange == {dict}:
            frames = self.codec.encode(messages)
        else:
            strange.discard(dict)
            names = ", ".join(sorted(kind.__name__ for kind in strange))
            raise LocalProtocolError(f"{names} cannot be sent from {self._out.replace('_', ' ')}")
        if CloseStream in kinds and type(messages[-1]) is CloseStream:
            self._move("goodbye")
        return frames
