"""Two Connections in memory: all phases, and messages that are invalid in each phase."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
from paceline.protocol.connection import (
    PHASES,
    Batch,
    Connection,
    HandshakeDone,
    Move,
    Phase,
    RequestReceived,
    Value,
)
from paceline.protocol.errors import LocalProtocolError, RemoteProtocolError
from paceline.protocol.framing import FrameReader, pack_frames
from paceline.protocol.handshake import Agreement, local_offer, negotiate
from paceline.protocol.messages import (
    CloseRequest,
    CloseStream,
    ComputeTask,
    GetData,
    Identity,
    InvalidMessage,
    KeepAlive,
    KeyInMemory,
    RegisterClient,
    RegisterWorker,
    StreamStart,
    TaskFinished,
    UnknownMessage,
)
from paceline.protocol.payload import pickled_payload


class Pair:
    """Return a scheduler's end and a peer's end that exchange bytes."""

    def __init__(self, **options: Any) -> None:
        self.listener = Connection("listener", **options)
        self.connector = Connection("connector")
        self.readers = {id(self.listener): FrameReader(), id(self.connector): FrameReader()}

    def deliver(self, frames: list[Any], to: Connection) -> list[Any]:
        """Return the events at the other end, which receives the bytes one at a time."""
        data = b"".join(pack_frames(frames))
        reader = self.readers[id(to)]
        messages = [m for i in range(len(data)) for m in reader.feed(data[i : i + 1])]
        return [event for message in messages for event in to.receive_frames(message)]

    def up(self, value: Any) -> list[Any]:
        return self.deliver(self.connector.send(value), self.listener)

    def down(self, value: Any) -> list[Any]:
        return self.deliver(self.listener.send(value), self.connector)

    def shake(self) -> Pair:
        for one, other in ((self.listener, self.connector), (self.connector, self.listener)):
            (event,) = self.deliver(one.start(), other)
            assert type(event) is HandshakeDone
        return self


def test_phases_of_a_worker() -> None:
    pair = Pair().shake()
    (event,) = pair.up(RegisterWorker(address="tcp://a:1", reply=False))
    assert event == RequestReceived(RegisterWorker(address="tcp://a:1", reply=False), False, False)
    pair.listener.become_stream("worker")
    assert pair.down({"status": "OK", "worker-plugins": {}}) == [
        Value({"status": "OK", "worker-plugins": {}})
    ]
    pair.connector.become_stream("worker")
    compute = ComputeTask(
        **{"key": ("x", 1), "run_id": 1, "priority": (0,), "stimulus_id": "s", "nbytes": {}},
        **{"who_has": {}, "run_spec": pickled_payload(b"spec", [b"buffer"])},
    )
    assert pair.down([compute, compute]) == [Batch([compute, compute])]
    finished = TaskFinished(key=("x", 1), run_id=1, nbytes=1)
    assert pair.up([finished]) == [Batch([finished])]
    assert pair.up(KeepAlive()) == [Batch([KeepAlive()])]  # a stream has lists only
    assert pair.connector.phase == pair.listener.phase == "worker-stream"
    assert pair.up([KeepAlive(), CloseStream()]) == [Batch([KeepAlive(), CloseStream()])]
    assert pair.connector.phase == pair.listener.phase == "closed"


def test_phases_of_a_client() -> None:
    pair = Pair().shake()
    (event,) = pair.up(Identity())
    assert event == RequestReceived(Identity(), True, False)
    assert pair.down({"type": "Scheduler", "workers": {}}) == [
        Value({"type": "Scheduler", "workers": {}})
    ]
    pair.up(RegisterClient(client="c", reply=False))
    pair.listener.become_stream("client")
    pair.connector.become_stream("client")
    frames = pair.listener.send(StreamStart())
    assert frames == [b"\x91\x81\xa2op\xacstream-start"]  # alone in its list
    assert pair.deliver(frames, pair.connector) == [Batch([StreamStart()])]
    assert pair.down([KeyInMemory(key="x")]) == [Batch([KeyInMemory(key="x")])]


def test_connecting_to_a_worker() -> None:
    pair = Pair(serves="worker_rpc").shake()
    request = GetData(keys=["x", ("y", 1)], who=None)
    assert pair.up(request) == [RequestReceived(request, True, False)]
    closed = pickled_payload(b"p")
    assert pair.down({"status": "OK", "data": {"x": closed}}) == [
        Value({"status": "OK", "data": {"x": closed}})
    ]
    assert pair.up("OK") == [Value("OK")]  # the acknowledgement that get_data wants
    assert pair.up(CloseRequest(reply=False)) == [
        RequestReceived(CloseRequest(reply=False), False, False)
    ]
    assert pair.connector.phase == "closed"


def test_invalid_requests() -> None:
    pair = Pair().shake()
    for value in ("OK", ["x"], {"status": "ok"}, {"op": 5}, None):
        (event,) = pair.up(value)
        assert type(event) is Value
    (event,) = pair.up({"op": "unknown-op", "x": 1, "reply": False})
    assert type(event.message) is UnknownMessage and event.reply is False
    (event,) = pair.up({"op": "identity", "n_workers": "x", "close": True})
    assert type(event.message) is InvalidMessage and (event.reply, event.close) == (True, True)


def test_no_messages_after_the_end() -> None:
    pair = Pair().shake()
    for end in (pair.listener, pair.connector):
        end.become_stream("worker")
    late = [CloseStream(), TaskFinished(key="x")]
    (event,) = pair.deliver(pair.connector.codec.encode(late), pair.listener)
    assert event == Batch([CloseStream()])
    assert pair.listener.receive_frames([b"\x90"]) == []
    with pytest.raises(LocalProtocolError):
        pair.listener.send([KeepAlive()])
    with pytest.raises(LocalProtocolError):
        pair.listener.become_stream("client")


def test_messages_that_must_not_be_sent() -> None:
    pair = Pair()
    with pytest.raises(LocalProtocolError, match="handshake"):
        pair.connector.send(Identity())
    with pytest.raises(LocalProtocolError):
        pair.connector.become_stream("worker")
    pair.shake()
    with pytest.raises(LocalProtocolError, match="already"):
        pair.listener.start()
    with pytest.raises(LocalProtocolError, match="answers"):
        pair.listener.send(Identity())
    for end in (pair.listener, pair.connector):
        end.become_stream("worker")
    with pytest.raises(LocalProtocolError, match="TaskFinished cannot"):
        pair.listener.send([TaskFinished(key="x")])
    with pytest.raises(LocalProtocolError, match="KeyInMemory cannot"):
        pair.listener.send([KeyInMemory(key="x")])
    with pytest.raises(LocalProtocolError, match="int cannot"):
        pair.listener.send([5])
    assert pair.down([{"op": "of-a-plugin"}])[0].messages[0].op == "of-a-plugin"


def test_the_table_of_phases() -> None:
    """``closed`` is final, and every phase after the handshake can end."""
    phases, moves = get_args(Phase), get_args(Move)
    assert set(PHASES) <= set(itertools.product(phases, moves))
    assert {phase for phase, _ in PHASES} == set(phases)
    assert set(PHASES.values()) | {"handshake"} == set(phases)
    for phase in set(phases) - {"handshake"}:
        assert PHASES[phase, "close"] == "closed"
    assert {PHASES["closed", move] for move in moves if ("closed", move) in PHASES} == {"closed"}


# ------------------------------------------------------------------ handshake


def test_announced_handshake() -> None:
    """The defaults are no codec, and a pickle protocol that every supported peer reads."""
    offer = local_offer()
    assert offer["compression"] is None
    assert offer["pickle-protocol"] == 5
    assert Connection("listener").start() == Connection("connector").start()


def test_negotiation() -> None:
    ours = local_offer()
    theirs = {**ours, "pickle-protocol": 4, "python": (3, 10, 0)}
    assert negotiate(ours, theirs) == Agreement(4)
    assert negotiate(ours, {"pickle-protocol": 9, "python": "3.11"}) == Agreement(5)


@pytest.mark.parametrize(
    "sent",
    [None, 5, [], {}, {"compression": None}, {"pickle-protocol": "5"}, {"pickle-protocol": -1}]
    + [{"op": "identity"}, {"pickle-protocol": True}],
)
def test_bad_handshakes(sent: Any) -> None:
    pair = Pair()
    with pytest.raises(RemoteProtocolError):
        pair.listener.receive_frames(pair.connector.codec.encode(sent))
    assert pair.listener.phase == "handshake"
