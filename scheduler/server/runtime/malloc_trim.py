"""Return memory that was freed to the operating system.

The C library keeps free memory between allocations that are in use. After large graphs the resident
size of the scheduler would otherwise look like a leak.
"""

from __future__ import annotations

import threading

from paceline.workers_compat.malloc_trim import malloc_trim


def trim_in_thread() -> threading.Thread | None:
    """Return free memory in a thread that does not hold the GIL. Gigabytes take a while."""
    trim = malloc_trim()
    if trim is None:
        return None
    thread = threading.Thread(target=trim, name="paceline-give-back", daemon=True)
    thread.start()
    return thread
