"""Reading from a neighbour's memory: on one host a worker copies a value straight out of the process that has it, with one system call.

For values that are copied anyway when they are made (``bytes``, text, objects), of which shared memory would be one copy more. Linux
allows it between processes of one user, where no policy (Yama) reserves it for debuggers.

Must not know: keys, values.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .backend import (
    Backend,
    BackendError,
    Capacity,
    Fetched,
    Ref,
    Stored,
    Surroundings,
    ValueGone,
)
from .shared_memory import same_kernel

TAG_NBYTES = 32
PIECES_MAX = 512  # of one call; Linux allows 1024
CALL_NBYTES_MAX = 1 << 30  # Linux allows 2 GiB
POLICY = Path("/proc/sys/kernel/yama/ptrace_scope")


class _Span(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Neighbour(Backend):
    """See the module."""

    name = "vm"
    keeps = False
    worth_nbytes = 512 << 10
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
        spans = [[_address(piece), piece.nbytes] for piece in pieces if piece.nbytes]
        with self._lock:
            self._offered[tag.tobytes()] = (tag, pieces)
        self.traffic.put_count += 1
        self.traffic.put_nbytes += size_nbytes
        at = tag.ctypes.data
        return Stored({"pid": os.getpid(), "spans": spans, "tag": tag.tobytes(), "tag_at": at})

    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        whole = into if into is not None else memoryview(np.empty(size_nbytes, "u1"))
        spans = [(int(at), int(length)) for at, length in ref["spans"]]
        if sum(length for _, length in spans) != size_nbytes:
            raise BackendError("the spans do not make up the value")
        pid = int(ref["pid"])
        begin = _address(whole)
        for some in _calls(spans):
            count = sum(length for _, length in some)
            self._copy(pid, begin, some, count)
            begin += count
        # last, so that it was the owner all along: a process number may be somebody else's by now
        tag = memoryview(bytearray(TAG_NBYTES))
        self._copy(pid, _address(tag), [(int(ref["tag_at"]), TAG_NBYTES)], TAG_NBYTES)
        if tag != ref["tag"]:
            raise ValueGone("its owner let it go")
        self.traffic.got_count += 1
        self.traffic.got_nbytes += size_nbytes
        return Fetched(whole)

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

    def _copy(self, pid: int, into: int, spans: Sequence[tuple[int, int]], count: int) -> None:
        local = _Span(into, count)
        remote = (_Span * len(spans))(*(_Span(*span) for span in spans))
        done = self._read(pid, ctypes.byref(local), 1, ctypes.byref(remote), len(spans), 0)
        if done == count:
            return
        code = ctypes.get_errno()
        if done < 0 and code not in (3, 14):  # ESRCH, EFAULT: it ended, or let go
            raise OSError(code, os.strerror(code))
        raise ValueGone("its owner has ended, or let it go")


def _calls(spans: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Spans in groups that one call may copy."""
    calls: list[list[tuple[int, int]]] = [[]]
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


def _address(view: memoryview) -> int:
    """Where the bytes of a view lie."""
    return int(np.frombuffer(view, "u1").ctypes.data)
