"""Journals can be read back, also from a truncated file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.protocol.payload import Payload
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.stimuli import Stimulus
from paceline.scheduler.server.journal.journal import (
    FORMAT_VERSION,
    JournalReader,
    JournalWriter,
)
from paceline.scheduler.server.journal.replay import replay
from paceline.scheduler.server.journal.values import (
    JournalError,
    StubBytes,
    ValueCodec,
    flatten,
    unflatten,
)
from paceline.scheduler.server.runtime import build

VALUES: list[Any] = [
    None,
    (1, ("x", 0), [2, (3,)]),
    {("x", 1): [1.5, "s", b"b"], "k": {(): None}},
    {1, 2},
    2**70,
    Payload("pickled", b"head", (b"frame",)),
    m.TaskFinished(key=("x", 1), stimulus_id="s", metadata={"a": (1,)}, startstops=[]),
    stimuli.WorkerRemoved("tcp://a", expected=True),
    stimuli.GraphChunk(
        graph_id=1,
        keys=[("x", 0), "y"],
        groups=[0, 1],
        new_groups=[("x", "x"), ("y", "y")],
        dependencies=[[], [0]],
        new_externals=[],
        run_specs=[b"a", b"b"],
        priorities=[0, 1],
        new_annotations=[stimuli.AnnotationSet(value={"a": 1}, retries=2)],
        annotations={1: 0},
    ),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_round_trip(value: Any) -> None:
    codec = ValueCodec()
    back = codec.unpack(codec.pack(value))
    assert back == value
    assert type(back) is type(value)


def nested(depth: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


WRAPS = {
    "list": lambda v: [v],
    "tuple": lambda v: (v,),
    "dict": lambda v: {"a": v},
    "mixed": lambda v: {"a": [(0, v, ())], ("b",): {}},
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("depth", [15, 16, 17, 300, 510, 511, 512, 1023, 1024, 1025, 20_000])
def test_values_may_be_nested_to_any_depth(depth: int, wrap: Any, tmp_path: Path) -> None:
    value = nested(depth, wrap)
    message = m.TaskFinished(key="x", stimulus_id="s", metadata={"a": value}, startstops=[])
    write(tmp_path / "j", [message, message])
    (first, second), ending = read(tmp_path / "j")
    assert ending == "closed"
    found = first.metadata["a"]
    assert flatten(found) == flatten(value)  # comparing the values themselves recurses
    codec = ValueCodec()
    assert codec.pack(second) == codec.pack(message)


def test_flat_values_are_restored() -> None:
    for value in [*VALUES, [], (), {}, [[], ((1, 2), [3]), {"a": {}, (1,): ()}]]:
        assert unflatten(flatten(value)) == value
    with pytest.raises(ValueError):
        unflatten([])


def test_long_bytes_become_stubs() -> None:
    codec = ValueCodec()
    payload = Payload("serialized", b"h", (bytes(10_000), b"short"))
    back = codec.unpack(codec.pack(payload))
    assert type(back.frames[0]) is StubBytes
    assert back.frames[1] == b"short"
    # a stub hashes as the bytes it replaces, so outputs of a replay have the hash of the run
    assert codec.pack(back) == codec.pack(payload)


def write(path: Path, messages: list[Any]) -> None:
    writer = JournalWriter(path, SchedulerConfig(allowed_failures=7))
    for i, message in enumerate(messages):
        writer.before_turn(Stimulus("src", message, f"s-{i}", 0), float(i))
        writer.before_flush()
    writer.close()


def read(path: Path) -> tuple[list[Any], str]:
    reader = JournalReader(path)
    assert reader.config.allowed_failures == 7
    entries = [e.stimulus.message for e in reader if e.stimulus is not None]
    return entries, reader.ending


def test_journal_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "j"
    messages = [stimuli.Tick(), m.KeepAlive(), stimuli.ClientRemoved("c")]
    write(path, messages)
    assert read(path) == (messages, "closed")


def test_truncated_journal_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "j"
    messages: list[Any] = [stimuli.ClientRemoved("c" * 100), stimuli.WorkerRemoved("w" * 100)]
    write(path, messages)
    data = path.read_bytes()
    whole = len(data)
    counts = set()
    for size in range(whole - 300, whole):
        path.write_bytes(data[:size])
        got, ending = read(path)
        assert got == messages[: len(got)]
        assert ending in ("its last record is torn", "the process ended without closing it")
        counts.add(len(got))
    assert counts >= {1, 2}
    path.write_bytes(b"something else")
    with pytest.raises(JournalError):
        JournalReader(path)


@pytest.mark.parametrize("damage", [b"\0", b"\xff"])
def test_damage_before_the_end_is_an_error(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "j"
    write(path, [stimuli.ClientRemoved("c" * 100), stimuli.WorkerRemoved("w" * 100)])
    data = path.read_bytes()
    value = data.index(b"w" * 100)
    for start in (value, value - 40):  # the latter with the length of the record
        path.write_bytes(data[:start] + damage * 60 + data[start + 60 :])
        with pytest.raises(JournalError, match=r"damaged at byte .* --until 1 replays"):
            read(path)
        report = replay(path, until=1)
        assert (report.n_stimuli, report.ending) == (1, "stopped after 1 stimuli")


def test_replay_up_to_a_stimulus_whose_writes_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path, SchedulerConfig())
    for name in ("a", "b"):
        stimulus = Stimulus("src", stimuli.ClientRemoved(name), name, 0)
        writer.before_turn(stimulus, 1.0)
        writer.turn_writes.made.append((1, m.KeepAlive()))
        writer.after_turn(stimulus)
        writer.before_flush()
    writer.close()
    data = bytearray(path.read_bytes())
    data[data.rindex(b"\xa1w")] ^= 1
    path.write_bytes(data)
    for until in (None, 2):
        with pytest.raises(JournalError, match=r"damaged at byte .* --until 1 replays"):
            replay(path, until=until)
    assert replay(path, until=1).n_stimuli == 1


@pytest.mark.parametrize(
    ("version", "text"),
    [(FORMAT_VERSION - 1, "an older release"), (FORMAT_VERSION + 1, "a newer release")],
)
def test_a_journal_of_another_format_version_is_refused(
    tmp_path: Path, version: int, text: str
) -> None:
    path = tmp_path / "j"
    write(path, [stimuli.Tick()])
    _, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(b"paceline-journal-%d\n" % version + rest)
    with pytest.raises(JournalError, match=f"written by {text} .* Replay it with that release"):
        JournalReader(path)


def test_journal_stops_at_its_limit(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path, SchedulerConfig(allowed_failures=7), max_nbytes=5_000)
    for i in range(1000):
        writer.before_turn(Stimulus("", stimuli.ClientRemoved("c"), f"s-{i}", 0), 1.0)
        writer.before_flush()
    got, ending = read(path)
    assert 0 < len(got) < 1000
    assert "size limit" in ending
    assert f"ends after {len(got)} stimuli" in caplog.text


def session() -> list[Stimulus]:
    """Run a worker, a client and a graph of three tasks, one of which finishes."""
    worker, client = "tcp://10.0.0.1:1", "client-1"
    register = m.RegisterWorker(address=worker, name="w", nthreads=2, stimulus_id="join")
    chunk = stimuli.GraphChunk(
        graph_id=1,
        keys=["a", "b", "c"],
        groups=[0, 1, 2],
        new_groups=[("a", "a"), ("b", "b"), ("c", "c")],
        dependencies=[[], [0], [0, 1]],
        new_externals=[],
        run_specs=[b"sa", b"sb", b"sc"],
        priorities=[0, 1, 2],
    )
    return [
        Stimulus(worker, stimuli.WorkerJoined(worker, "10.0.0.1", register), "join"),
        Stimulus(client, stimuli.ClientJoined(client), "client"),
        Stimulus(client, chunk, "chunk"),
        Stimulus(client, stimuli.GraphCommit(1, ["c"], client, n_tasks=3), "commit"),
        Stimulus(worker, m.TaskFinished(key="a", stimulus_id="f", run_id=1, nbytes=8), "f"),
    ]


def test_replays_agree_under_any_hash_seed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path, SchedulerConfig())
    for i, stimulus in enumerate(session()):
        writer.before_turn(stimulus, 1000.0 + i)
        writer.before_flush()
    writer.close()
    shown: list[str] = []
    report = replay(path, show=shown.append)
    assert not report.errors
    assert any("compute-task" in line or "ComputeTask" in line for line in shown)
    digests = {report.digest}
    for seed in ("1", "2"):
        out = subprocess.run(
            [
                sys.executable,
                "-m",
                "paceline.scheduler.server.cli.main",
                "replay",
                str(path),
                "--key",
                "a",
            ],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        digests.add(out.split()[-1])
        assert f"Recorded by paceline {build.description()}\n5 stimuli (closed)" in out
    assert len(digests) == 1
    assert replay(path, until=3).n_stimuli == 3


def test_a_journal_with_deep_values_replays(tmp_path: Path) -> None:
    """A worker may send metadata of any depth with a task's result, and a client any event."""
    deep = nested(3000, lambda v: (v,))
    finished = m.TaskFinished(
        key="a", stimulus_id="f", run_id=1, nbytes=8, metadata={"a": deep}, startstops=[]
    )
    event = stimuli.LogEventCommand(["topic"], [deep])
    path = tmp_path / "j"
    writer = JournalWriter(path, SchedulerConfig())
    for message in (
        *session()[:-1],
        Stimulus("tcp://10.0.0.1:1", finished, "f"),
        Stimulus("", event, "e"),
    ):
        writer.before_turn(message, 1000.0)
        writer.before_flush()
    writer.close()
    shown: list[str] = []
    report = replay(path, show=shown.append)
    assert not report.errors
    assert report.n_stimuli == 6 and len(shown) > 6
