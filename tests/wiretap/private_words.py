"""Recorded bytes without paths and names of this machine."""

from __future__ import annotations

import functools
import getpass
import os
import socket
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def private_words() -> list[bytes]:
    """Return paths and names of this machine, longest first."""
    words = {
        *(*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix),
        *(str(ROOT), str(Path.home()), os.getcwd(), tempfile.gettempdir() + "/"),
        *(socket.gethostname(), socket.getfqdn(), getpass.getuser()),
        *(os.uname().release, os.uname().version),
    }
    long = {word for word in words if len(word) > 4 and word != "localhost"}
    return [word.encode() for word in sorted(long, key=len, reverse=True)]


def overwrite_private_words(data: bytes) -> bytes:
    """Return `data` with other words of the same length in place of private ones."""
    for word in private_words():
        slash = b"/" if word.startswith(b"/") else b""
        data = data.replace(word, (slash + b"somewhere-else-" * len(word))[: len(word)])
    return data
