"""``malloc_trim`` of the C library, which returns free memory to the operating system.

The C library keeps free memory between allocations that are in use. After large graphs the resident
size of a process would otherwise look like a leak.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable


def malloc_trim() -> Callable[[], object] | None:
    """Return a function that calls glibc's ``malloc_trim``, or None if the C library has none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)


def trim_in_thread() -> threading.Thread | None:
    """Return free memory in a thread that does not hold the GIL. Gigabytes take a while."""
    trim = malloc_trim()
    if trim is None:
        return None
    thread = threading.Thread(target=trim, name="paceline-malloc-trim", daemon=True)
    thread.start()
    return thread
