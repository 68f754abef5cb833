"""Storage for large frames: process memory first, then a temporary file."""

from __future__ import annotations

import gc
import logging
import os
import weakref
from pathlib import Path

import pytest
from paceline.scheduler.server.peers import spool as spool_module
from paceline.scheduler.server.peers.spool import FileFrame, Spool

MB = 2**20


def resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def fill(place: FileFrame | None, data: bytes) -> bytes | memoryview:
    """Receive a frame in parts, as from a socket."""
    if place is None:
        return data
    for at in range(0, len(data), 100_000):
        place.write(memoryview(data)[at : at + 100_000])
    return place.finish()


def test_small_frames_stay_in_memory(tmp_path: Path) -> None:
    spool = Spool(100, str(tmp_path))
    assert spool.allocator().allocate(60) is None
    assert isinstance(spool.allocator().allocate(60), FileFrame)
    assert spool.allocator().allocate(40) is None
    assert spool.in_memory_nbytes == 100
    assert not list(tmp_path.iterdir()), "the file is unlinked at once"


def test_frames_are_exact_and_separate(tmp_path: Path) -> None:
    spool = Spool(0, str(tmp_path))
    sizes = [1, 63, 64, 65, 100_000, 3 * MB]
    places = [spool.allocator().allocate(n) for n in sizes]
    frames = [fill(p, bytes([i]) * n) for i, (p, n) in enumerate(zip(places, sizes))]
    spool.trim()
    assert [len(f) for f in frames] == sizes
    assert all(bytes(f) == bytes([i]) * len(f) for i, f in enumerate(frames))


def test_frame_larger_than_a_file_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "SEGMENT_NBYTES", MB)
    monkeypatch.setattr(spool_module, "FILE_FRAME_NBYTES", MB // 2)
    spool = Spool(0, str(tmp_path))
    allocator = spool.allocator()
    sizes = [100, MB + 1, 100, MB, MB // 2, MB // 2 + 1]
    frames = [fill(allocator.allocate(n), bytes([i]) * n) for i, n in enumerate(sizes)]
    assert all(bytes(f) == bytes([i]) * n for i, (f, n) in enumerate(zip(frames, sizes)))


def test_frames_of_one_reply_are_adjacent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "FILE_FRAME_NBYTES", MB)
    spool = Spool(2 * MB, str(tmp_path))
    one, other = spool.allocator(), spool.allocator()
    places = [
        (allocator, allocator.allocate(n))
        for allocator, n in [(one, 100), (one, 2 * MB), (other, 2 * MB)]
    ]
    places += [(one, one.allocate(50)), (other, other.allocate(60)), (one, one.allocate(70))]
    a, b, x, c, y, d = [
        fill(place, bytes([i]) * n)
        for i, ((_, place), n) in enumerate(
            zip(places, (100, 2 * MB, 2 * MB, 50, 60, 70), strict=True)
        )
    ]
    assert isinstance(a, bytes)
    joined = spool.joined([b, c, d])
    assert joined is not None and bytes(joined) == bytes(b) + bytes(c) + bytes(d)
    assert spool.joined([x, y]) is not None
    for apart in ([a, b], [b, x], [b, d], [c, b], [], [b"strange"]):
        assert spool.joined(apart) is None, apart
    spool.seal()
    assert spool.joined([b, c]) is None


def test_full_disk_falls_back_to_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(0, str(tmp_path))
    assert isinstance(spool.allocator().allocate(10), FileFrame)
    free = os.statvfs(tmp_path)
    nbytes = (free.f_bavail + 2**20) * free.f_frsize
    assert spool.allocator().allocate(nbytes) is None
    assert spool.allocator().allocate(10) is None
    assert len(caplog.records) == 1 and "No space left" in caplog.text


@pytest.mark.parametrize(("limit", "command"), [("AS", "ulimit -v"), ("FSIZE", "ulimit -f")])
def test_files_are_smaller_below_a_limit_of_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: str, command: str
) -> None:
    resource = pytest.importorskip("resource")
    number = getattr(resource, f"RLIMIT_{limit}")
    before = resource.getrlimit(number)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096 if limit == "AS" else 0
    spool = Spool(0, str(tmp_path))
    resource.setrlimit(number, (used + 512 * MB, before[1]))
    try:
        assert bytes(fill(spool.allocator().allocate(MB), b"a" * MB)) == b"a" * MB
        assert not caplog.records
        assert spool.allocator().allocate(600 * MB) is None
    finally:
        resource.setrlimit(number, before)
    assert command in caplog.text and "temporary-directory" not in caplog.text


def full(*args: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_frame_moves_to_memory_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(0, str(tmp_path))
    before = fill(spool.allocator().allocate(10), b"0123456789")
    place = spool.allocator().allocate(3 * MB)
    assert isinstance(place, FileFrame)
    place.write(memoryview(b"a" * MB))
    monkeypatch.setattr(spool_module.os, "pwrite", full)
    place.write(memoryview(b"b" * MB))
    place.write(memoryview(b"c" * MB))
    spool.seal()
    assert bytes(place.finish()) == b"a" * MB + b"b" * MB + b"c" * MB
    assert bytes(before) == b"0123456789"
    assert spool.allocator().allocate(10) is None
    assert len(caplog.records) == 1 and "temporary-directory" in caplog.text


def test_a_long_frame_is_lost_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "MOVED_MAX_NBYTES", MB - 1)
    place = Spool(0, str(tmp_path)).allocator().allocate(3 * MB)
    assert isinstance(place, FileFrame)
    place.write(memoryview(b"a" * MB))
    monkeypatch.setattr(spool_module.os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        place.write(memoryview(b"b" * MB))


def test_the_disk_is_used_as_bytes_arrive(tmp_path: Path) -> None:
    place = Spool(0, str(tmp_path)).allocator().allocate(200 * MB)
    assert isinstance(place, FileFrame)
    file = place._segment.file.fileno()
    assert os.fstat(file).st_blocks == 0
    place.write(memoryview(b"a" * MB))
    assert os.fstat(file).st_blocks * 512 <= spool_module.RESERVE_NBYTES


def test_a_segment_lives_as_long_as_its_frames(tmp_path: Path) -> None:
    spool = Spool(0, str(tmp_path))
    frame = fill(spool.allocator().allocate(MB), bytes(MB))
    assert isinstance(frame, memoryview)
    segment = weakref.ref(frame.obj)
    spool.seal()
    part = frame[10:20]
    del frame
    gc.collect()
    assert segment() is not None and spool.trim()
    del part
    gc.collect()
    assert segment() is None and not spool.trim()


def test_written_frames_leave_memory(tmp_path: Path) -> None:
    spool = Spool(0, str(tmp_path))
    before = resident_nbytes()
    frames = []
    for i in range(16):
        frames.append(fill(spool.allocator().allocate(16 * MB), bytes([i]) * (16 * MB)))
        spool.trim()
    gc.collect()
    assert resident_nbytes() - before < 100 * MB
    assert all(f[0] == i and f[-1] == i for i, f in enumerate(frames))
    assert resident_nbytes() - before < 100 * MB


def test_first_file_is_logged_once(tmp_path: Path) -> None:
    told = []
    spool = Spool(0, str(tmp_path), on_first_file=lambda spool: told.append(1))
    spool.allocator().allocate(10)
    spool.allocator().allocate(spool_module.FILE_FRAME_NBYTES)
    assert told == [1]


def test_missing_directory_falls_back_to_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(0, str(tmp_path / "nowhere"))
    with caplog.at_level(logging.WARNING):
        assert spool.allocator().allocate(10) is None
        assert spool.allocator().allocate(10) is None
    assert len(caplog.records) == 1 and "Cannot keep" in caplog.text
