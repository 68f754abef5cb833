"""The end of a process that has run user code."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """Write buffered output and end this process with exit code `code`.

    Threads of user code do not delay the end, and its exit handlers do not run. User code may have
    closed or replaced the streams.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
