"""Shared-memory caches of small results that workers of one host read without a request.

For a small value, request and reply cost more than copying it. A worker adds a small result to its
cache when the task has finished, and removes it when Dask frees the key. Workers of the same host
read the caches of their peers before they request a value.

A cache is a ``memfd`` as in ``shared_memory.py``: rows of slots, followed by the values. The digest
of a key selects its row. Each value has a unique serial number. A reader reads the slot, copies
the value and reads the slot again; the copy is valid if the slot has not changed. There are no
locks.

Values that no worker reads are not worth adding, so each value that is read from a cache, or
requested, allows several further additions (``may_put``).
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
from hashlib import blake2b
from typing import Any, NamedTuple

from .encoding import Encoded, Layout, decode
from .shared_memory import open_segment

#: Largest value; from this size on, the other backends are used.
VALUE_NBYTES_MAX = 128 << 10
#: Default size of a cache. Memory is allocated only where values are written.
ROOM_NBYTES = 64 << 20
#: Largest share of the worker's memory.
MEMORY_SHARE = 1 / 64
ROWS = 2048
SLOTS_PER_ROW = 16
DIGEST_NBYTES = 16
#: Digest of the key, serial number, offset of the value, its length, its checksum or 0.
SLOT = struct.Struct("<16sQQII")
ROW_NBYTES = SLOT.size * SLOTS_PER_ROW
#: At offset 0: number of reads. Readers increment it without locks, so it is approximate.
COUNTER = struct.Struct("<Q")
#: Value of the counter after the cache was closed.
CLOSED = (1 << 64) - 1
TABLE_AT = 64
#: Offset of the first value.
TABLE_NBYTES = -(-(TABLE_AT + ROWS * ROW_NBYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
NOTHING = bytes(SLOT.size)
#: Header of a value: serial number, length of the pickle, number of buffers; lengths follow.
HEAD = struct.Struct("<QII")
#: Whether other processes may see writes in another order; then values have checksums.
UNORDERED = platform.machine() not in ("x86_64", "AMD64")
SIZES_PER_DOUBLING = 4
#: Additions that one read allows; a request costs about as much as eight additions.
PUTS_PER_READ = 8
#: Largest number of additions allowed in advance.
PUTS_MAX = 1024


class _Place(NamedTuple):
    """Location of a value in the cache: offsets of its slot and its bytes, and their space."""

    slot_at: int
    begin: int
    room_nbytes: int


class ShmCache:
    """The cache of a worker, with ``room_nbytes`` for values.

    Values have checksums if ``checked``. Raises OSError if the memory cannot be allocated.
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
        self._puts_allowed = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def ref(self) -> dict[str, Any]:
        """Location of the cache, for ``PeerCaches.open``."""
        return {"pid": os.getpid(), "fd": self._fd, "name": self._name, "size": self._end}

    def allow_puts(self, count: int = 1) -> None:
        """Allow further additions, because ``count`` values were read or requested."""
        self._puts_allowed = min(PUTS_MAX, self._puts_allowed + PUTS_PER_READ * count)

    def may_put(self) -> bool:
        """Return whether another value may be added before it is requested, and count it."""
        if not self._puts_allowed:
            reads = _reads(self._map)
            new = max(0, reads - self._reads_seen)
            self._reads_seen = reads
            if not new:
                return False
            self.allow_puts(new)
        self._puts_allowed -= 1
        return True

    def put(self, key: Hashable, encoded: Encoded) -> bool:
        """Add a value; return False if there is no space. ``key`` must not be in the cache."""
        digest = digest_of(key)
        slot_at = self._free_slot(digest)
        sizes = encoded.layout.buffer_sizes
        head_nbytes = HEAD.size + 8 * len(sizes)
        length = head_nbytes + encoded.layout.size_nbytes
        room = _rounded(length)
        begin = self._allocate(room) if slot_at is not None else None
        if slot_at is None or begin is None:
            return False
        self._serial += 1
        at = begin + head_nbytes
        for piece in encoded.pieces:
            self._map[at : at + piece.nbytes] = piece
            at += piece.nbytes
        HEAD.pack_into(self._map, begin, self._serial, encoded.layout.pickle_nbytes, len(sizes))
        struct.pack_into(f"<{len(sizes)}Q", self._map, begin + HEAD.size, *sizes)
        check = zlib.crc32(self._map[begin : begin + length]) if self._checked else 0
        self._map[slot_at : slot_at + SLOT.size] = SLOT.pack(
            digest, self._serial, begin, length, check
        )
        self._places[key] = _Place(slot_at, begin, room)
        return True

    def drop(self, key: Hashable) -> None:
        """Remove the value of ``key``, if present."""
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
        """Remove all values and mark the cache as closed for its readers."""
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

    def _allocate(self, room_nbytes: int) -> int | None:
        if waiting := self._free.get(room_nbytes):
            return waiting.pop()
        begin = self._fresh
        if begin + room_nbytes > self._end:
            return None
        self._fresh += room_nbytes
        return begin


class _PeerCache:
    """The cache of a peer, opened for reading. Raises BackendError or OSError."""

    def __init__(self, ref: Mapping[str, Any]) -> None:
        self._size = int(ref["size"])
        self._owner = os.pidfd_open(int(ref["pid"]))
        try:
            # hold the process first, so that its id cannot be reused before the segment is open
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
        """Return whether the owner has ended or closed the cache."""
        return _reads(self._map) == CLOSED or bool(self._ended.poll(0))

    def get(self, digest: bytes) -> tuple[Layout, memoryview] | None:
        """Return the layout of a value and a copy of its bytes, or None."""
        row_at = _row_at(digest)
        row = self._map[row_at : row_at + ROW_NBYTES]
        at = row.find(digest)
        if at < 0 or at % SLOT.size:
            return None
        slot = row[at : at + SLOT.size]
        _, serial, begin, length, check = SLOT.unpack(slot)
        with memoryview(self._map) as whole, whole[begin : begin + length] as part:
            copied = memoryview(bytearray(part))
        if self._map[row_at + at : row_at + at + SLOT.size] != slot:
            return None
        if length < HEAD.size or ((check or UNORDERED) and zlib.crc32(copied) != check):
            return None  # being written
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


class PeerCaches:
    """Caches of other workers, by address."""

    def __init__(self) -> None:
        self._opened: dict[str, _PeerCache | None] = {}  # None: cannot be opened
        self.got_count = 0
        self.got_nbytes = 0

    def __contains__(self, address: object) -> bool:
        return address in self._opened

    def __len__(self) -> int:
        return len(self._opened)

    def open(self, address: str, ref: Mapping[str, Any]) -> None:
        """Open the cache of the worker at ``address``. Raises BackendError or OSError."""
        self.remove(address)
        self._opened[address] = None
        self._opened[address] = _PeerCache(ref)

    def remove(self, address: str) -> None:
        opened = self._opened.pop(address, None)
        if opened is not None:
            opened.close()

    def sweep(self) -> None:
        """Close the caches of workers that have ended."""
        for address, opened in list(self._opened.items()):
            if opened is not None and opened.ended:
                self.remove(address)

    def first(self, key: Hashable, addresses: Iterable[str]) -> tuple[bool, Any]:
        """Return whether a value is in the cache of one of the workers, and the value.

        Values that cannot be unpickled count as missing: Dask's transfer then reports the error.
        """
        for address in addresses:
            with suppress(Exception):
                found, value = self.get(key, address)
                if found:
                    return True, value
        return False, None

    def get(self, key: Hashable, address: str) -> tuple[bool, Any]:
        """Return whether a value is in the cache of the worker at ``address``, and the value."""
        opened = self._opened.get(address)
        if opened is None:
            return False, None
        if opened.ended:
            self.remove(address)
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
            self.remove(address)


def room_for(memory_limit_nbytes: int, wanted_nbytes: int | None = None) -> int:
    """Return the size of a worker's cache in bytes."""
    if wanted_nbytes is not None:
        return wanted_nbytes
    if not memory_limit_nbytes:
        return ROOM_NBYTES
    return min(ROOM_NBYTES, int(memory_limit_nbytes * MEMORY_SHARE))


def digest_of(key: Hashable) -> bytes:
    """Return a digest of ``key`` that is equal in all processes."""
    return blake2b(repr(key).encode(), digest_size=DIGEST_NBYTES).digest()


def _reads(cache: mmap.mmap) -> int:
    (count,) = COUNTER.unpack_from(cache)
    return int(count)


def _row_at(digest: bytes) -> int:
    return TABLE_AT + int.from_bytes(digest[:4], "little") % ROWS * ROW_NBYTES


def _rounded(length: int) -> int:
    """Round ``length`` up to one of few sizes, so that freed space can be reused."""
    if length <= 256:
        return 256
    step = 1 << ((length - 1).bit_length() - 1 - (SIZES_PER_DOUBLING.bit_length() - 1))
    return -(-length // step) * step
