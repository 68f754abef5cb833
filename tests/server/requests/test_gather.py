"""Gather from workers that are busy, lost, broken or do not have the data."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from paceline.protocol.messages import GetData
from paceline.protocol.payload import Payload, payload_header, serialized_payload
from paceline.scheduler.core.stimuli import ReplicasAdded, ReplicasLost
from paceline.scheduler.server.peers.spool import Spool
from paceline.scheduler.server.requests import gather as gather_module
from paceline.scheduler.server.requests.gather import gather, merge_shards


def giving(**values: Any) -> Any:
    """Return a worker that has these values."""

    def answer(request: GetData) -> dict[str, Any]:
        found = {k: values[k] for k in request.keys if k in values}
        return {"status": "OK", "data": found}

    return answer


async def test_results_of_several_workers(server: Any) -> None:
    a = server.add_worker(1, giving(x=1, y=2))
    b = server.add_worker(2, giving(z=3))
    for key, address in (("x", a), ("y", a), ("z", b)):
        server.place(key, address)
    reply = await gather(server, ["x", "y", "z"])
    assert reply == {"status": "OK", "data": {"x": 1, "y": 2, "z": 3}}
    assert [(to, r.keys) for to, r in server.requests] == [(a, ["x", "y"]), (b, ["z"])]
    assert server.acknowledged == {a: "OK", b: "OK"}
    assert {"action": "gather", "count": 3} in server.events("all")


async def test_another_holder_replaces_a_lost_one(server: Any) -> None:
    def lost(request: Any) -> None:
        raise ConnectionResetError("gone")

    a = server.add_worker(1, lost)
    b = server.add_worker(2, giving(**{f"x{i}": i for i in range(20)}))
    for i in range(20):
        server.place(f"x{i}", a, b)
    reply = await gather(server, [f"x{i}" for i in range(20)])
    assert reply["status"] == "OK" and len(reply["data"]) == 20
    assert sum(to == a for to, _ in server.requests) == 1, "a lost worker gets one request"


async def test_a_worker_without_the_data_is_reported_and_the_key_is_missing(server: Any) -> None:
    a = server.add_worker(1, giving(x=1))
    server.place("x", a)
    server.place("y", a)
    reply = await gather(server, ["x", "y", "unknown"])
    assert reply["status"] == "error" and set(reply["keys"]) == {"y", "unknown"}
    assert ReplicasLost(a, ["y"]) in server.told
    assert "y" not in server.state.tasks or not server.holders("y")


async def test_busy_worker_is_retried(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_module, "BUSY_PAUSE_SECONDS", 0.001)
    times = [3]

    def busy(request: GetData) -> Any:
        times[0] -= 1
        return {"status": "busy"} if times[0] else giving(x=1)(request)

    server.place("x", server.add_worker(1, busy))
    assert await gather(server, ["x"]) == {"status": "OK", "data": {"x": 1}}


@pytest.mark.parametrize("reply", [None, 5, {}, {"status": "OK"}, {"status": "OK", "data": 5}])
async def test_another_holder_replaces_one_with_an_invalid_reply(server: Any, reply: Any) -> None:
    a = server.add_worker(1, lambda request: reply)
    server.place("x", a)
    assert await gather(server, ["x"]) == {"status": "error", "keys": ["x"]}
    b = server.add_worker(2, lambda request: {"status": "OK", "data": {"x": 7}})
    server.send_stimulus(ReplicasAdded(b, ["x"]))
    assert await gather(server, ["x"]) == {"status": "OK", "data": {"x": 7}}


async def test_a_worker_that_cannot_serialize(server: Any) -> None:
    def broken(request: Any) -> dict[str, Any]:
        return {"status": "uncaught-error", "exception_text": "TypeError()"}

    server.place("x", server.add_worker(1, broken))
    assert await gather(server, ["x"]) == {"status": "error", "keys": ["x"]}


async def test_no_worker_answers(server: Any) -> None:
    a, b = server.add_worker(1), server.add_worker(2)
    server.place("x", a, b)
    assert await gather(server, ["x"]) == {"status": "error", "keys": ["x"]}
    assert len(server.requests) == 2


async def test_no_keys(server: Any) -> None:
    assert await gather(server, []) == {"status": "OK", "data": {}}


async def test_tuple_keys_and_duplicates(server: Any) -> None:
    def answer(request: GetData) -> Any:
        return {"status": "OK", "data": dict.fromkeys(request.keys, 1)}

    server.place(("x", 0), server.add_worker(1, answer))
    assert (await gather(server, [("x", 0), ("x", 0)]))["data"] == {("x", 0): 1}


def serialized(cuts: list[list[bytes]], spool: Spool, **more: Any) -> Payload:
    """A payload whose buffers are cut, each piece received into the spool's file."""
    allocator = spool.allocator()
    frames = []
    for piece in (piece for cut in cuts for piece in cut):
        place = allocator.allocate(len(piece))
        place.write(memoryview(piece))
        frames.append(place.finish())
    counts = [len(cut) for cut in cuts]
    offsets = [sum(counts[:i]) for i in range(len(counts))]
    header = {
        "serializer": "pickle",
        "split-num-sub-frames": counts,
        "split-offsets": offsets,
        "compression": [None] * len(frames),
        "writeable": [True],
        **more,
    }
    return serialized_payload(header, frames)


def test_shards_of_large_buffers_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed.protocol.serialize import merge_and_deserialize

    monkeypatch.setattr(gather_module, "FILE_FRAME_NBYTES", 10)
    spool = Spool(0, str(tmp_path))
    data = pickle.dumps(b"x" * 1000)
    cuts = [[data[:10], data[10:500], data[500:]]]
    cut = serialized(cuts, spool)
    mended = merge_shards(cut, spool)
    assert [bytes(f) for f in mended.frames] == [data]
    assert payload_header(mended) == {
        "serializer": "pickle",
        "writeable": (True,),
        "num-sub-frames": 1,
    }
    assert merge_and_deserialize(payload_header(mended), list(mended.frames)) == b"x" * 1000
    assert merge_and_deserialize(payload_header(cut), list(cut.frames)) == b"x" * 1000
    two = merge_shards(serialized([[b"a", b"bc"], [b"def" * 9], [b"g", b"h", b"i"]], spool), spool)
    assert [bytes(f) for f in two.frames] == [b"abc", b"def" * 9, b"ghi"]


def test_invalid_shards_are_left_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather_module, "FILE_FRAME_NBYTES", 10)
    spool = Spool(0, str(tmp_path))
    compressed = serialized([[b"a" * 20, b"b"]], spool, compression=["lz4", None])
    assert merge_shards(compressed, spool) is compressed
    cut = serialized([[b"a" * 20, b"b"]], spool)
    elsewhere = Payload(cut.kind, cut.header, tuple(bytes(f) for f in cut.frames))
    assert merge_shards(elsewhere, spool) is elsewhere
    uncut = serialized_payload({"serializer": "pickle"}, [b"x" * 100])
    assert merge_shards(uncut, spool) is uncut
    assert merge_shards(5, spool) == 5
