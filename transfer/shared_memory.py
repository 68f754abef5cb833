"""Backend for workers of one host: values are written to shared memory and mapped by their readers.

A segment is a ``memfd``, anonymous memory without a name in a file system. Other processes of the
same user open it through ``/proc/<pid>/fd`` while the owner keeps its descriptor. The kernel counts
the references: a segment is freed when the owner has closed it and the last reader has unmapped it,
even after crashes. ``/dev/shm``, which is small in containers, is not used.

Page faults dominate the cost of copies into fresh memory, so unused segments are reused. A write
lease, which the kernel grants only if no other process has the file open, shows that one is unused.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .backend import (
    Backend,
    BackendContext,
    BackendError,
    BackendFull,
    Capacity,
    Fetched,
    Ref,
    Stored,
    ValueGone,
)

#: Each takes two descriptors and a mapping; Linux allows about 65,000 mappings per process.
SEGMENTS_MAX = 8192
DESCRIPTORS_WANTED = 65_536
#: Share of the descriptor limit; the rest is for sockets and the user's files.
DESCRIPTORS_SHARE = 0.5
PIECES_MAX = 512  # of one system call; Linux allows 1024
PAGE_NBYTES = mmap.PAGESIZE
#: Share of the host's memory that is left free.
FREE_SHARE_MIN = 0.05
#: Bytes of unused segments kept for reuse; at most a sixteenth of the worker's memory.
IDLE_NBYTES_MAX = 256 << 20
#: Seconds after which an unused segment is freed.
IDLE_SECONDS = 10.0
#: Length of the tag at the end of a segment, which identifies its current value.
TAG_NBYTES = 16
MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0x8000)


@dataclass(eq=False)
class Segment:
    """A shared-memory segment.

    Attributes:
        name: unguessable kernel name; detects that a descriptor number was reused.
        since: monotonic time at which it became unused, in seconds.
    """

    fd: int
    name: str
    room_nbytes: int
    since: float = 0.0


class SharedMemory(Backend):
    """Backend "shm"."""

    name = "shm"
    is_reusable = False  # except values that the owner maps too; they live as long as the mapping
    min_nbytes = 128 << 10
    mapped_share_min = 0.5
    inline_nbytes = 1 << 20

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        if not hasattr(os, "memfd_create") or not Path("/proc/self/fd").is_dir():
            raise BackendError("shared memory needs Linux with /proc")
        self._lock = threading.Lock()
        self._segments: dict[str, Segment] = {}
        self._used_nbytes = 0
        self._idle: list[Segment] = []
        self._leases = True
        self._writable = bool(context.options.get("writable", False))
        self._segments_max = min(SEGMENTS_MAX, int(_descriptors() * DESCRIPTORS_SHARE / 2))
        limit = context.options.get("limit_nbytes") or context.memory_limit_nbytes
        self._limit_nbytes = int(limit or _memory("MemTotal"))
        idle = int(context.options.get("idle_nbytes", IDLE_NBYTES_MAX))
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
        self.traffic.put(size_nbytes)
        ref = {"pid": os.getpid(), "fd": segment.fd, "name": segment.name, "tag": tag}
        return Stored(ref, view)

    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        fd = open_segment(ref)
        try:
            # an open descriptor prevents reuse, so the tag cannot change after this check
            if os.pread(fd, TAG_NBYTES, size_nbytes) != ref["tag"]:
                raise ValueGone("the segment was reused for another value")
            view = _map(fd, size_nbytes, writable=self._writable)
        except BaseException:
            os.close(fd)
            raise
        # keep a descriptor, so that the value can be passed on after its first owner has ended
        weakref.finalize(view.obj, os.close, fd).atexit = False
        self.traffic.got(size_nbytes)
        return Fetched(view, {"pid": os.getpid(), "fd": fd, "name": ref["name"], "tag": ref["tag"]})

    def delete(self, ref: Ref) -> None:
        with self._lock:
            segment = self._segments.pop(ref["name"], None)
            if segment is None:
                return
            self._used_nbytes -= segment.room_nbytes
            segment.since = time.monotonic()
            idle_nbytes = sum(each.room_nbytes for each in self._idle)
            if self._leases and idle_nbytes + segment.room_nbytes <= self._idle_max:
                self._idle.append(segment)
                return
        os.close(segment.fd)

    def renew(self) -> None:
        """Free segments that were not reused for ``IDLE_SECONDS``."""
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
        """Map the segment through a separate descriptor, so that the owner counts as a reader."""
        reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _map(reading, size_nbytes, populate=True, writable=self._writable)
        finally:
            os.close(reading)  # the mapping keeps the file open

    def _segment(self, size_nbytes: int) -> Segment:
        """Return an unused segment of at most twice the needed size, or a new one."""
        room = -(-size_nbytes // PAGE_NBYTES) * PAGE_NBYTES
        with self._lock:
            for segment in sorted(self._idle, key=lambda each: each.room_nbytes):
                if room <= segment.room_nbytes <= 2 * room and self._is_unused(segment.fd):
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
            # reopen: leases do not count the descriptor that memfd_create returned
            fd = os.open(f"/proc/self/fd/{first}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(first)
        return Segment(fd, name, room)

    def _is_unused(self, fd: int) -> bool:
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        except OSError:
            self._leases = False  # not supported by this kernel: do not reuse segments
            return False
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True


def open_segment(ref: Mapping[str, Any], access: int = os.O_RDONLY) -> int:
    """Open a segment of another process, given its ``pid``, ``fd`` and ``name``.

    Raise ValueGone if it no longer exists, OSError if access is not permitted.
    """
    path = f"/proc/{int(ref['pid'])}/fd/{int(ref['fd'])}"
    try:
        # the descriptor number may have been reused, and opening a pipe could block
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
    """Write ``pieces`` consecutively from the beginning of the file. Raises OSError."""
    at = 0
    left = list(pieces)
    while left:
        written = os.pwritev(fd, left[:PIECES_MAX], at)
        at += written
        while left and written >= left[0].nbytes:
            written -= left.pop(0).nbytes
        if written:
            left[0] = left[0][written:]


def _map(fd: int, size_nbytes: int, populate: bool = False, writable: bool = False) -> memoryview:
    """Map the first ``size_nbytes`` bytes of a file, read-only or copy-on-write."""
    flags = mmap.MAP_PRIVATE if writable else mmap.MAP_SHARED
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if populate and not writable:
        flags |= MAP_POPULATE
    return memoryview(mmap.mmap(fd, size_nbytes, flags=flags, prot=protection))


def _link(name: str) -> str:
    return f"/memfd:paceline-{name} (deleted)"


def same_kernel() -> str:
    """Return a name shared by processes of one user, kernel and process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        processes = os.readlink("/proc/self/ns/pid")
        user = os.readlink("/proc/self/ns/user")
    except OSError as error:
        raise BackendError(f"cannot identify the system: {error}") from error
    text = f"{boot} {processes} {user} {os.getuid()}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _descriptors() -> int:
    """Raise the open-file limit of the process if possible, and return it."""
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
    """Raise BackendFull if the host has too little memory. The kernel would overcommit."""
    if _memory("MemAvailable") - size_nbytes < FREE_SHARE_MIN * _memory("MemTotal"):
        raise BackendFull(f"the host has no memory for {size_nbytes} more bytes")
