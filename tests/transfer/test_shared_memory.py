"""The shared memory backend: the kernel counts readers and frees memory."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from paceline.transfer.backend import BackendContext, ValueGone
from paceline.transfer.shared_memory import SharedMemory, write_pieces

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd")
SIZE = 1_000_000


@pytest.fixture
def shm() -> Iterator[SharedMemory]:
    backend = SharedMemory(BackendContext("w", memory_limit_nbytes=1 << 30))
    yield backend
    backend.close()


def segments() -> int:
    """Return how many of our segments this process has open or mapped."""
    return sum("/memfd:paceline" in _target(each) for each in Path("/proc/self/fd").iterdir())


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def test_put_and_get_share_memory(shm: SharedMemory) -> None:
    pieces = [memoryview(b"ab"), memoryview(bytes(SIZE))]
    stored = shm.put(pieces, SIZE + 2)
    got = shm.get(stored.ref, SIZE + 2)
    assert got.view[:3] == b"ab\0" and got.view.readonly
    assert stored.view is not None and stored.view.readonly
    inodes = {os.stat(f"/proc/self/fd/{ref['fd']}").st_ino for ref in (stored.ref, got.ref) if ref}
    assert len(inodes) == 1


def test_readers_keep_what_the_owner_releases(shm: SharedMemory) -> None:
    stored = shm.put([memoryview(b"x" * SIZE)], SIZE)
    got = shm.get(stored.ref, SIZE)
    shm.delete(stored.ref)
    del stored
    # must not overwrite memory that a reader uses
    other = shm.put([memoryview(b"y" * SIZE)], SIZE)
    assert got.view[0] == ord("x")
    assert got.ref is not None
    again = shm.get(got.ref, SIZE)  # a reader serves it to another
    assert again.view[SIZE - 1] == ord("x")
    shm.delete(other.ref)


def test_unreferenced_memory_is_reused(shm: SharedMemory) -> None:
    first = shm.put([memoryview(b"x" * SIZE)], SIZE)
    name = first.ref["name"]
    got = shm.get(first.ref, SIZE)
    shm.delete(first.ref)
    second = shm.put([memoryview(b"y" * SIZE)], SIZE)
    assert second.ref["name"] != name, "its owner and a reader still use it"
    del first, got
    gc.collect()
    third = shm.put([memoryview(b"z" * SIZE)], SIZE)
    assert third.ref["name"] == name


def test_nothing_is_left_after_close(shm: SharedMemory) -> None:
    before = segments()
    stored = shm.put([memoryview(b"x" * SIZE)], SIZE)
    got = shm.get(stored.ref, SIZE)
    assert segments() > before
    del stored, got
    shm.close()
    gc.collect()
    assert segments() == 0
    assert not list(Path("/dev/shm").glob("*paceline*"))


def test_reused_descriptor_number_is_detected(shm: SharedMemory) -> None:
    stored = shm.put([memoryview(b"x" * SIZE)], SIZE)
    with pytest.raises(ValueGone):
        shm.get({**stored.ref, "name": "another"}, SIZE)
    read, write = os.pipe()
    with pytest.raises(ValueGone):
        shm.get({**stored.ref, "fd": read}, SIZE)
    os.close(read)
    os.close(write)
    with pytest.raises(ValueGone):
        shm.get({**stored.ref, "pid": 2**22 + 1}, SIZE)


def test_limit() -> None:
    backend = SharedMemory(BackendContext("w", memory_limit_nbytes=3 * SIZE))
    stored = backend.put([memoryview(b"x" * 2 * SIZE)], 2 * SIZE)
    assert not backend.capacity().holds(2 * SIZE)
    backend.delete(stored.ref)
    assert backend.capacity().holds(2 * SIZE)
    backend.close()


def test_many_pieces_in_few_calls(tmp_path: Path) -> None:
    pieces = [bytes([i % 251]) * (i % 7) for i in range(2000)]
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    write_pieces(fd, [memoryview(p) for p in pieces])
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)
