"""Small results where neighbours find them without asking: a shelf of shared memory for each worker.

For a small value the question costs more than the answer: two processes read and write messages, so that a third may copy 25 kB. A worker
puts a small result on its shelf when it has made it, and takes it off when Dask frees the key; whoever is to fetch it from that worker,
on the same host, looks there first. What is not there is asked for.

A shelf is a ``memfd`` like those of ``shared_memory.py``: rows of slots, and after them room for the values. A key has its slot in one row, by
its digest. Each value has a serial that no other ever has. Who reads looks up the slot, copies the value and looks again: is the
slot what it was, then what was copied is the value. Nobody waits for anybody.

Where nobody reads, putting would be in vain: each value that somebody took, or asked for, earns room for some more to be put (``spend``).

Must not know: who asks whom for what.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import select
import struct
import zlib
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from .encoding import Encoded, Layout, decode
from .shared_memory import open_segment

VALUE_NBYTES_MAX = 128 << 10
"""From here on the other back ends are worth it."""
ROOM_NBYTES = 64 << 20
"""Of a shelf, unless the worker has little memory. Memory is used only where something was put."""
MEMORY_SHARE = 1 / 64
"""Of a worker's memory, at most."""
ROWS = 2048
SLOTS_PER_ROW = 16
DIGEST_NBYTES = 16
SLOT = struct.Struct("<16sQQII")
"""Digest of the key, serial, where the value begins, its length, its checksum or 0."""
ROW_NBYTES = SLOT.size * SLOTS_PER_ROW
COUNTER = struct.Struct("<Q")
"""At the beginning: how many values were read. Readers count without waiting for each other, so it is about right."""
CLOSED = (1 << 64) - 1
"""Stands there instead when nothing will ever stand on the shelf again: its worker may have another by now."""
TABLE_AT = 64
TABLE_NBYTES = -(-(TABLE_AT + ROWS * ROW_NBYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
"""Values begin behind it."""
NOTHING = bytes(SLOT.size)
HEAD = struct.Struct("<QII")
"""Of a value: its serial, length of the pickle, count of the buffers, whose lengths follow."""
UNORDERED = platform.machine() not in ("x86_64", "AMD64")
"""Whether others may see what one writes in another order than it was written in: then a checksum says that all is there."""
SIZES_PER_DOUBLING = 4
PUTS_PER_READ = 8
"""A question costs what some eight puts do."""
PUTS_MAX = 1024
"""That may be saved up."""


@dataclass(frozen=True)
class _Place:
    """Where a value stands.

    Attributes:
        slot_at: where its slot begins.
        begin: where the value begins.
        room_nbytes: what was set aside for it.
    """

    slot_at: int
    begin: int
    room_nbytes: int


class Shelf:
    """A worker's own.

    Args:
        room_nbytes: for values.
        checked: whether values have checksums.

    Raises:
        OSError: the system gives no such memory.
    """

    def __init__(self, room_nbytes: int = ROOM_NBYTES, checked: bool = UNORDERED) -> None:
        self._checked = checked
        self._end = TABLE_NBYTES + room_nbytes
        self._name = secrets.token_hex(16)
        self._fd = os.memfd_create(f"paceline-{self._name}", os.MFD_CLOEXEC)
        try:
            os.fchmod(self._fd, 0o600)
            os.ftruncate(self._fd, self._end)
            self._map = mmap.mmap(self._fd, self._end)
        except BaseException:
            os.close(self._fd)
            raise
        self._places: dict[Hashable, _Place] = {}
        self._free: dict[int, list[int]] = {}
        self._fresh = TABLE_NBYTES
        self._serial = 0
        self._reads_seen = 0
        self._puts_left = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def ref(self) -> dict[str, Any]:
        """For neighbours: ``Neighbours.learn``."""
        return {"pid": os.getpid(), "fd": self._fd, "name": self._name, "size": self._end}

    def earn(self, count: int = 1) -> None:
        """So many values were read, or asked for."""
        self._puts_left = min(PUTS_MAX, self._puts_left + PUTS_PER_READ * count)

    def spend(self) -> bool:
        """Whether one more may be put that nobody asked for yet."""
        if not self._puts_left:
            reads = _reads(self._map)
            new = max(0, reads - self._reads_seen)
            self._reads_seen = reads
            if not new:
                return False
            self.earn(new)
        self._puts_left -= 1
        return True

    def put(self, key: Hashable, encoded: Encoded) -> bool:
        """Put a value there, unless there is no room. Not twice under one key."""
        digest = digest_of(key)
        slot_at = self._free_slot(digest)
        sizes = encoded.layout.buffer_sizes
        head_nbytes = HEAD.size + 8 * len(sizes)
        length = head_nbytes + encoded.layout.size_nbytes
        room = _rounded(length)
        begin = self._set_aside(room) if slot_at is not None else None
        if slot_at is None or begin is None:
            return False
        self._serial += 1
        at = begin + head_nbytes
        for piece in encoded.pieces:
            self._map[at : at + piece.nbytes] = piece
            at += piece.nbytes
        HEAD.pack_into(
            self._map, begin, self._serial, encoded.layout.pickle_nbytes, len(sizes)
        )
        struct.pack_into(f"<{len(sizes)}Q", self._map, begin + HEAD.size, *sizes)
        check = zlib.crc32(self._map[begin : begin + length]) if self._checked else 0
        self._map[slot_at : slot_at + SLOT.size] = SLOT.pack(
            digest, self._serial, begin, length, check
        )
        self._places[key] = _Place(slot_at, begin, room)
        return True

    def drop(self, key: Hashable) -> None:
        """Take it off, if it is there."""
        place = self._places.pop(key, None)
        if place is None:
            return
        self._map[place.slot_at : place.slot_at + SLOT.size] = NOTHING
        if self._places:
            self._free.setdefault(place.room_nbytes, []).append(place.begin)
        else:
            self._free.clear()
            self._fresh = TABLE_NBYTES

    def close(self) -> None:
        """Take all off. Who still looks finds nothing, and forgets it."""
        COUNTER.pack_into(self._map, 0, CLOSED)
        for key in list(self._places):
            self.drop(key)
        self._map.close()
        os.close(self._fd)

    def _free_slot(self, digest: bytes) -> int | None:
        row_at = _row_at(digest)
        for at in range(row_at, row_at + ROW_NBYTES, SLOT.size):
            if self._map[at : at + SLOT.size] == NOTHING:
                return at
        return None

    def _set_aside(self, room_nbytes: int) -> int | None:
        if waiting := self._free.get(room_nbytes):
            return waiting.pop()
        begin = self._fresh
        if begin + room_nbytes > self._end:
            return None
        self._fresh += room_nbytes
        return begin


class _Opened:
    """A neighbour's shelf.

    Raises:
        BackendError, OSError: it is not there, or not for us.
    """

    def __init__(self, ref: Mapping[str, Any]) -> None:
        self._size = int(ref["size"])
        self._owner = os.pidfd_open(int(ref["pid"]))
        try:
            # the process is held first: what is opened then is its own, or not of this name
            fd = open_segment(ref, os.O_RDWR)
            try:
                self._map = mmap.mmap(fd, self._size)
            finally:
                os.close(fd)
        except BaseException:
            os.close(self._owner)
            raise
        self._ended = select.poll()
        self._ended.register(self._owner, select.POLLIN)

    @property
    def ended(self) -> bool:
        """Whether its owner did, or closed it: what is there then is nobody's."""
        return _reads(self._map) == CLOSED or bool(self._ended.poll(0))

    def get(self, digest: bytes) -> tuple[Layout, memoryview] | None:
        """A value's layout and a copy of its bytes; None where it is not there."""
        row_at = _row_at(digest)
        row = self._map[row_at : row_at + ROW_NBYTES]
        at = row.find(digest)
        if at < 0 or at % SLOT.size:
            return None
        slot = row[at : at + SLOT.size]
        _, serial, begin, length, check = SLOT.unpack(slot)
        with memoryview(self._map) as shelf, shelf[begin : begin + length] as there:
            copied = memoryview(bytearray(there))
        if self._map[row_at + at : row_at + at + SLOT.size] != slot:
            return None
        if length < HEAD.size or ((check or UNORDERED) and zlib.crc32(copied) != check):
            return None  # it was being written
        its_serial, pickle_nbytes, count = HEAD.unpack_from(copied)
        if its_serial != serial:
            return None
        if (reads := _reads(self._map)) != CLOSED:
            COUNTER.pack_into(self._map, 0, reads + 1)
        sizes = struct.unpack_from(f"<{count}Q", copied, HEAD.size)
        return Layout(pickle_nbytes, sizes), copied[HEAD.size + 8 * count :]

    def close(self) -> None:
        self._map.close()
        os.close(self._owner)


class Neighbours:
    """Shelves of the workers that this one may look at, by address."""

    def __init__(self) -> None:
        self._opened: dict[str, _Opened | None] = {}  # None: it cannot be looked at
        self.got_count = 0
        self.got_nbytes = 0

    def __contains__(self, address: object) -> bool:
        return address in self._opened

    def __len__(self) -> int:
        return len(self._opened)

    def learn(self, address: str, ref: Mapping[str, Any]) -> None:
        """A worker has a shelf.

        Raises:
            BackendError, OSError: it cannot be looked at.
        """
        self.forget(address)
        self._opened[address] = None
        self._opened[address] = _Opened(ref)

    def forget(self, address: str) -> None:
        """A worker has none, or is gone."""
        opened = self._opened.pop(address, None)
        if opened is not None:
            opened.close()

    def sweep(self) -> None:
        """Forget those whose owner has ended."""
        for address, opened in list(self._opened.items()):
            if opened is not None and opened.ended:
                self.forget(address)

    def first(self, key: Hashable, addresses: Iterable[str]) -> tuple[bool, Any]:
        """Whether a value was found on the shelf of one of these workers, and the value.

        What cannot be opened is not there: Dask's own way then says what is wrong with it.
        """
        for address in addresses:
            with suppress(Exception):
                there, value = self.get(key, address)
                if there:
                    return True, value
        return False, None

    def get(self, key: Hashable, address: str) -> tuple[bool, Any]:
        """Whether a value was found on a worker's shelf, and the value."""
        opened = self._opened.get(address)
        if opened is None:
            return False, None
        if opened.ended:
            self.forget(address)
            return False, None
        found = opened.get(digest_of(key))
        if found is None:
            return False, None
        layout, view = found
        value = decode(view, layout)
        self.got_count += 1
        self.got_nbytes += layout.size_nbytes
        return True, value

    def close(self) -> None:
        for address in list(self._opened):
            self.forget(address)


def room_for(memory_limit_nbytes: int, wanted_nbytes: int | None = None) -> int:
    """Room of a worker's shelf, bytes; less than a value's is none."""
    if wanted_nbytes is not None:
        return wanted_nbytes
    if not memory_limit_nbytes:
        return ROOM_NBYTES
    return min(ROOM_NBYTES, int(memory_limit_nbytes * MEMORY_SHARE))


def digest_of(key: Hashable) -> bytes:
    """Of a key, the same in each process."""
    return blake2b(repr(key).encode(), digest_size=DIGEST_NBYTES).digest()


def _reads(shelf: mmap.mmap) -> int:
    (count,) = COUNTER.unpack_from(shelf)
    return int(count)


def _row_at(digest: bytes) -> int:
    return TABLE_AT + int.from_bytes(digest[:4], "little") % ROWS * ROW_NBYTES


def _rounded(length: int) -> int:
    """Room for a value: one of few sizes, so that what is freed fits the next."""
    if length <= 256:
        return 256
    step = 1 << ((length - 1).bit_length() - 1 - (SIZES_PER_DOUBLING.bit_length() - 1))
    return -(-length // step) * step
