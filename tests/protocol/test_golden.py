"""Bytes captured from stock peers (``capture.py``) are decoded to typed messages and encoded unchanged."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from paceline.protocol.catalogue import TABLES
from paceline.protocol.codec import Codec
from paceline.protocol.connection import (
    Batch,
    Connection,
    HandshakeDone,
    RequestReceived,
    Role,
    Value,
)
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.messages import (
    CloseStream,
    ComputeTask,
    InvalidMessage,
    Message,
    TaskFinished,
    UnknownMessage,
    UpdateGraph,
)
from paceline.protocol.payload import Payload, payload_pickle
from paceline.protocol.values import ValueReader, struct_to_dict

CAPTURES = Path(__file__).parent / "captures"
NAMES = sorted(path.name.removesuffix(".up.bin") for path in CAPTURES.glob("*.up.bin"))
STREAMS = {"register-worker": "worker", "register-client": "client"}


def messages_of(name: str, way: str) -> list[list[Any]]:
    """Return the frames of each message, read in pieces of a prime size."""
    data = (CAPTURES / f"{name}.{way}.bin").read_bytes()
    reader = FrameReader()
    messages = [m for i in range(0, len(data), 777) for m in reader.feed(data[i : i + 777])]
    assert reader.is_idle
    return messages


def replay(name: str, way: str) -> Iterator[tuple[list[Any], Any]]:
    """Yield each message's frames, and its event at the receiving end."""
    role: Role = "listener" if way == "up" else "connector"
    place = name.split("-")[0]
    connection = Connection(role, serves="scheduler_rpc" if place == "scheduler" else "worker_rpc")
    connection.start()
    stream = next((kind for op, kind in STREAMS.items() if f"scheduler-{op}" in name), None)
    for number, frames in enumerate(messages_of(name, way)):
        (event,) = connection.receive_frames(frames)
        yield frames, event
        # a client's stream begins with the reply to its registration, a worker's after it
        registered = (way == "up" and number == 1) or (
            way == "down" and number == (1 if stream == "worker" else 0)
        )
        if stream and registered:
            connection.become_stream(stream)  # type: ignore[arg-type]


def all_events(way: str) -> Iterator[tuple[str, list[Any], Any]]:
    for name in NAMES:
        for frames, event in replay(name, way):
            yield name, frames, event


def typed(event: Any) -> list[Any]:
    if isinstance(event, Batch):
        return event.messages
    return [event.message] if isinstance(event, RequestReceived) else []


def test_captures_exist() -> None:
    assert len(NAMES) >= 6
    assert sum(path.stat().st_size for path in CAPTURES.glob("*.bin")) < 150_000


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_unknown_or_invalid(name: str, way: str) -> None:
    for _, event in replay(name, way):
        for message in typed(event):
            assert not isinstance(message, UnknownMessage | InvalidMessage), message
        if isinstance(event, Value):
            assert way == "down" or event.value == "OK"


def test_most_ops_are_seen() -> None:
    seen = {
        m.op() for way in ("up", "down") for _, _, e in all_events(way) for m in typed(e)
    }  # fmt: skip
    assert len(seen) > 85
    for direction in ("worker_to_scheduler", "client_to_scheduler"):
        missing = set(TABLES[direction]) - seen
        assert missing <= {
            *("keep-alive", "reschedule", "request-refresh-who-has"),  # need a minute, or bad luck
            *("heartbeat-client", "update-data", "report-key"),
        }


@pytest.mark.parametrize("way", ["up", "down"])
def test_typed_messages_equal_the_bytes(way: str) -> None:
    """Each field is decoded as in the stock scheduler; absent fields have their defaults."""
    for name, frames, event in all_events(way):
        if not isinstance(event, Batch | RequestReceived):
            continue
        value = ValueReader(frames).read(frames[0])
        raws = value if isinstance(event, Batch) else [value]
        if isinstance(raws, dict):  # stock may leave the list out
            raws = [raws]
        for raw, message in zip(raws, typed(event), strict=True):
            offer = struct_to_dict(message)
            for field, x in raw.items():
                if field == message.EXTRA_FIELD or field not in message.__struct_fields__:
                    assert field == "op" or message.EXTRA_FIELD or name, (name, field)
                    if field != "op":
                        assert message.EXTRA_FIELD, (name, message.op(), field)
                    continue
                y = set(offer[field]) if isinstance(x, set) else offer[field]
                assert plain(y) == plain(x), (name, message.op(), field)


def plain(value: Any) -> Any:
    """Return a comparable form: container types unified, sets sorted."""
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    if isinstance(value, set):
        return sorted(map(repr, value))
    if hasattr(value, "__struct_fields__"):
        return plain(struct_to_dict(value))
    return value


@pytest.mark.parametrize("way", ["up", "down"])
def test_batches_survive_a_round_trip(way: str) -> None:
    for name, _, event in all_events(way):
        if isinstance(event, Batch):
            connection, _ = stream_pair(way, "worker" if "worker" in name else "client")
            (again,) = connection.receive_frames(connection.codec.encode(event.messages))
            assert again == event


def stream_pair(way: str, kind: Any) -> tuple[Connection, Connection]:
    pair = Connection("listener"), Connection("connector")
    hello = [connection.start() for connection in pair]
    pair[0].receive_frames(hello[1])
    pair[1].receive_frames(hello[0])
    for connection in pair:
        connection.become_stream(kind)
    return pair if way == "up" else (pair[1], pair[0])


def test_payloads_are_forwarded_unchanged() -> None:
    """Header and frames of every serialized value are the same bytes before and after."""
    count = 0
    for way in ("up", "down"):
        for _, frames, event in all_events(way):
            value = event.messages if isinstance(event, Batch) else typed(event)
            if isinstance(event, Value):
                value = event.value
            again = Connection("listener").codec.encode(value)
            before = [f for p in payloads(value) for f in (p.header, *p.frames)]
            assert again[1:] == before
            assert sorted(map(bytes, frames[1:])) == sorted(map(bytes, before))
            count += len(before)
    assert count > 100


def payloads(value: Any) -> Iterator[Payload]:
    if isinstance(value, Payload):
        yield value
    elif isinstance(value, dict):
        for x in value.values():
            yield from payloads(x)
    elif isinstance(value, list | tuple):
        for x in value:
            yield from payloads(x)
    elif isinstance(value, Message):
        for name in value.__struct_fields__:
            yield from payloads(getattr(value, name))


def test_encoded_bytes_are_identical() -> None:
    """Captured frames, packed again, equal what stock wrote (which joins and splits them differently)."""
    for name in NAMES:
        for way in ("up", "down"):
            data = (CAPTURES / f"{name}.{way}.bin").read_bytes()
            again = b"".join(b"".join(pack_frames(frames)) for frames in messages_of(name, way))
            assert len(again) == len(data)
            assert FrameReader().feed(again) == FrameReader().feed(data)


def test_the_handshake() -> None:
    """The handshakes that stock peers announce, on which the choices in ``handshake.py`` are based."""
    for way in ("up", "down"):
        for name, frames, event in all_events(way):
            if isinstance(event, HandshakeDone):
                offer = ValueReader(frames).read(frames[0])
                assert set(offer) == {"compression", "python", "pickle-protocol"}
                assert offer["compression"] is None
                # the stock scheduler announces 4 when it connects, and all others announce 5
                opened_by_scheduler = way == "up" and name.startswith("worker")
                assert offer["pickle-protocol"] == (4 if opened_by_scheduler else 5)
                assert event.agreement.pickle_protocol == offer["pickle-protocol"]


def test_replies_match_the_catalogue() -> None:
    """Each request is followed by its reply; no field is unknown or of another type."""
    seen = set()
    for name in NAMES:
        requests = [e.message for _, e in replay(name, "up") if isinstance(e, RequestReceived)]
        values = [(f, e.value) for f, e in replay(name, "down") if isinstance(e, Value)]
        if "register" in name:
            requests, values = requests[:1], values[:1]
        elif len(requests) != len(values):  # a large one was left out
            continue
        table = TABLES["scheduler_rpc" if name.startswith("scheduler") else "worker_rpc"]
        for request, (frames, value) in zip(requests, values, strict=False):
            reply = table[request.op()].reply
            if reply is None:
                continue
            read = Codec().decode_value(frames, reply)
            known = {field.encode_name for field in msgspec.structs.fields(reply)}
            assert set(value) <= known, (request.op(), set(value) - known)
            assert plain(read.status) == value["status"]
            seen.add(reply)
    assert len(seen) >= 5, seen


def find(kind: type, way: str) -> Iterator[Any]:
    for _, _, event in all_events(way):
        for message in typed(event):
            if type(message) is kind:
                yield message


def test_content_of_captures() -> None:
    finished = list(find(TaskFinished, "up"))
    assert len(finished) > 5
    assert all(m.run_id >= 0 and m.nbytes and m.startstops for m in finished)
    assert ("part", 0, ("deep", 1)) in {m.key for m in finished} | {
        key for m in find(ComputeTask, "down") for key in m.who_has
    } | {m.key for m in find(ComputeTask, "down")}
    computes = list(find(ComputeTask, "down"))
    assert all(m.run_spec is not None and m.run_spec.kind == "pickled" for m in computes)
    assert any(m.who_has for m in computes)
    graphs = list(find(UpdateGraph, "up"))
    pickled, _ = payload_pickle(graphs[0].expr_ser)
    assert pickled.startswith(b"\x80\x05")
    assert operator.add.__name__.encode() in pickled
    assert isinstance(graphs[0].keys, list)
    assert len(list(find(CloseStream, "up"))) >= 1
