"""Reading from a neighbour's memory: on one host a worker copies a value straight out of the process that has it, to where it will be used.

For values that are copied anyway when they are made (``bytes``, text, objects), of which shared memory would be one copy more. Fresh memory
is what a copy mostly costs: here it comes in large pages. Linux allows it between processes of one user, where no policy (Yama) reserves it for debuggers.

Must not know: keys, values.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from . import large_pages
from .backend import (
    Backend,
    BackendError,
    Capacity,
    Fetched,
    Ref,
    Source,
    Stored,
    Surroundings,
    ValueGone,
)
from .shared_memory import same_kernel

TAG_NBYTES = 32
PIECES_MAX = 512  # of one call; Linux allows 1024
CALL_NBYTES_MAX = 1 << 30  # Linux allows 2 GiB
POLICY = Path("/proc/sys/kernel/yama/ptrace_scope")


Span = tuple[int, int]
"""Address and length."""


class _Span(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Neighbour(Backend):
    """See the module."""

    name = "vm"
    keeps = False
    worth_nbytes = 2 << 20  # smaller ones cost no less than Dask's own way, where many travel in one message
    inline_nbytes = 1 << 20

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._place = same_kernel()
        if POLICY.exists() and int(POLICY.read_text()) > 0:
            raise BackendError("this system lets only debuggers read other processes")
        try:
            self._read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        except (AttributeError, OSError) as error:
            raise BackendError(f"this system cannot read other processes: {error}") from error
        self._read.restype = ctypes.c_ssize_t
        self._read.argtypes = [ctypes.c_int, *[ctypes.c_void_p, ctypes.c_ulong] * 2, ctypes.c_ulong]
        self._offered: dict[bytes, tuple[Any, Sequence[memoryview]]] = {}
        self._lock = threading.Lock()

    def place(self) -> str:
        return self._place

    def capacity(self) -> Capacity:
        return Capacity()  # nothing is stored

    def put(self, pieces: Sequence[memoryview], size_nbytes: int) -> Stored:
        tag = np.frombuffer(secrets.token_bytes(TAG_NBYTES), "u1").copy()
        spans = [[large_pages.address(piece), piece.nbytes] for piece in pieces if piece.nbytes]
        with self._lock:
            self._offered[tag.tobytes()] = (tag, pieces)
        self.traffic.put_count += 1
        self.traffic.put_nbytes += size_nbytes
        at = tag.ctypes.data
        return Stored({"pid": os.getpid(), "spans": spans, "tag": tag.tobytes(), "tag_at": at})

    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        whole = into if into is not None else memoryview(np.empty(size_nbytes, "u1"))
        self.source(ref, size_nbytes).read_into(0, whole)
        return Fetched(whole)

    def source(self, ref: Ref, size_nbytes: int) -> _There:
        there = _There(ref, self._copy)
        if there.size_nbytes != size_nbytes:
            raise BackendError("the spans do not make up the value")
        self.traffic.got_count += 1
        self.traffic.got_nbytes += size_nbytes
        return there

    def delete(self, ref: Ref) -> None:
        with self._lock:
            tag, _ = self._offered.pop(ref["tag"], (None, None))
        if tag is not None:
            tag[:] = 0

    def close(self) -> None:
        with self._lock:
            for tag, _ in self._offered.values():
                tag[:] = 0
            self._offered.clear()

    def _copy(self, pid: int, into: Sequence[Span], spans: Sequence[Span]) -> None:
        """Copy spans of another process one after the other into spans of this one, as many bytes."""
        large_pages.advise(*into[0])
        local = (_Span * len(into))(*(_Span(*span) for span in into))
        remote = (_Span * len(spans))(*(_Span(*span) for span in spans))
        done = self._read(pid, ctypes.byref(local), len(into), ctypes.byref(remote), len(spans), 0)
        if done == sum(length for _, length in spans):
            return
        code = ctypes.get_errno()
        if done < 0 and code not in (3, 14):  # ESRCH, EFAULT: it ended, or let go
            raise OSError(code, os.strerror(code))
        raise ValueGone("its owner has ended, or let it go")


class _There(Source):
    """A value in another process.

    Args:
        ref: as ``put`` gave it.
        copy: copies out of a process; see ``Neighbour._copy``.
    """

    def __init__(self, ref: Ref, copy: Callable[..., None]) -> None:
        self._copy = copy
        self._pid = int(ref["pid"])
        self._tag = ref["tag"]
        self._tag_span = (int(ref["tag_at"]), TAG_NBYTES)
        self._spans = [(int(at), int(length)) for at, length in ref["spans"]]
        self._ends = list(accumulate(length for _, length in self._spans))

    @property
    def size_nbytes(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read_into(self, begin: int, view: memoryview) -> None:
        if not view.nbytes:
            return
        tag = memoryview(bytearray(TAG_NBYTES))
        at = large_pages.address(view)
        for some in _calls(self._within(begin, view.nbytes)):
            count = sum(length for _, length in some)
            # the tag last, so that it was the owner all along: a process number may be somebody else's by now
            into = [(at, count), (large_pages.address(tag), TAG_NBYTES)]
            self._copy(self._pid, into, [*some, self._tag_span])
            if tag != self._tag:
                raise ValueGone("its owner let it go")
            at += count

    def _within(self, begin: int, length: int) -> list[Span]:
        """Where these bytes of the value lie.

        Raises:
            BackendError: they are not all within the value.
        """
        found = []
        for i in range(bisect_right(self._ends, begin), len(self._spans)):
            at, size = self._spans[i]
            skipped = begin - (self._ends[i] - size)
            part = min(size - skipped, length)
            found.append((at + skipped, part))
            begin, length = begin + part, length - part
            if not length:
                return found
        raise BackendError("the spans do not make up the value")


def _calls(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans in groups that one call may copy."""
    calls: list[list[Span]] = [[]]
    room = CALL_NBYTES_MAX
    for at, length in spans:
        while length:
            if not room or len(calls[-1]) == PIECES_MAX:
                calls.append([])
                room = CALL_NBYTES_MAX
            part = min(length, room)
            calls[-1].append((at, part))
            at, length, room = at + part, length - part, room - part
    return calls
