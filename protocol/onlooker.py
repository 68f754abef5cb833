"""A connection as somebody between its ends sees it: each message, what it is, and what is wrong with it.

Give it what passes, in the order in which it passes; *up* is from the end that dialled. It follows the connection's life: two
handshakes, requests and their replies, the stream that a registration begins, what follows ``feed`` and ``subscribe_worker_status``.

Must not know: sockets, time, who prints what it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .catalogue import TABLES, Direction, Op
from .checking import Violation, check_message, check_reply
from .codec import _RAW_LIST
from .compression import Buffer
from .errors import RemoteProtocolError
from .handshake import IN_PLACE, Encoding, local_offer, negotiate, offers_in_place
from .in_place import InPlaceReader
from .payload import Payload
from .skimming import OmittedFrame, real_nbytes, wire_nbytes
from .values import READ_ERRORS, ScalarReader, ValueReader

Way = Literal["up", "down"]
#: What a message is. "inner": a request inside ``broadcast`` or ``proxy``. "value": part of a conversation after a request.
Kind = Literal["handshake", "request", "inner", "reply", "stream", "value", "unreadable"]
Phase = Literal["handshake", "rpc", "worker-stream", "client-stream", "open-stream"]

#: Requests of one connection that wait for their replies; peers ask one at a time.
PENDING_MAX = 1024

#: After these requests the end that listened goes on talking.
_LASTING = frozenset(("feed", "subscribe_worker_status"))
#: These are answered by hand, also where they say ``reply: False``.
_ANSWERED_BY_HAND = frozenset(("register-worker", "register_nanny"))
#: After the answers to these the asker says a last word ("OK", {"status": "ok"}).
_ACKNOWLEDGED = frozenset(("get_data", "register_nanny"))


@dataclass(slots=True)
class Seen:
    """One message that passed.

    Attributes:
        way: "up" from the end that dialled, "down" to it.
        kind: what it is.
        op: its op; of a reply or a value, that of the request before it; "" where there is none.
        value: it, opened: tuples for arrays, ``Payload`` objects in place; None where it is unreadable.
        direction: the table in which its op is; None for handshakes and values.
        nbytes: its size on the wire. A message of a batch counts its own msgpack and frames.
        n_frames: of the whole batch, for its first message; 0 for the others.
        violations: what is wrong with it.
        omitted: parts of it were too large to be looked at.
        n_messages: that came together in one batch; 1 for what came alone, 0 for what stands inside another message.
        frames: all that came together, for the first message of it; None for the others.
    """

    way: Way
    kind: Kind
    op: str
    value: Any
    direction: Direction | None
    nbytes: int
    n_frames: int
    violations: list[Violation] = field(default_factory=list)
    omitted: bool = False
    n_messages: int = 1
    frames: Sequence[Buffer] | None = None


class _Look:
    """What was noticed while a value was read.

    Attributes:
        payload_nbytes: size of the payloads in it, headers included.
        omitted: some of it was not kept.
    """

    __slots__ = ("omitted", "payload_nbytes")

    def __init__(self) -> None:
        self.payload_nbytes = 0
        self.omitted = False

    def note(self, payload: Payload) -> None:
        self.payload_nbytes += len(payload.header) + sum(map(real_nbytes, payload.frames))
        self.omitted = self.omitted or any(isinstance(x, OmittedFrame) for x in payload.frames)


class _StockReader(ValueReader):
    __slots__ = ("look",)
    look: _Look

    def convert(self, value: dict[Any, Any]) -> Any:
        if len(value) == 1:
            ((name, index),) = value.items()
            if (
                (name == "__Serialized__" or name == "__Pickled__")
                and type(index) is int
                and 0 < index < len(self._frames)
            ):
                header = self._frames[index]
                if isinstance(header, OmittedFrame):
                    self.look.omitted = True
                    self.look.payload_nbytes += header.omitted_nbytes
                    return Payload("serialized" if name == "__Serialized__" else "pickled", b"")
        return _noted(super().convert(value), self.look)


class _InPlaceReader(InPlaceReader):
    __slots__ = ("look",)
    look: _Look

    def convert(self, value: dict[Any, Any]) -> Any:
        return _noted(super().convert(value), self.look)


def _noted(value: Any, look: _Look) -> Any:
    if isinstance(value, Payload):
        look.note(value)
    return value


class Onlooker:
    """Follows one connection.

    Args:
        serves: what the end that listened serves; of several tables the first that has an op counts.
        read_scalar: see ``Codec``.

    Attributes:
        phase: where in its life the connection is.
        peer: who dialled, in words, once that is known: "worker alice", "client Client-1"; "" before.
    """

    __slots__ = (
        "_encoding",
        "_lasting",
        "_offers",
        "_pending",
        "_read_scalar",
        "_registering",
        "_serves",
        "_values_up",
        "peer",
        "phase",
    )

    def __init__(
        self,
        serves: Sequence[Direction] = ("scheduler_rpc",),
        *,
        read_scalar: ScalarReader | None = None,
    ) -> None:
        self.phase: Phase = "handshake"
        self.peer = ""
        self._serves = tuple(serves)
        self._read_scalar = read_scalar
        self._offers: dict[Way, Any] = {}
        self._encoding: Encoding = "stock"
        self._pending: deque[Op | str] = deque()  # requests that wait for replies
        self._lasting = ""  # the request after which the listener goes on talking
        self._values_up = ""  # the request after which the asker has one more word
        self._registering = False

    def see(self, way: Way, frames: Sequence[Buffer]) -> list[Seen]:
        """What the next message is; each message of a batch."""
        found = self._see(way, frames)
        n_messages = sum(seen.kind != "inner" for seen in found)
        for seen in found:
            seen.n_messages = n_messages if seen.kind != "inner" else 0
        if found:
            found[0].frames = frames
        return found

    def _see(self, way: Way, frames: Sequence[Buffer]) -> list[Seen]:
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

    def _handshake(self, way: Way, frames: Sequence[Buffer], nbytes: int) -> Seen:
        value, _ = self._read(frames, frames[0])
        self._offers[way] = value
        seen = Seen(way, "handshake", "", value, None, nbytes, len(frames))
        try:
            negotiate(local_offer(), value)
        except RemoteProtocolError as error:
            seen.violations.append(Violation("wrong type", "handshake", "$", str(error)))
        if len(self._offers) == 2:
            if self.phase == "handshake":
                self.phase = "rpc"
            if all(map(offers_in_place, self._offers.values())):
                self._encoding = IN_PLACE
        return seen

    def _one(self, way: Way, frames: Sequence[Buffer], nbytes: int) -> list[Seen]:
        """A message of the RPC phase."""
        value, look = self._read(frames, frames[0])
        if way == "up":
            seen = self._asked(value, nbytes, len(frames))
        else:
            seen = [self._answered(value, nbytes, len(frames))]
        seen[0].omitted = look.omitted
        return seen

    def _asked(self, value: Any, nbytes: int, n_frames: int) -> list[Seen]:
        if not isinstance(value, dict) or "op" not in value:
            return [self._last_word(value, nbytes, n_frames)]
        name = value["op"] if isinstance(value["op"], str) else ""
        direction = next((d for d in self._serves if name in TABLES[d]), self._serves[0])
        violations = check_message(value, direction)
        seen = Seen("up", "request", name, value, direction, nbytes, n_frames, violations)
        op = TABLES[direction].get(name)
        self._values_up = ""
        if len(self._pending) >= PENDING_MAX:
            violations.append(
                Violation("out of place", name, "$", f"{PENDING_MAX} requests have no reply yet")
            )
        elif value.get("reply", True) is not False or name in _ANSWERED_BY_HAND:
            self._pending.append(op or name)
            if name == "register_nanny" and value.get("reply", True) is not False:
                self._pending.append(name)  # stock answers by hand, and then once more with None
        self._note_peer(name, value)
        if direction == "scheduler_rpc":
            if name == "register-client":
                self.phase = "client-stream"
            elif name == "register-worker":
                self._registering = True
        if name == "connection_stream":
            self.phase = "open-stream"
        return [seen, *self._inner(value)]

    def _inner(self, value: dict[str, Any]) -> Iterator[Seen]:
        """The request inside ``broadcast`` or ``proxy``."""
        inner = value.get("msg")
        if value["op"] not in ("broadcast", "proxy") or not isinstance(inner, dict):
            return
        direction: Direction = "nanny_rpc" if value.get("nanny") is True else "worker_rpc"
        op = inner.get("op")
        name = op if isinstance(op, str) else ""
        yield Seen(
            "up", "inner", name, inner, direction, 0, 0, check_message(inner, direction)
        )  # fmt: skip

    def _last_word(self, value: Any, nbytes: int, n_frames: int) -> Seen:
        op, self._values_up = self._values_up, ""
        seen = Seen("up", "value", op, value, None, nbytes, n_frames)
        if not op:
            text = "neither a request nor an acknowledgement"
            seen.violations.append(Violation("out of place", "", "$", text))
        return seen

    def _answered(self, value: Any, nbytes: int, n_frames: int) -> Seen:
        seen = Seen("down", "reply", "", value, None, nbytes, n_frames)
        if not self._pending:
            seen.kind, seen.op = "value", self._lasting
            if not self._lasting:
                text = "a message that nobody asked for"
                seen.violations.append(Violation("out of place", "", "$", text))
            return seen
        op = self._pending.popleft()
        if isinstance(op, str):  # of no table
            seen.op = op
            return seen
        seen.op, seen.direction = op.name, op.direction
        seen.violations = check_reply(value, op)
        if op.name in _LASTING:
            self._lasting = op.name
        if op.name in _ACKNOWLEDGED:
            self._values_up = op.name
        if op.name == "register-worker" and self._registering:
            self._registering = False
            if isinstance(value, dict) and value.get("status") == "OK":
                self.phase = "worker-stream"
        return seen

    def _batch(self, way: Way, frames: Sequence[Buffer], nbytes: int) -> list[Seen]:
        """Messages of a stream."""
        direction = self._direction(way)
        try:
            raws: list[Any] = _RAW_LIST.decode(frames[0])
        except READ_ERRORS:
            raws = [frames[0]]
        found: list[Seen] = []
        for raw in raws:
            size = len(memoryview(raw))
            try:
                value, look = self._read(frames, raw)
            except RemoteProtocolError as error:
                found.append(self._unreadable(way, size, 0, str(error)))
                continue
            name = value.get("op") if isinstance(value, dict) else None
            seen = Seen(
                way, "stream", name if isinstance(name, str) else "", value, direction, size, 0
            )
            seen.nbytes += look.payload_nbytes
            seen.omitted = look.omitted
            if direction is not None:
                seen.violations = check_message(value, direction)
            found.append(seen)
        if found:
            found[0].n_frames = len(frames)
            found[0].nbytes += max(0, nbytes - sum(seen.nbytes for seen in found))
        return found

    def _direction(self, way: Way) -> Direction | None:
        """The table of what passes in a stream this way."""
        if self.phase == "worker-stream":
            return "worker_to_scheduler" if way == "up" else "scheduler_to_worker"
        if self.phase == "client-stream":
            return "client_to_scheduler" if way == "up" else "scheduler_to_client"
        return None

    # ------------------------------------------------------------------ how

    def _read(self, frames: Sequence[Buffer], data: Buffer) -> tuple[Any, _Look]:
        """The value, and what was noticed.

        Raises:
            RemoteProtocolError: it cannot be read.
        """
        reader: _StockReader | _InPlaceReader
        if self._encoding == IN_PLACE:
            reader = _InPlaceReader(frames, self._read_scalar)
        else:
            reader = _StockReader(frames, self._read_scalar)
        reader.look = look = _Look()
        return reader.read(data), look

    def _unreadable(self, way: Way, nbytes: int, n_frames: int, text: str) -> Seen:
        violation = Violation("unreadable", "", "$", text)
        return Seen(way, "unreadable", "", None, None, nbytes, n_frames, [violation])

    def _omitted(self, way: Way, nbytes: int, n_frames: int) -> list[Seen]:
        """A message too large to be looked at. What it asked or answered is guessed from where it stands."""
        seen = Seen(way, "value", "", None, None, nbytes, n_frames, [], True)
        if self.phase == "rpc" and way == "down" and self._pending:
            op = self._pending.popleft()
            seen.op, seen.kind = (op if isinstance(op, str) else op.name), "reply"
        elif self.phase == "rpc":
            self._lasting = self._lasting or "a request too large to be looked at"
        return [seen]

    def _note_peer(self, op: str, request: dict[str, Any]) -> None:
        """Who is it that asks?"""
        if op == "register-worker":
            self.peer = f"worker {request.get('name') or request.get('address')}"
        elif op == "register-client":
            self.peer = f"client {request.get('client')}"
        elif not self.peer:
            if op == "heartbeat_worker" or op == "unregister":
                self.peer = f"worker {request.get('address')}"
            elif op == "register_nanny":
                self.peer = f"nanny {request.get('address')}"
            elif isinstance(request.get("client"), str):
                self.peer = f"client {request['client']}"
