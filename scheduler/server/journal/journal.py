"""Write a journal, a file with every stimulus of the core, and read it.

A journal starts with a line that holds the format version. Records follow: length and CRC (both
u32, little endian), then msgpack. The first record is the header (release, configuration). The
others are:

- ``["s", time, source, message, stimulus_id, request_id]``: a stimulus.
- ``["w", [[n, command], ...]]`` after a stimulus: what plugins wrote in the n-th hook that its turn
  called.
- ``["f", digest]``: the outbox was flushed, and the digest of its content. Flushes shape the
  output, because each peer receives one batch per flush.
- ``["e", reason]``: the journal was closed.

A record that was cut off by a crash is the end of a journal, not an error. ``values`` converts the
values in records.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.ports import TurnWrites
from paceline.scheduler.core.stimuli import Stimulus
from paceline.scheduler.core.turn import Outbox
from paceline.scheduler.core.turn_observer import TurnObserver
from paceline.scheduler.server.runtime import build

from .values import JournalError, ValueCodec

logger = logging.getLogger("distributed.scheduler")

#: Start of the first line of a journal. The version follows.
MAGIC = b"paceline-journal-"
#: Version of the format. Raised when records, classes or their modules change.
FORMAT_VERSION = 3
#: Longest first line of a journal, bytes.
FIRST_LINE_MAX_NBYTES = 64
#: Size at which a journal is closed, because a full disk would be worse than an incomplete journal.
JOURNAL_MAX_NBYTES = 4 * 2**30
#: Largest size of a record that is read.
RECORD_MAX_NBYTES = 2**30

_PREFIX = struct.Struct("<II")


def output_digest(codec: ValueCodec, outbox: Outbox) -> bytes:
    """Return the hash of the content of ``outbox`` without its records for metrics."""
    parts = [outbox.clients, outbox.replies, outbox.workers, outbox.instructions]
    return hashlib.blake2b(codec.pack(parts), digest_size=8).digest()


# ------------------------------------------------------------------ writing


class JournalWriter(TurnObserver):
    """Writes a journal. Records are written to the file at each flush.

    Args:
        path: the file; an existing one is replaced.
        max_nbytes: the journal is closed at this size, with a line in the log.

    Attributes:
        turn_writes: what plugins write within the current turn.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: SchedulerConfig,
        max_nbytes: int = JOURNAL_MAX_NBYTES,
    ) -> None:
        self.path = Path(path)
        self.turn_writes = TurnWrites()
        self._codec = ValueCodec()
        self._file: BinaryIO | None = self.path.open("wb", buffering=0)
        self._max_nbytes = max_nbytes
        self._nbytes = 0
        self._n_stimuli = 0
        self._pending: list[bytes] = [MAGIC + b"%d\n" % FORMAT_VERSION]
        header = {
            "release": build.description(),
            "config": {f.name: getattr(config, f.name) for f in dataclasses.fields(config)},
        }
        self._record(["h", header])
        self.before_flush()

    def before_turn(self, stimulus: Stimulus, now: float) -> None:
        """See ``TurnObserver``: record the stimulus."""
        self.turn_writes.begin()
        if self._file is None:
            return
        self._n_stimuli += 1
        source, message, stimulus_id, request_id = stimulus
        self._record(["s", now, source, message, stimulus_id, request_id])

    def after_turn(self, stimulus: Stimulus) -> None:
        """See ``TurnObserver``: record what plugins wrote within the turn."""
        if self._file is not None and self.turn_writes.made:
            self._record(["w", self.turn_writes.made])

    def before_flush(self, outbox: Outbox | None = None) -> None:
        """See ``TurnObserver``: write all records to the file."""
        if self._file is None:
            return
        self._record(["f", output_digest(self._codec, outbox) if outbox else b""])
        self._write_pending()
        if self._nbytes > self._max_nbytes:
            self._end(f"size limit of {self._max_nbytes} bytes reached")

    def close(self) -> None:
        """Write all records and close the file."""
        if self._file is not None:
            self._end("closed", quiet=True)

    def _record(self, value: Any) -> None:
        body = self._codec.pack(value)
        self._pending.append(_PREFIX.pack(len(body), zlib.crc32(body)))
        self._pending.append(body)

    def _write_pending(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        if self._file is None:
            return
        try:
            self._file.write(data)
            self._nbytes += len(data)
        except OSError as error:
            logger.error("Cannot write the journal %s; closing it: %s", self.path, error)
            self._file.close()
            self._file = None

    def _end(self, reason: str, quiet: bool = False) -> None:
        self._record(["e", reason])
        self._write_pending()
        if self._file is not None:
            self._file.close()
            self._file = None
        if not quiet:
            logger.warning(
                "The journal %s ends after %d stimuli: %s", self.path, self._n_stimuli, reason
            )


# ------------------------------------------------------------------ reading


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A stimulus, or a flush of the outbox.

    Attributes:
        now: time of the stimulus, seconds since the epoch.
        stimulus: None for a flush.
        digest: of the flushed outbox; ``b""`` if it was empty.
        writes: (n, command) for what plugins wrote in the n-th hook that the turn called.
    """

    now: float
    stimulus: Stimulus | None
    digest: bytes = b""
    writes: tuple[tuple[int, Any], ...] = ()


class JournalReader:
    """Reads a journal that may lack its end.

    Attributes:
        ending: how the journal ended, as text. Set when it has been read.
        release: version and kind of build of the scheduler that wrote the journal.

    Raises:
        JournalError: the file is not a journal, or of another format version.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.ending = "not read to its end"
        self._path = os.fspath(path)
        self._n_stimuli = 0
        self._codec = ValueCodec()
        self._file = open(path, "rb")  # noqa: SIM115 - closed by __iter__
        self._check_version()
        record = self._next()
        if record is None or record[0] != "h":
            raise JournalError(f"{self._path} has no header")
        header = record[1]
        self.release: str = header["release"]
        known = {f.name for f in dataclasses.fields(SchedulerConfig)}
        self.config = SchedulerConfig(**{k: v for k, v in header["config"].items() if k in known})

    def _check_version(self) -> None:
        line = self._file.readline(FIRST_LINE_MAX_NBYTES)
        version = line.removeprefix(MAGIC).strip()
        if not line.startswith(MAGIC) or not version.isdigit():
            raise JournalError(f"{self._path} is not a journal of paceline")
        if int(version) != FORMAT_VERSION:
            age = "an older" if int(version) < FORMAT_VERSION else "a newer"
            raise JournalError(
                f"{self._path} was written by {age} release of paceline (journal format "
                f"{int(version)}; this release reads format {FORMAT_VERSION}). Replay it with that "
                "release."
            )

    def __iter__(self) -> Iterator[JournalEntry]:
        """Yield the entries.

        Raises:
            JournalError: a record is damaged. The entries before it are yielded, but not a
                stimulus directly before it, because its writes may be in the damaged record. The
                last record may be incomplete.
        """
        damage = None
        with self._file:
            record = self._next()
            while record is not None:
                try:
                    following = self._next()
                except JournalError as error:
                    if record[0] == "s":
                        raise
                    following, damage = None, error
                if record[0] == "s":
                    self._n_stimuli += 1
                    writes = following[1] if following is not None and following[0] == "w" else ()
                    yield JournalEntry(record[1], Stimulus(*record[2:6]), writes=tuple(writes))
                elif record[0] == "f":
                    yield JournalEntry(0.0, None, record[1])
                elif record[0] == "e":
                    self.ending = record[1]
                    return
                record = following
        if damage is not None:
            raise damage

    def _next(self) -> list[Any] | None:
        position = self._file.tell()
        prefix = self._file.read(_PREFIX.size)
        if not prefix:
            self.ending = "the process ended without closing it"
            return None
        if len(prefix) < _PREFIX.size:
            self.ending = "its last record is torn"
            return None
        length, checksum = _PREFIX.unpack(prefix)
        body = self._file.read(length) if length <= RECORD_MAX_NBYTES else b""
        if len(body) < length <= RECORD_MAX_NBYTES:
            self.ending = "its last record is torn"
            return None
        if not body or zlib.crc32(body) != checksum:
            raise JournalError(
                f"{self._path} is damaged at byte {position}. --until {self._n_stimuli} replays "
                "what precedes it."
            )
        record: list[Any] = self._codec.unpack(body)
        return record
