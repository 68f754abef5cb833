"""Bytes that wait their turn: a few in memory, the others in an unlinked temporary file.

Must not know: whose they are.
"""

from __future__ import annotations

import os
import tempfile
from typing import BinaryIO

from paceline.protocol.compression import Buffer

#: So much waits in memory; what comes after goes to the file.
MEMORY_NBYTES = 2**19
#: What is given back at a time.
PIECE_NBYTES = 2**18


class Shelf:
    """First in, first out.

    Args:
        directory: where the file goes; None is the system's place for such.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._memory: list[bytes] = []
        self._memory_nbytes = 0
        self._file: BinaryIO | None = None
        self._first = 0
        self._end = 0

    def __len__(self) -> int:
        """Bytes that wait."""
        return self._memory_nbytes + self._end - self._first

    def put(self, data: Buffer) -> None:
        """Add; ``data`` may be reused after the call.

        Raises:
            OSError: no file can be had, or the disk is full.
        """
        if self._file is None:
            if self._memory_nbytes + len(data) <= MEMORY_NBYTES or not self._memory:
                self._memory.append(bytes(data))
                self._memory_nbytes += len(data)
                return
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - closed in ``close``
        view = memoryview(data)
        while view:
            count = os.pwrite(self._file.fileno(), view, self._end)
            self._end += count
            view = view[count:]

    def take(self) -> bytes:
        """What came first, up to ``PIECE_NBYTES``, or what was put at once; b"" when there is nothing.

        Raises:
            OSError: the file cannot be read.
        """
        if self._memory:
            piece = self._memory.pop(0)
            self._memory_nbytes -= len(piece)
            return piece
        if self._file is None:
            return b""
        count = min(PIECE_NBYTES, self._end - self._first)
        piece = os.pread(self._file.fileno(), count, self._first)
        self._first += len(piece)
        if self._first == self._end:
            self.close()
        return piece

    def close(self) -> None:
        """Forget all of it."""
        self._memory.clear()
        self._memory_nbytes = self._first = self._end = 0
        if self._file is not None:
            self._file.close()
            self._file = None
