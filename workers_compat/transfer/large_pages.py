"""Fresh memory in large pages, where the system gives them to those who ask: most of what a large copy costs is its pages.

numpy asks for its arrays, nobody for ``bytes``. Must not know: what is copied.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

WORTH_NBYTES = 4 << 20
"""From this size on, as numpy."""
_PAGE_NBYTES = mmap.PAGESIZE
_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", 14)
_LIBC = ctypes.CDLL(None)
_MADVISE = getattr(_LIBC, "madvise", None)  # without it, pages are what they are


def address(view: memoryview) -> int:
    """Where the bytes of a view lie."""
    return int(np.frombuffer(view, "u1").ctypes.data)


def advise(begin: int, size_nbytes: int) -> None:
    """Ask for large pages for memory at an address, where it is worth it. A system that refuses gives small ones."""
    if size_nbytes < WORTH_NBYTES or _MADVISE is None:
        return
    first = -(-begin // _PAGE_NBYTES) * _PAGE_NBYTES
    end = (begin + size_nbytes) // _PAGE_NBYTES * _PAGE_NBYTES
    _MADVISE(ctypes.c_void_p(first), ctypes.c_size_t(end - first), ctypes.c_int(_HUGEPAGE))


def copy(source: memoryview, into: memoryview) -> None:
    """Copy bytes into fresh memory of as many, without the interpreter's lock."""
    target = np.frombuffer(into, "u1")
    advise(int(target.ctypes.data), target.nbytes)
    np.copyto(target, np.frombuffer(source, "u1"))
