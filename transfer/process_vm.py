"""Backend that reads values from the memory of another process on the same host.

Used for values that are copied on decoding anyway (``bytes``, text, objects), for which shared
memory would need an additional copy. Linux allows ``process_vm_readv`` between processes of one
user, unless a security policy (Yama) restricts it to debuggers.
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

from . import huge_pages
from .backend import (
    Backend,
    BackendContext,
    BackendError,
    Fetched,
    Ref,
    Source,
    Stored,
    ValueGone,
)
from .shared_memory import same_kernel

TAG_NBYTES = 32
PIECES_MAX = 512  # per call; Linux allows 1024
CALL_NBYTES_MAX = 1 << 30  # Linux allows 2 GiB
POLICY = Path("/proc/sys/kernel/yama/ptrace_scope")


#: Address and length.
Span = tuple[int, int]


class _Span(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class ProcessVM(Backend):
    """Backend "vm"."""

    name = "vm"
    is_reusable = False
    # below, Dask's own transfer is as cheap, because it sends many values in one message
    min_nbytes = 2 << 20
    inline_nbytes = 1 << 20

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._place = same_kernel()
        if POLICY.exists() and int(POLICY.read_text()) > 0:
            raise BackendError("kernel.yama.ptrace_scope does not allow reading other processes")
        try:
            self._read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        except (AttributeError, OSError) as error:
            raise BackendError(f"process_vm_readv is not available: {error}") from error
        self._read.restype = ctypes.c_ssize_t
        spans: list[Any] = [ctypes.c_void_p, ctypes.c_ulong]
        self._read.argtypes = [ctypes.c_int, *spans, *spans, ctypes.c_ulong]
        self._offered: dict[bytes, tuple[Any, Sequence[memoryview]]] = {}
        self._lock = threading.Lock()

    def place(self) -> str:
        return self._place

    def put(self, pieces: Sequence[memoryview], size_nbytes: int) -> Stored:
        tag = np.frombuffer(secrets.token_bytes(TAG_NBYTES), "u1").copy()
        spans = [[huge_pages.address(piece), piece.nbytes] for piece in pieces if piece.nbytes]
        with self._lock:
            self._offered[tag.tobytes()] = (tag, pieces)
        self.traffic.put(size_nbytes)
        at = tag.ctypes.data
        return Stored({"pid": os.getpid(), "spans": spans, "tag": tag.tobytes(), "tag_at": at})

    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        whole = into if into is not None else huge_pages.empty(size_nbytes)
        self.source(ref, size_nbytes).read_into(0, whole)
        return Fetched(whole)

    def source(self, ref: Ref, size_nbytes: int) -> _RemoteValue:
        value = _RemoteValue(ref, self._copy)
        if value.size_nbytes != size_nbytes:
            raise BackendError("the spans do not make up the value")
        self.traffic.got(size_nbytes)
        return value

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
        """Copy the spans of process ``pid`` into the spans ``into`` of this process."""
        huge_pages.advise(*into[0])
        local = (_Span * len(into))(*(_Span(*span) for span in into))
        remote = (_Span * len(spans))(*(_Span(*span) for span in spans))
        done = self._read(pid, ctypes.byref(local), len(into), ctypes.byref(remote), len(spans), 0)
        if done == sum(length for _, length in spans):
            return
        code = ctypes.get_errno()
        if done < 0 and code not in (3, 14):  # ESRCH, EFAULT: the owner ended or freed it
            raise OSError(code, os.strerror(code))
        raise ValueGone("its owner has ended or freed it")


class _RemoteValue(Source):
    """A value in the memory of another process, read with ``ProcessVM._copy``."""

    def __init__(self, ref: Ref, copy: Callable[..., None]) -> None:
        self._copy = copy
        self._pid = int(ref["pid"])
        self._tag = ref["tag"]
        self._tag_span = (int(ref["tag_at"]), TAG_NBYTES)
        self._spans = [(int(at), int(length)) for at, length in ref["spans"]]
        self._ends = list(accumulate(length for _, length in self._spans))
        self.size_nbytes = self._ends[-1] if self._ends else 0

    def read_into(self, begin: int, view: memoryview) -> None:
        for start in range(0, view.nbytes, CALL_NBYTES_MAX):
            part = view[start : start + CALL_NBYTES_MAX]
            at = huge_pages.address(part)
            spans = self._within(begin + start, part.nbytes)
            for first in range(0, len(spans), PIECES_MAX):
                at = self._read(at, spans[first : first + PIECES_MAX])

    def _read(self, at: int, spans: Sequence[Span]) -> int:
        """Copy ``spans`` to address ``at``; return the address that follows them."""
        count = sum(length for _, length in spans)
        tag = memoryview(bytearray(TAG_NBYTES))
        # the tag is read last: if it matches, the process id was not reused meanwhile
        into = [(at, count), (huge_pages.address(tag), TAG_NBYTES)]
        self._copy(self._pid, into, [*spans, self._tag_span])
        if tag != self._tag:
            raise ValueGone("its owner has freed it")
        return at + count

    def _within(self, begin: int, length: int) -> list[Span]:
        """Return the spans of ``length`` bytes at ``begin``, or raise BackendError."""
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
