"""Copy into huge pages, because page faults dominate the cost of large copies into fresh memory.

numpy requests huge pages for its arrays; ``bytes`` objects do not have them.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

#: Smallest size in bytes for which huge pages are requested; the same as in numpy.
WORTH_NBYTES = 4 << 20
_PAGE_NBYTES = mmap.PAGESIZE
_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", 14)
_LIBC = ctypes.CDLL(None)
_MADVISE = getattr(_LIBC, "madvise", None)  # None: not supported


def address(view: memoryview) -> int:
    """Return the memory address of ``view``."""
    return int(np.frombuffer(view, "u1").ctypes.data)


def empty(size_nbytes: int) -> memoryview:
    """Return a writable view of fresh memory; numpy requests huge pages for large sizes."""
    return memoryview(np.empty(size_nbytes, "u1").data)


def advise(begin: int, size_nbytes: int) -> None:
    """Request huge pages for `size_nbytes` at address `begin`, if large enough and possible."""
    if size_nbytes < WORTH_NBYTES or _MADVISE is None:
        return
    first = -(-begin // _PAGE_NBYTES) * _PAGE_NBYTES
    end = (begin + size_nbytes) // _PAGE_NBYTES * _PAGE_NBYTES
    _MADVISE(ctypes.c_void_p(first), ctypes.c_size_t(end - first), ctypes.c_int(_HUGEPAGE))


def copy(source: memoryview, into: memoryview) -> None:
    """Copy ``source`` into ``into``, which has the same size, without holding the GIL."""
    target = np.frombuffer(into, "u1")
    advise(int(target.ctypes.data), target.nbytes)
    np.copyto(target, np.frombuffer(source, "u1"))
