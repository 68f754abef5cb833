"""Memory that was freed goes back to the system.

The C library keeps what was freed between pieces that are in use. After large graphs that is much, and who looks at the
scheduler's memory takes it for a leak.

Must not know: when there is time for it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable


def trimmer() -> Callable[[], object] | None:
    """What gives free memory back (glibc's ``malloc_trim``); None where the C library has nothing of the kind."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)


def give_back() -> threading.Thread | None:
    """Begin to give free memory back, in a thread: of gigabytes it takes a while, and needs no interpreter."""
    trim = trimmer()
    if trim is None:
        return None
    thread = threading.Thread(target=trim, name="paceline-give-back", daemon=True)
    thread.start()
    return thread
