"""The log: records in memory-mapped segment files, which survive the death of the process.

A segment starts with a line that holds the format version, padded to ``START_NBYTES``. Records
follow: length of the body and CRC (both u32), connection (u32) and kind (u32), then the body, all
little endian. A kind of zero ends the segment. The body is written before the header, and the kind
last. So a record is there as a whole or not at all, even if the process is killed in between, and
one whose CRC is wrong was damaged later. Records do not cross segments.

A new segment is renamed to its final name once it has its first line, because the process can be
killed while it creates one.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from paceline.protocol.compression import Buffer

#: Version of the format of segments and of the records in them, which another release may read.
FORMAT = 5
#: First line of a segment.
MAGIC = b"paceline-log-%d\n" % FORMAT
#: Position of the first record in a segment.
START_NBYTES = 64
#: Size of a segment. A larger record gets a segment of its own size.
SEGMENT_NBYTES = 64 * 2**20
#: File name of a segment.
SEGMENT_NAME = "segment-{:08d}.log"
#: File names of segments, also of one that is being created.
SEGMENT_PATTERN = re.compile(r"segment-(\d{8})\.(log|tmp)")

_HEADER = Struct("<IIII")


class RecoveryError(Exception):
    """The log is damaged, has another format, or contradicts itself or the kernel."""


class Record(NamedTuple):
    """A record of the log.

    Attributes:
        kind: one of the kinds in ``recorder.py``.
        connection: number of the connection that it concerns, or 0.
        body: its content, in memory that is valid as long as the log is open.
    """

    kind: int
    connection: int
    body: Buffer


class LogSegment:
    """A segment file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            start = file.read(START_NBYTES)
            if len(start) < START_NBYTES or not start.startswith(MAGIC):
                raise RecoveryError(f"{path} is not a segment of this release's log")
            self._map = mmap.mmap(file.fileno(), 0)
            self._inode = os.fstat(file.fileno()).st_ino
        self.view = memoryview(self._map)
        self.end = START_NBYTES

    @classmethod
    def create(cls, path: Path, nbytes: int) -> LogSegment:
        """Create the file `path` of `nbytes`, and return it as an empty segment.

        Raises:
            OSError: the disk is full, or another scheduler has created the file.
        """
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            # a write to a mapped page for which the disk has no space would kill the process
            os.posix_fallocate(descriptor, 0, nbytes)
            os.write(descriptor, MAGIC)
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(descriptor)
        return cls(path)

    @property
    def is_removed(self) -> bool:
        """Return whether the file was removed, even if there is another one of this name."""
        try:
            return os.stat(self.path).st_ino != self._inode
        except FileNotFoundError:
            return True

    @property
    def is_complete(self) -> bool:
        """Return whether nothing follows the last record that was read."""
        return not any(self.view[self.end : self.end + _HEADER.size])

    def records(self) -> Iterator[Record]:
        """Return the records up to the first incomplete one, and set ``end`` behind the last.

        Raises:
            RecoveryError: a record is damaged.
        """
        view, limit = self.view, len(self.view)
        while self.end + _HEADER.size <= limit:
            length, checksum, connection, kind = _HEADER.unpack_from(view, self.end)
            start = self.end + _HEADER.size
            body = view[start : start + length]
            if not kind:
                return
            if len(body) < length or checksum != _checksum(kind, connection, body):
                raise RecoveryError(f"{self.path} is damaged at byte {self.end}")
            self.end = start + length
            yield Record(kind, connection, body)


def _checksum(kind: int, connection: int, body: Buffer) -> int:
    return zlib.crc32(body, kind << 24 ^ connection & 0xFFFFFFFF)


class Position(NamedTuple):
    """A position between two records of a log: the number of the segment, and a byte in it."""

    segment: int
    nbytes: int


class Log:
    """The log in a folder. Read all of it first; then records can be appended.

    Args:
        folder: contains the segments.
        since: position of the first record to read; None for all.

    Raises:
        OSError: a file cannot be read or created.
        RecoveryError: a file is not a segment, or segments are missing.
    """

    def __init__(self, folder: Path, since: Position | None = None) -> None:
        self._folder = folder
        first = since.segment if since is not None else 1
        self._segments = [
            LogSegment(path)
            for path in sorted(folder.glob("segment-*.log"))
            if segment_number(path) >= first
        ]
        numbers = [segment_number(segment.path) for segment in self._segments]
        if numbers != list(range(first, first + len(numbers))) or (since and not numbers):
            raise RecoveryError(f"the log in {folder} is missing, or a part of it")
        if since is not None:
            self._segments[0].end = since.nbytes
        self._last = numbers[-1] if numbers else 0

    def __iter__(self) -> Iterator[Record]:
        """Return all complete records, oldest first.

        Raises:
            RecoveryError: a record is damaged, or missing before the last segment.
        """
        for segment in self._segments:
            yield from segment.records()
            if segment is not self._segments[-1] and not segment.is_complete:
                raise RecoveryError(f"{segment.path} is damaged at byte {segment.end}")

    @property
    def position(self) -> Position:
        """The position behind the last record."""
        return Position(self._last, self._segments[-1].end if self._segments else START_NBYTES)

    def forget_old(self) -> None:
        """Unmap all segments but the last one. Their files stay."""
        del self._segments[:-1]

    def close(self) -> None:
        """Unmap all segments. Nothing can be appended any more."""
        self._segments.clear()

    def check(self) -> None:
        """Check that the file to which records are appended is still there.

        It may not be if a program has removed the folder, or if the keeper of this process has died
        and another scheduler uses the folder.

        Raises:
            OSError: the log was removed.
        """
        if self._segments and self._segments[-1].is_removed:
            raise OSError(errno.ESTALE, "the log was removed")

    def append(self, kind: int, connection: int, body: Buffer) -> None:
        """Append a record.

        Raises:
            OSError: the disk is full, or the log was removed.
        """
        length = len(body)
        segment = self._segments[-1] if self._segments else None
        if segment is None or segment.end + _HEADER.size + length > len(segment.view):
            segment = self._begin_segment(length)
        start = segment.end
        end = start + _HEADER.size + length
        segment.view[start + _HEADER.size : end] = body
        checksum = _checksum(kind, connection, body)
        _HEADER.pack_into(segment.view, start, length, checksum, connection, kind)
        segment.end = end

    def _begin_segment(self, length: int) -> LogSegment:
        self.check()
        nbytes = max(SEGMENT_NBYTES, START_NBYTES + _HEADER.size + length)
        path = self._folder / SEGMENT_NAME.format(self._last + 1)
        segment = LogSegment.create(path, nbytes)
        self._segments.append(segment)
        self._last += 1
        return segment


def segment_number(path: Path) -> int:
    """Return the number in the name of a segment; 0 if it is another file."""
    found = SEGMENT_PATTERN.fullmatch(path.name)
    return int(found[1]) if found else 0


def remove_segments(folder: Path, before: int = sys.maxsize) -> int:
    """Remove the segments in ``folder`` with numbers less than ``before``. Return their number."""
    paths = [path for path in folder.glob("segment-*") if 0 < segment_number(path) < before]
    for path in paths:
        path.unlink(missing_ok=True)
    return len(paths)
