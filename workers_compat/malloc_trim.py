"""``malloc_trim`` of the C library, which returns free memory to the operating system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def malloc_trim() -> Callable[[], object] | None:
    """Return a function that calls glibc's ``malloc_trim``, or None if the C library has none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)
