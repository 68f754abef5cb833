"""Shared memory between workers of one host: a value is written once and mapped, read-only, by everybody who asks.

A segment is a ``memfd``: memory with no name in any file system. Others of the same user open it through ``/proc/<pid>/fd``, while its
owner holds it for them. So the kernel counts the references: a segment is freed when its owner let it go and the last reader unmapped it,
whatever happens to any of them, and there is nothing to sweep up. It needs no room in ``/dev/shm``, which containers keep small.

Fresh memory is what a copy mostly costs, so segments that nobody has open any more are used again: whether somebody has is the kernel's
to say (a write lease is only granted on what nobody else has open).

Must not know: keys, values.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import secrets
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .backend import (
    Backend,
    BackendError,
    BackendFull,
    Capacity,
    Fetched,
    Ref,
    Stored,
    Surroundings,
    ValueGone,
)

SEGMENTS_MAX = 8192
"""Each is two descriptors of the process and one mapping; Linux allows some 65,000 mappings."""
DESCRIPTORS_WANTED = 65_536
DESCRIPTORS_SHARE = (
    0.5  # of what the process may open; the rest is for sockets and the user's files
)
WRITE_NBYTES_MAX = 1 << 30  # one system call writes at most 2 GiB
PIECES_MAX = 512  # of one system call; Linux allows 1024
PAGE_NBYTES = mmap.PAGESIZE
ROOM_LEFT_SHARE = 0.05  # of the host's memory that stays free
IDLE_NBYTES_MAX = 256 << 20
"""Segments that wait to be used again; a sixteenth of the worker's memory where that is less."""
IDLE_SECONDS = 10.0
"""So long they wait."""
TAG_NBYTES = 16
"""At the end of a segment stands what its value is called: used again, it has another."""
MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)


@dataclass(eq=False)
class Segment:
    """Memory with a descriptor.

    Attributes:
        fd: opened for writing.
        name: what the kernel calls it, unguessable: a descriptor's number alone might mean another file by now.
        room_nbytes: its length.
        since: when it was let go, monotonic seconds.
    """

    fd: int
    name: str
    room_nbytes: int
    since: float = 0.0


class SharedMemory(Backend):
    """See the module."""

    name = "shm"
    keeps = False  # but for what its owner looks at too: that lives as long as the look
    worth_nbytes = 128 << 10
    mapped_share_min = 0.5
    inline_nbytes = 1 << 20

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
            raise BackendError("shared memory needs Linux with /proc")
        self._lock = threading.Lock()
        self._segments: dict[str, Segment] = {}
        self._used_nbytes = 0
        self._idle: list[Segment] = []
        self._leases = True
        self._writable = bool(around.options.get("writable", False))
        self._segments_max = min(SEGMENTS_MAX, int(_descriptors() * DESCRIPTORS_SHARE / 2))
        limit = around.options.get("limit_nbytes") or around.memory_limit_nbytes
        self._limit_nbytes = int(limit or _memory("MemTotal"))
        idle = int(around.options.get("idle_nbytes", IDLE_NBYTES_MAX))
        self._idle_max = min(idle, self._limit_nbytes // 16)
        self._place = same_kernel()

    def place(self) -> str:
        return self._place

    def capacity(self) -> Capacity:
        with self._lock:
            if len(self._segments) >= self._segments_max:
                return Capacity(0)
            return Capacity(max(0, self._limit_nbytes - self._used_nbytes))

    def put(self, pieces: Sequence[memoryview], size_nbytes: int) -> Stored:
        tag = secrets.token_bytes(TAG_NBYTES)
        segment = self._segment(size_nbytes + TAG_NBYTES)
        try:
            write_pieces(segment.fd, [*pieces, memoryview(tag)])
            view = self._own_view(segment.fd, size_nbytes)
        except BaseException:
            os.close(segment.fd)
            raise
        with self._lock:
            self._segments[segment.name] = segment
            self._used_nbytes += segment.room_nbytes
        self.traffic.put_count += 1
        self.traffic.put_nbytes += size_nbytes
        ref = {"pid": os.getpid(), "fd": segment.fd, "name": segment.name, "tag": tag}
        return Stored(ref, view)

    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        fd = open_segment(ref)
        try:
            # whoever has it open keeps it from being used again: from here on it stays what it is
            if os.pread(fd, TAG_NBYTES, size_nbytes) != ref["tag"]:
                raise ValueGone("the segment has another value by now")
            view = _map(fd, size_nbytes, writable=self._writable)
        except BaseException:
            os.close(fd)
            raise
        # a descriptor of one's own, so that the value can be passed on when its first owner is gone
        weakref.finalize(view.obj, os.close, fd).atexit = False
        self.traffic.got_count += 1
        self.traffic.got_nbytes += size_nbytes
        return Fetched(view, {"pid": os.getpid(), "fd": fd, "name": ref["name"], "tag": ref["tag"]})

    def delete(self, ref: Ref) -> None:
        with self._lock:
            segment = self._segments.pop(ref["name"], None)
            if segment is None:
                return
            self._used_nbytes -= segment.room_nbytes
            segment.since = time.monotonic()
            if self._leases and self._idle_nbytes() + segment.room_nbytes <= self._idle_max:
                self._idle.append(segment)
                return
        os.close(segment.fd)

    def renew(self) -> None:
        """Let segments go that waited long enough to be used again."""
        oldest = time.monotonic() - IDLE_SECONDS
        with self._lock:
            late = [each for each in self._idle if each.since < oldest]
            self._idle = [each for each in self._idle if each.since >= oldest]
        for segment in late:
            os.close(segment.fd)

    def close(self) -> None:
        with self._lock:
            left = [*self._segments.values(), *self._idle]
            self._segments.clear()
            self._idle.clear()
            self._used_nbytes = 0
        for segment in left:
            os.close(segment.fd)

    def _own_view(self, fd: int, size_nbytes: int) -> memoryview:
        """The owner's look at its segment, opened as a reader opens it: the kernel then counts it among them."""
        reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _map(reading, size_nbytes, populate=True, writable=self._writable)
        finally:
            os.close(reading)  # the mapping has it open still

    def _idle_nbytes(self) -> int:
        return sum(segment.room_nbytes for segment in self._idle)

    def _segment(self, size_nbytes: int) -> Segment:
        """One that waits and fits, else a new one."""
        room = -(-size_nbytes // PAGE_NBYTES) * PAGE_NBYTES
        with self._lock:
            for segment in self._fitting(room):
                self._idle.remove(segment)
                return segment
        if room >= 64 << 20:
            _check_room(room)
        name = secrets.token_hex(16)
        first = os.memfd_create(f"paceline-{name}", os.MFD_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                os.fchmod(first, 0o600)
            os.ftruncate(first, room)
            # opened anew, so that the kernel counts this descriptor as it counts readers'
            fd = os.open(f"/proc/self/fd/{first}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(first)
        return Segment(fd, name, room)

    def _fitting(self, room: int) -> Iterator[Segment]:
        """Idle segments that nobody has open, and of which at most half would be wasted."""
        for segment in sorted(self._idle, key=lambda each: each.room_nbytes):
            if room <= segment.room_nbytes <= 2 * room and self._nobody_has(segment.fd):
                yield segment

    def _nobody_has(self, fd: int) -> bool:
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        except OSError:
            self._leases = False  # a kernel that grants none: nothing is used again
            return False
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True


def open_segment(ref: Mapping[str, Any], access: int = os.O_RDONLY) -> int:
    """A descriptor of one's own of a segment of another process: its ``pid``, its ``fd`` there, its ``name``.

    Raises:
        ValueGone: it is there no more.
        OSError: it is not for us.
    """
    path = f"/proc/{int(ref['pid'])}/fd/{int(ref['fd'])}"
    try:
        # what a number means may have changed: opening something else, a pipe say, could block
        if os.readlink(path) != _link(ref["name"]):
            raise ValueGone("the segment is gone, and its descriptor means something else")
        fd = os.open(path, access | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ValueGone(f"the segment is gone: {error}") from error
    try:
        if os.readlink(f"/proc/self/fd/{fd}") != _link(ref["name"]):
            raise ValueGone("the segment is gone, and its descriptor means something else")
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_pieces(fd: int, pieces: Sequence[memoryview]) -> None:
    """Write pieces one after the other from the file's beginning, with few system calls and no copy before.

    Raises:
        OSError: no room, or the file cannot be written.
    """
    at = 0
    batch: list[memoryview] = []
    for piece in pieces:
        flat = piece if piece.format == "B" and piece.ndim == 1 else piece.cast("B")
        for begin in range(0, flat.nbytes, WRITE_NBYTES_MAX):
            part = flat[begin : begin + WRITE_NBYTES_MAX]
            if batch and (
                len(batch) >= PIECES_MAX
                or part.nbytes + sum(p.nbytes for p in batch) > WRITE_NBYTES_MAX
            ):
                at = _write_batch(fd, batch, at)
                batch = []
            batch.append(part)
    if batch:
        _write_batch(fd, batch, at)


def _write_batch(fd: int, batch: list[memoryview], at: int) -> int:
    left = list(batch)
    while left:
        written = os.pwritev(fd, left, at)
        at += written
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]
    return at


def _map(fd: int, size_nbytes: int, populate: bool = False, writable: bool = False) -> memoryview:
    """The first bytes of a file as memory: read-only, or written to a copy of the page for this process alone."""
    flags = mmap.MAP_PRIVATE if writable else mmap.MAP_SHARED
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if populate and not writable:
        flags |= MAP_POPULATE
    return memoryview(mmap.mmap(fd, size_nbytes, flags=flags, prot=protection))


def _link(name: str) -> str:
    return f"/memfd:paceline-{name} (deleted)"


def same_kernel() -> str:
    """Same running kernel, same process numbers, same user: what one has open the other may open.

    Raises:
        BackendError: the system does not say who it is.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        processes = os.readlink("/proc/self/ns/pid")
        user = os.readlink("/proc/self/ns/user")
    except OSError as error:
        raise BackendError(f"the system does not say who it is: {error}") from error
    text = f"{boot} {processes} {user} {os.getuid()}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _descriptors() -> int:
    """How many files the process may open, after asking for enough."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft


def _memory(what: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _check_room(size_nbytes: int) -> None:
    """Memory that is not there is not refused by the kernel: it kills somebody instead.

    Raises:
        BackendFull: the host has not so much.
    """
    if _memory("MemAvailable") - size_nbytes < ROOM_LEFT_SHARE * _memory("MemTotal"):
        raise BackendFull(f"the host has no room for {size_nbytes} bytes more")
