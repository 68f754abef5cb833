"""Snapshots are read by other releases; what is left of a damaged one is not."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Worker
from paceline.protocol import messages as m
from paceline.protocol.connection import Connection
from paceline.protocol.framing import HANDSHAKE_LIMITS, FrameReader, pack_frames
from paceline.protocol.handshake import IN_PLACE
from paceline.protocol.payload import Payload
from paceline.scheduler import Scheduler
from paceline.scheduler.core.inspection.invariants import validate_state
from paceline.scheduler.core.stimuli import Stimulus
from paceline.scheduler.server.durable.log.segments import Log
from paceline.scheduler.server.durable.recovery.replay import RecordedState
from paceline.scheduler.server.durable.standby import snapshot
from paceline.scheduler.server.durable.standby.snapshot import SnapshotError
from paceline.scheduler.server.durable.standby.standby import capture
from paceline.scheduler.server.peers.connection_factory import OFFER, ConnectionFactory
from paceline.scheduler.server.peers.spool import Spool
from paceline.testing import Env

from .test_replay import described as described_state
from .test_replay import replayed, scheduler, slow, work_with_coordination, work_with_futures
from .test_standby import described

__all__ = ["scheduler"]


def written(root: Any) -> bytes:
    file = io.BytesIO()
    assert snapshot.write(file, root, {"release": "1"}) == len(file.getvalue())
    return file.getvalue()


def read(data: bytes) -> Any:
    root, about = snapshot.read(io.BytesIO(data), ConnectionFactory(None).accepted)
    assert about == {"release": "1"}
    return root


def complete(recorded: RecordedState) -> RecordedState:
    recorded.core.register_handlers()
    recorded.core.state.plugins = None
    return recorded


@pytest.mark.parametrize(
    "work", [work_with_futures, work_with_coordination], ids=lambda f: f.__name__
)
async def test_snapshot_of_a_live_scheduler(
    work: Callable[[Client], Any], scheduler: Scheduler, tmp_path: Path
) -> None:
    address = scheduler.address
    async with (
        Worker(address, nthreads=2),
        Client(address, asynchronous=True, set_as_default=True) as client,
    ):
        kept = await work(client)
        recorded = replayed(scheduler, tmp_path)
        server = scheduler.server
        assert server.durability is not None
        captured = capture(server, server.durability.start)
        found = complete(read(written(captured)))
        assert described(found) == described(recorded)
        assert described_state(found.core.state) == described_state(server.state)
        assert found.core.extensions.keys() == server.core.extensions.keys()
        validate_state(found.core.state)
        if work is work_with_coordination:
            kept.pop().cancel()


async def test_log_continues_a_snapshot(scheduler: Scheduler, tmp_path: Path) -> None:
    async with (
        Worker(scheduler.address, nthreads=1),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        futures = client.map(slow, range(10))
        await client.gather(futures)
        recorded = complete(read(written(replayed(scheduler, tmp_path))))
        n_before = len(list(Log(tmp_path)))
        more = client.map(slow, range(10, 20))
        await client.gather(more)
        whole = replayed(scheduler, tmp_path)
        continued = replayed(scheduler, tmp_path, recorded, n_before)
        assert described(continued) == described(whole)
        assert described_state(continued.core.state) == described_state(whole.core.state)


def test_long_chain_and_shared_objects() -> None:
    env = Env()
    env.checks = False
    env.client("alice")
    env.join("a")
    env.submit({i: [i - 1] if i else [] for i in range(30_000)}, [29_999])
    core = read(written(env.core))
    core.register_handlers()
    state = core.state
    assert state.loads._workers is state.workers
    assert state.tasks[7].dependencies == (state.tasks[6],)
    assert list(state.tasks) == list(env.state.tasks)
    message = m.TaskFinished(key=0, run_id=state.tasks[0].run_id, nbytes=8, typename="int")
    outputs = [each.handle(Stimulus("a", message, "x"), 1000.0) for each in (core, env.core)]
    assert repr(outputs[0].workers) == repr(outputs[1].workers) != "{}"


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("n_received", [0, 5, 20, 70_000, 200_000])
def test_message_that_was_being_received(n_received: int, in_file: bool) -> None:
    frames = [b"head", bytes(range(250)) * 1000, b"tail"]
    data = b"".join(pack_frames(frames))
    reader = FrameReader(first=HANDSHAKE_LIMITS)
    reader.allocate = Spool(0).allocator().allocate if in_file else None
    reader.admit()
    assert reader.feed(data[:n_received]) == []
    found = read(written(reader))
    assert [list(map(bytes, each)) for each in found.feed(data[n_received:])] == [frames]


def test_connection_keeps_its_phase_and_encoding() -> None:
    ours = Connection("listener", OFFER)
    ours.receive_frames(Connection("connector", OFFER).start())
    ours.become_stream("client")
    found, _ = snapshot.read(io.BytesIO(written(ours)))
    assert found.agreement.encoding == IN_PLACE
    assert (found.phase, found.agreement) == ("client-stream", ours.agreement)
    message = m.KeyInMemory(key="x")
    assert list(map(bytes, found.send([message]))) == list(map(bytes, ours.send([message])))


# other releases


@dataclass(slots=True)
class Thing:
    """A class whose attributes differ between releases."""

    name: str
    count: int = 7
    others: list[Any] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Fact:
    """A class that compares by value."""

    name: str
    count: int = 7


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the classes of this module classes of paceline."""
    for cls in (Thing, Fact):
        monkeypatch.setattr(cls, "__module__", "paceline.testing")
        monkeypatch.setattr(f"paceline.testing.{cls.__name__}", cls, raising=False)


def edited(data: bytes, old: str, new: str) -> bytes:
    """Replace a name, in a snapshot whose checksum is correct."""
    assert len(old) == len(new) and data.count(old.encode()) == 1, data
    header = snapshot._HEADER
    body = data[header.size :].replace(old.encode(), new.encode())
    magic, records, table, _ = header.unpack_from(data)
    return header.pack(magic, records, table, snapshot.zlib.crc32(body)) + body


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("cls", [Thing, Fact])
def test_attributes_of_other_releases(cls: type) -> None:
    data = written(cls("a", 3))
    assert (read(data).name, read(data).count) == ("a", 3)
    renamed = read(edited(data, "count", "total"))  # one is unknown, the other missing
    assert (renamed.name, renamed.count) == ("a", 7)
    with pytest.raises(SnapshotError, match=f"no attribute name of {cls.__name__}"):
        read(edited(data, "name", "term"))
    with pytest.raises(SnapshotError, match=r"this release has no paceline.testing.\w+ll"):
        read(edited(data, cls.__name__, cls.__name__[:-2] + "ll"))


@pytest.mark.usefixtures("ours")
def test_new_list_is_not_shared() -> None:
    first, second = read(edited(written([Thing("a"), Thing("b")]), "others", "fellow"))
    assert first.others == [] and first.others is not second.others


# damage


def test_damaged_snapshots_are_refused() -> None:
    data = written([Payload("pickled", b"x" * 100, (memoryview(b"frame"),))])
    assert read(data)[0].frames == (b"frame",)
    header = snapshot._HEADER.size
    for length in range(0, len(data), 7):
        with pytest.raises(SnapshotError):
            read(data[:length])
    for position in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        if not len(snapshot.MAGIC) <= position < 32:  # padding
            with pytest.raises(SnapshotError):
                read(bytes(damaged))
    with pytest.raises(SnapshotError, match="was not completed"):
        read(bytes(header) + data[header:])
    with pytest.raises(SnapshotError, match="has format 0, and this release knows format"):
        read(data.replace(snapshot.MAGIC, b"paceline-snapshot-0\n"))
    with pytest.raises(SnapshotError, match="its header contradicts"):
        read(data + b"x")


def test_table_contains_no_functions() -> None:
    records, table = pickle.dumps(1), pickle.dumps({"about": print})
    crc = snapshot.zlib.crc32(records + table)
    header = snapshot._HEADER.pack(snapshot.MAGIC, len(records), len(table), crc)
    with pytest.raises(SnapshotError, match="the table of the snapshot contains"):
        snapshot.read(io.BytesIO(header + records + table))


def test_state_that_cannot_be_pickled() -> None:
    with pytest.raises(SnapshotError, match="cannot be written"):
        written([lambda: None])
