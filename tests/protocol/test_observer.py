"""The observer reports each message, its type and its violations, with bounded memory."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.protocol.catalogue import TABLES
from paceline.protocol.checked_connection import CheckedConnection
from paceline.protocol.codec import Codec
from paceline.protocol.connection import Connection
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import FrameReader, Limits, pack_frames
from paceline.protocol.handshake import local_offer
from paceline.protocol.messages import (
    ComputeTask,
    GetData,
    HeartbeatWorker,
    RegisterClient,
    RegisterWorker,
    TaskFinished,
)
from paceline.protocol.observer import ObservedMessage, Observer
from paceline.protocol.payload import pickled_payload
from paceline.protocol.sniffing import OmittedFrame, SniffingFrameReader, wire_nbytes
from paceline.protocol.validation import check_message, check_reply, is_key

CAPTURES = Path(__file__).parent / "captures"
HELLO = Codec().encode(local_offer())


def greeted(*serves: Any) -> Observer:
    observer = Observer(serves or ("scheduler_rpc",))
    (one,), (two,) = observer.observe("down", HELLO), observer.observe("up", HELLO)
    assert one.kind == two.kind == "handshake" and not one.violations + two.violations
    assert observer.phase == "rpc"
    return observer


def say(observer: Observer, way: Any, value: Any) -> ObservedMessage:
    (seen,) = observer.observe(way, Codec().encode(value))
    return seen


def kinds(seen: ObservedMessage) -> list[tuple[str, str]]:
    return [(violation.kind, violation.path) for violation in seen.violations]


# ------------------------------------------------------------------ following a connection


@pytest.mark.parametrize(
    "name", sorted(p.name[:-7] for p in CAPTURES.glob("scheduler-*.up.bin")), ids=str
)
def test_stock_peers_match_the_catalogue(name: str) -> None:
    """Captured connections to a stock scheduler: one request, one reply, then the stream."""
    observer = Observer()
    up, down = (
        SniffingFrameReader().feed((CAPTURES / f"{name}.{way}.bin").read_bytes())
        for way in ("up", "down")
    )
    found: list[str] = []
    for pair in zip_longest(up, down):
        for way, frames in zip(("up", "down"), pair, strict=True):
            if frames is not None:
                for seen in observer.observe(way, frames):  # type: ignore[arg-type]
                    assert seen.kind != "unreadable"
                    found += map(str, seen.violations)
    assert found == []
    assert observer.peer


def test_requests_and_their_replies() -> None:
    observer = greeted()
    asked = say(observer, "up", HeartbeatWorker(address="tcp://a:1"))
    assert (asked.kind, asked.op, observer.peer) == (
        "request",
        "heartbeat_worker",
        "worker tcp://a:1",
    )
    answered = say(
        observer, "down", {"status": "OK", "time": 1.0, "heartbeat-interval": 1, "more": 1}
    )
    assert (answered.kind, answered.op) == ("reply", "heartbeat_worker")
    assert kinds(answered) == [("unknown field", "$.more")]
    assert kinds(say(observer, "down", "OK")) == [("out of place", "$")]
    assert kinds(say(observer, "up", "OK")) == [("out of place", "$")]


def test_error_is_a_valid_reply_to_any_request() -> None:
    observer = greeted()
    say(observer, "up", HeartbeatWorker(address="tcp://a:1"))
    failure = {
        "status": "uncaught-error",
        "exception": None,
        "traceback": None,
        "exception_text": "",
    }
    assert kinds(say(observer, "down", failure)) == []


def test_worker_becomes_a_stream_when_it_is_accepted() -> None:
    for status, phase in (("OK", "worker-stream"), ("error", "rpc")):
        observer = greeted()
        assert not say(
            observer, "up", RegisterWorker(address="tcp://a:1", name="x", reply=False)
        ).violations
        assert observer.phase == "rpc"
        assert say(observer, "down", {"status": status, "time": 1.0}).op == "register-worker"
        assert observer.phase == phase
    assert observer.peer == "worker x"


def test_a_client_becomes_a_stream_at_once() -> None:
    observer = greeted()
    say(observer, "up", RegisterClient(client="c", reply=False))
    seen = say(observer, "down", [{"op": "stream-start"}])
    assert (seen.kind, seen.op, seen.direction) == ("stream", "stream-start", "scheduler_to_client")
    assert not seen.violations


def test_get_data_is_acknowledged() -> None:
    observer = greeted("worker_rpc", "nanny_rpc")
    say(observer, "up", GetData(keys=["x"]))
    say(observer, "down", {"status": "OK", "data": {"x": pickled_payload(b"1")}})
    seen = say(observer, "up", "OK")
    assert (seen.kind, seen.op, seen.violations) == ("value", "get_data", [])


def test_request_inside_a_broadcast_is_checked() -> None:
    observer = greeted()
    request = {"op": "broadcast", "msg": {"op": "get_logs", "n": "x"}, "workers": None}
    outer, inner = observer.observe("up", Codec().encode(request))
    assert not outer.violations
    assert (inner.kind, inner.direction, kinds(inner)) == (
        "inner",
        "worker_rpc",
        [("wrong type", "$.n")],
    )


def test_in_place_encoding_is_followed() -> None:
    offer = local_offer(in_place=True)
    observer, ends = Observer(), (Connection("listener", offer), Connection("connector", offer))
    hellos = ends[0].start(), ends[1].start()
    for way, end, hello in (("down", ends[1], hellos[0]), ("up", ends[0], hellos[1])):
        observer.observe(way, hello)  # type: ignore[arg-type]
        end.receive_frames(hello)
    frames = ends[1].send({"op": "echo", "data": [pickled_payload(b"p", [b"123"])]})
    (seen,) = observer.observe("up", frames)
    assert seen.value["data"] == (pickled_payload(b"p", [b"123"]),)
    assert not seen.violations


def test_bytes_of_a_batch_are_divided_among_its_messages() -> None:
    observer = greeted()
    say(observer, "up", RegisterClient(client="c", reply=False))
    frames = Codec().encode(
        [{"op": "key-in-memory", "key": "x"}, {"op": "event", "event": pickled_payload(b"1" * 500)}]
    )
    seen = observer.observe("down", frames)
    assert sum(s.nbytes for s in seen) == len(b"".join(pack_frames(frames))) == wire_nbytes(frames)
    assert seen[1].nbytes > 500 and [s.n_frames for s in seen] == [2, 0]


def test_undecodable_messages() -> None:
    observer = greeted()
    (seen,) = observer.observe("up", [b"\xc1"])
    assert (seen.kind, kinds(seen)) == ("unreadable", [("unreadable", "$")])
    (seen,) = observer.observe("up", [])
    assert seen.kind == "unreadable"
    (seen,) = Observer().observe("up", Codec().encode([1]))
    assert kinds(seen) == [("wrong type", "$")]


# ------------------------------------------------------------------ validation


GOOD: dict[str, Any] = {"op": "task-finished", "key": ("x", 1), "nbytes": 1, "startstops": ({"action": "compute", "start": 1.0, "stop": 2},)}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"op": "no-such"}, [("unknown op", "$.op")]),
        ({"op": 1}, [("wrong type", "$")]),
        ({"extra": 1, "other": 2}, [("unknown field", "$.extra"), ("unknown field", "$.other")]),
        ({"nbytes": 3.0}, [("wrong type", "$.nbytes")]),
        ({"nbytes": "3", "run_id": None}, [("wrong type", "$.nbytes"), ("wrong type", "$.run_id")]),
        ({"key": None}, [("wrong type", "$.key")]),
        ({"key": ("x", {"y": 1})}, [("wrong type", "$.key")]),
        ({"thread": pickled_payload(b"1")}, [("wrong type", "$.thread")]),
        ({"startstops": [{"action": "x"}]}, [("wrong type", "$.startstops[0]")]),
        (
            {"startstops": ({"action": "x", "start": 1, "stop": 2, "no": 3},)},
            [("unknown field", "$.startstops[0].no")],
        ),
    ],
)
def test_violations_of_a_message(change: dict[str, Any], expected: Any) -> None:
    found = check_message({**GOOD, **change}, "worker_to_scheduler")
    assert [(violation.kind, violation.path) for violation in found] == expected
    assert all(str(violation) for violation in found)


def test_missing_fields() -> None:
    found = check_message({"op": "free-keys"}, "scheduler_to_worker")
    assert [(v.kind, v.path) for v in found] == [
        ("missing field", "$.keys"),
        ("missing field", "$.stimulus_id"),
    ]


def test_text_is_not_binary() -> None:
    """msgspec would accept base64 for bytes."""
    found = check_reply(1, TABLES["scheduler_rpc"]["heartbeat_worker"])
    assert [v.kind for v in found] == ["wrong type"]


def test_keys() -> None:
    assert all(map(is_key, ("", b"", 1, 1.5, (), ("x", (1, b"y")))))
    assert not any(map(is_key, (None, [], ("x", None), {"a": 1})))


# ------------------------------------------------------------------ sent messages


def test_a_checked_connection_reports_what_it_sends() -> None:
    reports: list[str] = []
    ours = CheckedConnection(
        "listener", report=lambda violation, seen: reports.append(str(violation))
    )
    theirs = Connection("connector")
    for frames in (ours.start(),):
        theirs.receive_frames(frames)
    ours.receive_frames(theirs.start())
    ours.receive_frames(theirs.send(HeartbeatWorker(address="a")))
    ours.send({"status": "OK", "time": "now"})
    assert len(reports) == 1 and "heartbeat_worker (reply) $.time" in reports[0]
    ours.receive_frames(theirs.send(RegisterWorker(address="a", reply=False)))
    ours.send({"status": "OK", "time": 1.0, "heartbeat-interval": 1.0, "worker-plugins": {}})
    ours.become_stream("worker")
    theirs.become_stream("worker")
    reports.clear()
    ours.receive_frames(theirs.send([TaskFinished(key="x", nbytes="wrong, but not ours")]))  # type: ignore[arg-type]
    assert reports == []
    task = ComputeTask(key="x", run_id=1.5, priority=(1,), stimulus_id="", who_has={}, nbytes={}, run_spec=None)  # type: ignore[arg-type]  # fmt: skip
    ours.send([task])
    assert len(reports) == 1 and "$.run_id" in reports[0]


def test_checked_connection_that_connected() -> None:
    reports: list[str] = []
    ours = CheckedConnection(
        "connector", report=lambda violation, seen: reports.append(str(violation))
    )
    theirs = Connection("listener", serves="nanny_rpc")
    hello, answer = theirs.start(), ours.start()
    ours.receive_frames(hello)
    theirs.receive_frames(answer)
    ours.send({"op": "kill", "timeout": 1})
    ours.send({"op": "no-such"})
    assert [text.split(":")[0] for text in reports] == ["unknown op"]


# ------------------------------------------------------------------ sniffing


@given(st.lists(st.lists(st.binary(max_size=60), max_size=5), max_size=4), st.integers(1, 40))
def test_sniffed_frames_equal_those_of_a_peer(messages: list[list[bytes]], step: int) -> None:
    data = b"".join(b"".join(pack_frames(frames)) for frames in messages)
    sniffer = SniffingFrameReader()
    got = [m for i in range(0, len(data), step) for m in sniffer.feed(data[i : i + step])]
    assert got == messages == FrameReader().feed(data)
    assert sniffer.is_idle


@given(
    st.lists(st.lists(st.integers(0, 90), max_size=6), max_size=4), st.integers(1, 300)
)  # fmt: skip
def test_oversized_parts_are_omitted(messages: list[list[int]], step: int) -> None:
    data = b"".join(b"".join(pack_frames([bytes(n) for n in sizes])) for sizes in messages)
    sniffer = SniffingFrameReader(kept_nbytes=100)
    got = [m for i in range(0, len(data), step) for m in sniffer.feed(data[i : i + step])]
    assert [[getattr(f, "omitted_nbytes", len(f)) for f in m] for m in got] == messages
    for frames in got:
        assert sum(map(len, frames)) <= 100
        left = 100
        for frame in frames:
            if not isinstance(frame, OmittedFrame):
                left -= len(frame)
            else:
                assert frame.omitted_nbytes > left
    assert sum(map(wire_nbytes, got)) == len(data)


@pytest.mark.parametrize(
    "words", [(0, 1, 1), (99, 1, 1), (8, 2**40), (2**60, 2**22 + 1), (16 + 2**40, 1, 2**40)]
)
def test_invalid_preludes_of_sniffed_bytes(words: tuple[int, ...]) -> None:
    data = b"".join(word.to_bytes(8, "little") for word in words)
    with pytest.raises(RemoteProtocolError):
        SniffingFrameReader(Limits(max_message_nbytes=2**30)).feed(data)


def test_placeholders_of_omitted_frames() -> None:
    """Header, frames, or all of a message may be too large; none of it is a violation."""
    small, large = pickled_payload(b"1", [bytes(5000)]), pickled_payload(bytes(5000))
    for value in ({"op": "echo", "data": small}, {"op": "echo", "data": large}):
        observer = greeted()
        (frames,) = SniffingFrameReader(kept_nbytes=1000).feed(
            b"".join(pack_frames(Codec().encode(value)))
        )
        (seen,) = observer.observe("up", frames)
        assert seen.omitted and not seen.violations and seen.nbytes > 5000
    observer = greeted()
    whole = b"".join(pack_frames([msgpack.packb({"op": "echo", "data": bytes(5000)})]))
    (frames,) = SniffingFrameReader(kept_nbytes=1000).feed(whole)
    (seen,) = observer.observe("up", frames)
    assert seen.omitted and not seen.violations
    assert not say(observer, "down", 1).violations, "the reply to a request that was not read"
