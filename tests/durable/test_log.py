"""The log in memory-mapped segments."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from paceline.scheduler.core.stimuli import Stimulus, Tick
from paceline.scheduler.server.durable.channel.progress import Progress
from paceline.scheduler.server.durable.log import recorder as r
from paceline.scheduler.server.durable.log import segments as log_module
from paceline.scheduler.server.durable.log.segments import (
    Log,
    LogSegment,
    Position,
    RecoveryError,
    remove_segments,
)

SEGMENT_NBYTES = 4096


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "SEGMENT_NBYTES", SEGMENT_NBYTES)


def read(folder: Path) -> list[tuple[int, int, bytes]]:
    return [(kind, number, bytes(body)) for kind, number, body in Log(folder)]


def filled(folder: Path, count: int, nbytes: int = 100) -> list[tuple[int, int, bytes]]:
    """Append records, and return them."""
    log = Log(folder)
    list(log)
    records = [(1 + i % 5, i, bytes([i % 256]) * nbytes) for i in range(count)]
    for record in records:
        log.append(*record)
    return records


def segment(folder: Path, number: int = 1) -> Path:
    return folder / f"segment-{number:08d}.log"


def test_records_are_read_in_order_from_several_segments(tmp_path: Path) -> None:
    records = filled(tmp_path, 100)
    assert len(list(tmp_path.glob("segment-*.log"))) > 1
    assert read(tmp_path) == records


def test_empty_body_and_large_record(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.append(4, 7, b"")
    log.append(3, 8, memoryview(b"x" * (3 * SEGMENT_NBYTES)))
    log.append(4, 9, b"")
    assert [(kind, number, len(body)) for kind, number, body in Log(tmp_path)] == [
        (4, 7, 0),
        (3, 8, 3 * SEGMENT_NBYTES),
        (4, 9, 0),
    ]


def test_records_are_appended_after_those_of_another_process(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    first = filled(tmp_path, 3)
    second = filled(tmp_path, 4)
    assert read(tmp_path) == first + second


def change(folder: Path, position: int, data: bytes) -> None:
    """Overwrite bytes of the last of three records of 100 bytes."""
    start = log_module.START_NBYTES + 2 * (16 + 100) + position
    content = bytearray(segment(folder).read_bytes())
    content[start : start + len(data)] = data
    segment(folder).write_bytes(content)


@pytest.mark.parametrize("written", [0, 4, 8, 12])
def test_incomplete_last_record_ends_the_log(tmp_path: Path, written: int) -> None:
    """The process was killed after it had written the body and a part of the header."""
    records = filled(tmp_path, 3)
    change(tmp_path, written, bytes(16 - written))
    assert read(tmp_path) == records[:2]


@pytest.mark.parametrize("position", [0, 5, 12, 16, 60])
def test_damaged_record_is_an_error(tmp_path: Path, position: int) -> None:
    filled(tmp_path, 3)
    change(tmp_path, position, b"\xff" * 4)
    with pytest.raises(RecoveryError, match=r"segment-00000001.log is damaged at byte 296"):
        read(tmp_path)


def test_segment_that_cannot_be_allocated_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path)

    def fallocate(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    with pytest.raises(OSError, match=f"No space left on device: '{segment(tmp_path)}'"):
        log.append(1, 1, b"data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "step", [(os, "posix_fallocate"), (os, "write"), (Path, "replace"), (LogSegment, "__init__")]
)
def test_process_is_killed_while_it_creates_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]
) -> None:
    class Killed(BaseException):
        pass

    def die(*args: object) -> None:
        raise Killed

    log = Log(tmp_path)
    log.append(1, 1, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(*step, die)
        with pytest.raises(Killed):
            log.append(1, 1, bytes(SEGMENT_NBYTES))
    successor = Log(tmp_path)
    assert [bytes(record.body) for record in successor] == [b"old"]
    successor.append(1, 1, bytes(SEGMENT_NBYTES))
    assert read(tmp_path) == [(1, 1, b"old"), (1, 1, bytes(SEGMENT_NBYTES))]
    remove_segments(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_replaced", [False, True])
def test_log_that_was_removed_is_not_continued(tmp_path: Path, is_replaced: bool) -> None:
    """A process that is slow to notice its keeper's death writes nothing into the next log."""
    log = Log(tmp_path)
    log.append(1, 1, b"old")
    remove_segments(tmp_path)
    if is_replaced:
        Log(tmp_path).append(1, 1, b"new")
    before = read(tmp_path)
    log.append(1, 1, b"old")
    with pytest.raises(OSError, match="the log was removed"):
        for _ in range(100):
            log.append(1, 1, bytes(1000))
    assert read(tmp_path) == before


def test_first_segment_of_another_scheduler_is_not_replaced(tmp_path: Path) -> None:
    log = Log(tmp_path)
    records = filled(tmp_path, 1)
    with pytest.raises(FileExistsError):
        log.append(1, 1, b"old")
    assert read(tmp_path) == records


def test_damage_before_the_last_segment_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path, 100)
    data = bytearray(segment(tmp_path).read_bytes())
    data[log_module.START_NBYTES + 20] ^= 0xFF
    segment(tmp_path).write_bytes(data)
    with pytest.raises(RecoveryError, match=r"segment-00000001.log is damaged at byte 64"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("removed", "since"),
    [([1], None), ([2], None), ([1], Position(1, 64)), ([1, 2, 3], Position(1, 64))],
)
def test_missing_segment_is_an_error(
    removed: list[int], since: Position | None, tmp_path: Path
) -> None:
    filled(tmp_path, 100)
    assert len(list(tmp_path.iterdir())) == 3
    for number in removed:
        segment(tmp_path, number).unlink()
    with pytest.raises(RecoveryError, match=f"the log in {tmp_path} is missing, or a part of it"):
        Log(tmp_path, since)


@pytest.mark.parametrize("content", [b"", b"something else" * 100])
def test_other_file_is_refused(tmp_path: Path, content: bytes) -> None:
    segment(tmp_path).write_bytes(content)
    with pytest.raises(RecoveryError, match="is not a segment of this release's log"):
        Log(tmp_path)


def test_remove_segments(tmp_path: Path) -> None:
    records = filled(tmp_path, 100)
    others = {"other", "segment-00000001.log.bak", "segment-anything.csv", "segment-notes.log"}
    for name in others:
        (tmp_path / name).write_text("stays")
    assert read(tmp_path) == records
    assert remove_segments(tmp_path, 2) == 1
    assert remove_segments(tmp_path) > 1
    assert {path.name for path in tmp_path.iterdir()} == others
    assert remove_segments(tmp_path) == 0


class FullLog:
    """A log on a disk that is full after some records."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.appended: list[Any] = []

    def append(self, *record: Any) -> None:
        if not self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= 1
        self.appended.append(record)


@pytest.mark.pure
def test_full_disk_is_reported_once_and_ends_the_recording() -> None:
    log = FullLog(1)
    recorder = r.LogRecorder(log, Progress())  # type: ignore[arg-type]
    errors: list[OSError] = []
    recorder.on_failure = errors.append
    recorder.read(1, b"data")
    recorder.stimulus(Stimulus("", Tick(), "tick"), 1.0)
    recorder.commit()
    recorder.other(1, threading.Lock())  # type: ignore[arg-type]
    recorder.commit()  # does not pickle the step
    recorder.read(1, b"more")
    log.left = 10
    recorder.closed(1)
    assert [record[0] for record in log.appended] == [r.READ]
    assert [error.errno for error in errors] == [errno.ENOSPC]


@pytest.mark.pure
def test_write_of_a_hook_that_cannot_be_pickled_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = FullLog(10)
    recorder = r.LogRecorder(log, Progress())  # type: ignore[arg-type]
    recorder.batch(1, 1, 1.0)
    recorder.turn_writes.made.append((1, threading.Lock()))
    recorder.hook_writes()
    recorder.commit()
    assert "wrote to tasks in a hook cannot be recorded" in caplog.text
    assert [record[0] for record in log.appended] == [r.STEP]
