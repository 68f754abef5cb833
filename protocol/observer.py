"""Observe both directions of a connection: decode each message and report what is wrong with it.

Pass messages to ``Observer`` in the order in which they are sent; *up* is from the end that
connected. The observer follows the phases of the connection: two handshakes, requests and replies,
the stream that a registration starts, and what follows ``feed`` and ``subscribe_worker_status``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .catalogue import TABLES, Direction, Op
from .codec import RAW_LIST
from .compression import Buffer
from .errors import RemoteProtocolError
from .handshake import IN_PLACE, Encoding, local_offer, negotiate, offers_in_place
from .omitted_frame import OmittedFrame
from .payload import Payload
from .sniffing import real_nbytes, wire_nbytes
from .validation import Violation, check_message, check_reply
from .values import PAYLOAD_KINDS, READ_ERRORS, ScalarReader, ValueReader

Way = Literal["up", "down"]
#: What a message is. "inner": a request inside ``broadcast`` or ``proxy``. "value": part of a
#: longer exchange after a request.
MessageKind = Literal["handshake", "request", "inner", "reply", "stream", "value", "unreadable"]
ObservedPhase = Literal["handshake", "rpc", "worker-stream", "client-stream", "open-stream"]

#: Requests of one connection without a reply; peers send one at a time.
PENDING_MAX = 1024

#: After these requests the listening end sends more than one message.
_SUBSCRIPTIONS = frozenset(("feed", "subscribe_worker_status"))
#: The handlers of these requests reply themselves, also if ``reply`` is False.
_REPLIES_ITSELF = frozenset(("register-worker", "register_nanny"))
#: The sender acknowledges the replies to these requests ("OK", {"status": "ok"}).
_ACKNOWLEDGED = frozenset(("get_data", "register_nanny"))


@dataclass(slots=True)
class ObservedMessage:
    """A message of an observed connection.

    Attributes:
        way: "up" from the end that connected, "down" to it.
        kind: what it is.
        op: its op; for a reply or a value, that of the request before it; "" if there is none.
        value: the decoded message: arrays as tuples, placeholders as ``Payload`` objects; None if
            it is unreadable.
        direction: the table that contains its op; None for handshakes and values.
        nbytes: its size on the wire. A message of a batch counts its own msgpack and frames.
        n_frames: frames of the whole batch, for its first message; 0 for the others.
        violations: what is wrong with it.
        omitted: whether parts of it were too large to be decoded.
        n_messages: number of messages in its batch; 1 for a single message, 0 for one inside
            another.
        frames: frames of the whole batch, for its first message; None for the others.
    """

    way: Way
    kind: MessageKind
    op: str
    value: Any
    direction: Direction | None
    nbytes: int
    n_frames: int
    violations: list[Violation] = field(default_factory=list)
    omitted: bool = False
    n_messages: int = 1
    frames: Sequence[Buffer] | None = None


class _MeasuringReader(ValueReader):
    """A ``ValueReader`` that accepts omitted frames and adds up the sizes of payloads.

    Attributes:
        payload_nbytes: size of the payloads, headers included.
        omitted: whether parts of the value were not kept.
    """

    __slots__ = ("omitted", "payload_nbytes")

    def __init__(
        self, frames: Sequence[Buffer], encoding: Encoding, read_scalar: ScalarReader | None
    ) -> None:
        super().__init__(frames, encoding, read_scalar)
        self.payload_nbytes = 0
        self.omitted = False

    def convert(self, value: dict[Any, Any]) -> Any:
        if len(value) == 1:
            ((name, index),) = value.items()
            kind = PAYLOAD_KINDS.get(name)
            if kind is not None and type(index) is int and 0 < index < len(self._frames):
                header = self._frames[index]
                if isinstance(header, OmittedFrame):
                    self.omitted = True
                    self.payload_nbytes += header.omitted_nbytes
                    return Payload(kind, b"")
        converted = super().convert(value)
        if isinstance(converted, Payload):
            frames = converted.frames
            self.payload_nbytes += len(converted.header) + sum(map(real_nbytes, frames))
            self.omitted = self.omitted or any(isinstance(x, OmittedFrame) for x in frames)
        return converted


class Observer:
    """The observer of one connection.

    Args:
        serves: tables that the listening end serves; the first that has an op is used.
        read_scalar: see ``Codec``.

    Attributes:
        phase: current phase of the connection.
        peer: description of the end that connected: "worker alice", "client Client-1"; "" until it
            is known.
    """

    def __init__(
        self,
        serves: Sequence[Direction] = ("scheduler_rpc",),
        *,
        read_scalar: ScalarReader | None = None,
    ) -> None:
        self.phase: ObservedPhase = "handshake"
        self.peer = ""
        self._serves = tuple(serves)
        self._read_scalar = read_scalar
        self._offers: dict[Way, Any] = {}
        self._encoding: Encoding = "stock"
        self._pending: deque[Op | str] = deque()  # requests without a reply
        self._subscription = ""  # the request that the listener keeps sending values for
        self._unacknowledged = ""  # the request whose reply is to be acknowledged
        self._registering = False

    def observe(self, way: Way, frames: Sequence[Buffer]) -> list[ObservedMessage]:
        """Return the next message, whose frames are `frames`; for a batch, each of its messages."""
        found = self._observe(way, frames)
        n_messages = sum(message.kind != "inner" for message in found)
        for message in found:
            message.n_messages = n_messages if message.kind != "inner" else 0
        if found:
            found[0].frames = frames
        return found

    def _observe(self, way: Way, frames: Sequence[Buffer]) -> list[ObservedMessage]:
        nbytes = wire_nbytes(frames)
        if not frames:
            return [self._unreadable(way, nbytes, 0, "a message without frames")]
        if isinstance(frames[0], OmittedFrame):
            return self._omitted(way, nbytes, len(frames))
        try:
            if way not in self._offers:
                return [self._handshake(way, frames, nbytes)]
            if self.phase in ("handshake", "rpc") or (way == "down" and self._registering):
                return self._one(way, frames, nbytes)
            return self._batch(way, frames, nbytes)
        except RemoteProtocolError as error:
            if self.phase == "rpc" and way == "down" and self._pending:
                self._pending.popleft()
            return [self._unreadable(way, nbytes, len(frames), str(error))]

    # ------------------------------------------------------------------ phases

    def _handshake(self, way: Way, frames: Sequence[Buffer], nbytes: int) -> ObservedMessage:
        value, _ = self._read(frames, frames[0])
        self._offers[way] = value
        message = ObservedMessage(way, "handshake", "", value, None, nbytes, len(frames))
        try:
            negotiate(local_offer(), value)
        except RemoteProtocolError as error:
            message.violations.append(Violation("wrong type", "handshake", "$", str(error)))
        if len(self._offers) == 2:
            if self.phase == "handshake":
                self.phase = "rpc"
            if all(map(offers_in_place, self._offers.values())):
                self._encoding = IN_PLACE
        return message

    def _one(self, way: Way, frames: Sequence[Buffer], nbytes: int) -> list[ObservedMessage]:
        """Observe a message of the RPC phase."""
        value, reader = self._read(frames, frames[0])
        if way == "up":
            message = self._from_connector(value, nbytes, len(frames))
        else:
            message = [self._from_listener(value, nbytes, len(frames))]
        message[0].omitted = reader.omitted
        return message

    def _from_connector(self, value: Any, nbytes: int, n_frames: int) -> list[ObservedMessage]:
        if not isinstance(value, dict) or "op" not in value:
            return [self._acknowledgement(value, nbytes, n_frames)]
        name = value["op"] if isinstance(value["op"], str) else ""
        direction = next((d for d in self._serves if name in TABLES[d]), self._serves[0])
        violations = check_message(value, direction)
        message = ObservedMessage(
            "up", "request", name, value, direction, nbytes, n_frames, violations
        )
        op = TABLES[direction].get(name)
        self._unacknowledged = ""
        if len(self._pending) >= PENDING_MAX:
            violations.append(
                Violation("out of place", name, "$", f"{PENDING_MAX} requests have no reply yet")
            )
        elif value.get("reply", True) is not False or name in _REPLIES_ITSELF:
            self._pending.append(op or name)
            if name == "register_nanny" and value.get("reply", True) is not False:
                self._pending.append(name)  # stock's handler replies, and then sends None, too
        self._set_peer(name, value)
        if direction == "scheduler_rpc":
            if name == "register-client":
                self.phase = "client-stream"
            elif name == "register-worker":
                self._registering = True
        if name == "connection_stream":
            self.phase = "open-stream"
        return [message, *self._inner(value)]

    def _inner(self, value: dict[str, Any]) -> Iterator[ObservedMessage]:
        """Yield the request inside ``broadcast`` or ``proxy``."""
        inner = value.get("msg")
        if value["op"] not in ("broadcast", "proxy") or not isinstance(inner, dict):
            return
        direction: Direction = "nanny_rpc" if value.get("nanny") is True else "worker_rpc"
        op = inner.get("op")
        name = op if isinstance(op, str) else ""
        yield ObservedMessage(
            "up", "inner", name, inner, direction, 0, 0, check_message(inner, direction)
        )  # fmt: skip

    def _acknowledgement(self, value: Any, nbytes: int, n_frames: int) -> ObservedMessage:
        op, self._unacknowledged = self._unacknowledged, ""
        message = ObservedMessage("up", "value", op, value, None, nbytes, n_frames)
        if not op:
            text = "neither a request nor an acknowledgement"
            message.violations.append(Violation("out of place", "", "$", text))
        return message

    def _from_listener(self, value: Any, nbytes: int, n_frames: int) -> ObservedMessage:
        message = ObservedMessage("down", "reply", "", value, None, nbytes, n_frames)
        if not self._pending:
            message.kind, message.op = "value", self._subscription
            if not self._subscription:
                text = "a message without a request"
                message.violations.append(Violation("out of place", "", "$", text))
            return message
        op = self._pending.popleft()
        if isinstance(op, str):  # not in a table
            message.op = op
            return message
        message.op, message.direction = op.name, op.direction
        message.violations = check_reply(value, op)
        if op.name in _SUBSCRIPTIONS:
            self._subscription = op.name
        if op.name in _ACKNOWLEDGED:
            self._unacknowledged = op.name
        if op.name == "register-worker" and self._registering:
            self._registering = False
            if isinstance(value, dict) and value.get("status") == "OK":
                self.phase = "worker-stream"
        return message

    def _batch(self, way: Way, frames: Sequence[Buffer], nbytes: int) -> list[ObservedMessage]:
        """Observe the messages of a stream."""
        direction = self._direction(way)
        try:
            raws: list[Any] = RAW_LIST.decode(frames[0])
        except READ_ERRORS:
            raws = [frames[0]]
        found: list[ObservedMessage] = []
        for raw in raws:
            size = len(memoryview(raw))
            try:
                value, reader = self._read(frames, raw)
            except RemoteProtocolError as error:
                found.append(self._unreadable(way, size, 0, str(error)))
                continue
            name = value.get("op") if isinstance(value, dict) else None
            message = ObservedMessage(
                way, "stream", name if isinstance(name, str) else "", value, direction, size, 0
            )
            message.nbytes += reader.payload_nbytes
            message.omitted = reader.omitted
            if direction is not None:
                message.violations = check_message(value, direction)
            found.append(message)
        if found:
            found[0].n_frames = len(frames)
            found[0].nbytes += max(0, nbytes - sum(message.nbytes for message in found))
        return found

    def _direction(self, way: Way) -> Direction | None:
        """Return the table of the messages sent `way` in a stream."""
        if self.phase == "worker-stream":
            return "worker_to_scheduler" if way == "up" else "scheduler_to_worker"
        if self.phase == "client-stream":
            return "client_to_scheduler" if way == "up" else "scheduler_to_client"
        return None

    def _read(self, frames: Sequence[Buffer], data: Buffer) -> tuple[Any, _MeasuringReader]:
        """Return the decoded value, and its reader.

        Raises:
            RemoteProtocolError: it cannot be decoded.
        """
        reader = _MeasuringReader(frames, self._encoding, self._read_scalar)
        return reader.read(data), reader

    def _unreadable(self, way: Way, nbytes: int, n_frames: int, text: str) -> ObservedMessage:
        violation = Violation("unreadable", "", "$", text)
        return ObservedMessage(way, "unreadable", "", None, None, nbytes, n_frames, [violation])

    def _omitted(self, way: Way, nbytes: int, n_frames: int) -> list[ObservedMessage]:
        """Return a message that is too large to be decoded; its position in the exchange is known.

        A message in the RPC phase is the reply to the oldest request, or a request.
        """
        message = ObservedMessage(way, "value", "", None, None, nbytes, n_frames, [], True)
        if self.phase == "rpc" and way == "down" and self._pending:
            op = self._pending.popleft()
            message.op, message.kind = (op if isinstance(op, str) else op.name), "reply"
        elif self.phase == "rpc":
            self._subscription = self._subscription or "a request too large to be decoded"
        return [message]

    def _set_peer(self, op: str, request: dict[str, Any]) -> None:
        """Set ``peer`` if `request` names its sender."""
        if op == "register-worker":
            self.peer = f"worker {request.get('name') or request.get('address')}"
        elif op == "register-client":
            self.peer = f"client {request.get('client')}"
        elif not self.peer:
            if op in ("heartbeat_worker", "unregister"):
                self.peer = f"worker {request.get('address')}"
            elif op == "register_nanny":
                self.peer = f"nanny {request.get('address')}"
            elif isinstance(request.get("client"), str):
                self.peer = f"client {request['client']}"
