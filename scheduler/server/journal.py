"""The journal: every stimulus with its time, in a file; and reading it back.

A journal is a magic number and records: length and CRC (both u32, little endian), then msgpack. The first record is
the header (release, configuration). ``["s", time, source, message, stimulus_id, request_id]`` is a
stimulus, ``["w", [[n, command], ...]]`` after it what plugins wrote in the n-th hook that its turn called, ``["f", digest]`` says that the outbox was emptied there (batch boundaries shape the output) and what came of the
turns, ``["e", reason]`` that the journal ended by itself. A record that was cut off by a crash is the end of a journal, not an error.

Messages and dataclasses are written by class name and fields; tuples stay tuples. Bytes longer than
``BYTES_MAX_NBYTES`` (payload frames, buffers) are written as hash and length and come back as ``StubBytes``.

Must not know: the driver, what a stimulus does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import msgspec
from paceline.protocol.payload import Payload
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.stimuli import Stimulus
from paceline.scheduler.core.turn import Outbox

logger = logging.getLogger("distributed.scheduler")

MAGIC = b"paceline-journal-1\n"
#: A journal ends itself at this size: a full disk would hurt more than a journal without its end.
JOURNAL_MAX_NBYTES = 4 * 2**30
#: Longer byte strings are written as hash and length: the core never looks into them.
BYTES_MAX_NBYTES = 4096
#: A record may claim at most this size when read.
RECORD_MAX_NBYTES = 2**30

_PREFIX = struct.Struct("<II")

EXT_TUPLE = 1
EXT_SET = 2
EXT_OBJECT = 3
EXT_PAYLOAD = 4
EXT_STUB = 5
EXT_BIG_INT = 6
EXT_OTHER = 7

#: Modules whose classes a journal may name.
MODULES = (
    "paceline.protocol.messages",
    "paceline.scheduler.core.stimuli",
    "paceline.scheduler.extensions",
)


class JournalError(Exception):
    """A file is not a journal, or of another format."""


class StubBytes(bytes):
    """Stands for bytes that were too long for the journal: their hash and length, recognisable as such."""

    @classmethod
    def of(cls, data: Any) -> StubBytes:
        """A stub for ``data``."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return cls(b"journal-stub:" + digest + len(data).to_bytes(8, "little"))


# ------------------------------------------------------------------ values <-> bytes


class _Slots:
    """A class's fields in order, and how one is made from them."""

    __slots__ = ("cls", "names")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        if dataclasses.is_dataclass(cls):
            self.names: tuple[str, ...] = tuple(f.name for f in dataclasses.fields(cls))
        else:
            self.names = tuple(getattr(cls, "__struct_fields__", ()))


class ValueCodec:
    """Packs stimuli and outputs to bytes that are the same in any process, and unpacks them."""

    def __init__(self) -> None:
        self._slots: dict[type, _Slots] = {}
        self._by_name: dict[str, _Slots] = {}
        self._packer = msgpack.Packer(default=self._default, strict_types=True, use_bin_type=True)

    def pack(self, value: Any) -> bytes:
        """Bytes of a value: plain ones, messages, dataclasses, payloads."""
        packed: bytes = self._packer.pack(value)
        return packed

    def unpack(self, data: bytes) -> Any:
        """The value again.

        Raises:
            ValueError: not what ``pack`` made.
        """
        return msgpack.unpackb(
            data, ext_hook=self._ext, use_list=True, raw=False, strict_map_key=False
        )

    def _default(self, value: Any) -> Any:
        kind = type(value)
        if kind is tuple:
            return msgpack.ExtType(EXT_TUPLE, self._nested(list(value)))
        if kind is Payload:
            frames = [_shorten(frame) for frame in value.frames]
            return msgpack.ExtType(
                EXT_PAYLOAD, self._nested([value.kind, _shorten(value.header), frames])
            )
        if isinstance(value, StubBytes):
            return msgpack.ExtType(EXT_STUB, bytes(value))
        if kind is memoryview or kind is bytearray:
            return _shorten(value)
        if isinstance(value, set | frozenset):
            return msgpack.ExtType(EXT_SET, self._nested(sorted(value, key=repr)))
        if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(kind):
            slots = self._slots_of(kind)
            name = f"{kind.__module__}:{kind.__qualname__}"
            fields = [_shorten_field(getattr(value, n)) for n in slots.names]
            return msgpack.ExtType(EXT_OBJECT, self._nested([name, fields]))
        if isinstance(value, int):
            return msgpack.ExtType(EXT_BIG_INT, str(int(value)).encode())
        if isinstance(value, str):
            return str(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, Mapping):
            return dict(value.items())
        if isinstance(value, list | tuple):
            return list(value)
        return msgpack.ExtType(EXT_OTHER, f"{kind.__module__}.{kind.__qualname__}".encode())

    def _nested(self, value: Any) -> bytes:
        packed: bytes = msgpack.packb(
            value, default=self._default, strict_types=True, use_bin_type=True
        )
        return packed

    def _slots_of(self, cls: type) -> _Slots:
        slots = self._slots.get(cls)
        if slots is None:
            slots = self._slots[cls] = _Slots(cls)
        return slots

    def _ext(self, code: int, data: bytes) -> Any:
        if code == EXT_TUPLE:
            return tuple(self.unpack(data))
        if code == EXT_SET:
            return set(self.unpack(data))
        if code == EXT_PAYLOAD:
            kind, header, frames = self.unpack(data)
            return Payload(kind, header, tuple(frames))
        if code == EXT_OBJECT:
            return self._object(*self.unpack(data))
        if code == EXT_STUB:
            return StubBytes(data)
        if code == EXT_BIG_INT:
            return int(data)
        return f"<{data.decode()}>"

    def _object(self, name: str, fields: list[Any]) -> Any:
        slots = self._by_name.get(name)
        if slots is None:
            slots = self._by_name[name] = _Slots(_find_class(name))
        return slots.cls(**dict(zip(slots.names, fields)))


def _shorten(data: Any) -> Any:
    """Bytes as they are, or a stub for long ones."""
    if isinstance(data, StubBytes):
        return data
    if len(data) > BYTES_MAX_NBYTES:
        return StubBytes.of(data)
    return bytes(data)


def _shorten_field(value: Any) -> Any:
    if type(value) is bytes and len(value) > BYTES_MAX_NBYTES:
        return StubBytes.of(value)
    if type(value) is list and value and type(value[0]) is bytes:
        return [_shorten(v) if isinstance(v, bytes | memoryview) else v for v in value]
    return value


def _find_class(name: str) -> type:
    module_name, _, class_name = name.partition(":")
    if not module_name.startswith(MODULES) or "." in class_name:
        raise JournalError(f"a journal cannot name the class {name!r}")
    found = getattr(importlib.import_module(module_name), class_name, None)
    if not isinstance(found, type):
        raise JournalError(f"this release has no class {name!r}")
    return found


def output_digest(codec: ValueCodec, outbox: Outbox) -> bytes:
    """A hash of what came of some turns; records are for metrics and do not count."""
    parts = [outbox.clients, outbox.replies, outbox.workers, outbox.instructions]
    return hashlib.blake2b(codec.pack(parts), digest_size=8).digest()


# ------------------------------------------------------------------ writing


class JournalWriter:
    """Writes a journal; what a wake-up brought goes to the file at its end.

    Args:
        path: the file; an old one is replaced.
        config: with which the core was made.
        max_nbytes: at this size it ends itself, with a line in the log.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: SchedulerConfig,
        release: str = "",
        max_nbytes: int = JOURNAL_MAX_NBYTES,
    ) -> None:
        self.path = Path(path)
        self._codec = ValueCodec()
        self._file: BinaryIO | None = self.path.open("wb", buffering=0)
        self._max_nbytes = max_nbytes
        self._nbytes = 0
        self._n_stimuli = 0
        self._pending: list[bytes] = []
        self._write(MAGIC)
        header = {
            "release": release,
            "config": {f.name: getattr(config, f.name) for f in dataclasses.fields(config)},
        }
        self._record(["h", header])
        self.flushed()

    def stimulus(self, stimulus: Stimulus, now: float) -> None:
        """Note a stimulus that is about to be handled."""
        if self._file is None:
            return
        self._n_stimuli += 1
        source, message, stimulus_id, request_id = stimulus
        self._record(["s", now, source, message, stimulus_id, request_id])

    def writes(self, made: list[tuple[int, Any]]) -> None:
        """Note what plugins wrote within the turn of the last stimulus."""
        if self._file is not None:
            self._record(["w", made])

    def flushed(self, outbox: Outbox | None = None) -> None:
        """The outbox was emptied: everything noted so far goes to the file."""
        if self._file is None:
            return
        self._record(["f", output_digest(self._codec, outbox) if outbox else b""])
        data = b"".join(self._pending)
        self._pending.clear()
        self._write(data)
        if self._nbytes > self._max_nbytes:
            self._end(f"size limit of {self._max_nbytes} bytes reached")

    def close(self) -> None:
        """Finish the file."""
        if self._file is not None:
            self._end("closed", quiet=True)

    def _record(self, value: Any) -> None:
        body = self._codec.pack(value)
        self._pending.append(_PREFIX.pack(len(body), zlib.crc32(body)))
        self._pending.append(body)

    def _write(self, data: bytes) -> None:
        if self._file is None or not data:
            return
        try:
            self._file.write(data)
            self._nbytes += len(data)
        except OSError as error:
            logger.error("The journal %s ends here: %s", self.path, error)
            self._file.close()
            self._file = None

    def _end(self, reason: str, quiet: bool = False) -> None:
        self._record(["e", reason])
        data = b"".join(self._pending)
        self._pending.clear()
        self._write(data)
        if self._file is not None:
            self._file.close()
            self._file = None
        if not quiet:
            logger.warning(
                "The journal %s ends after %d stimuli: %s", self.path, self._n_stimuli, reason
            )


# ------------------------------------------------------------------ reading


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """How the core was made.

    Attributes:
        release: of paceline.
    """

    config: SchedulerConfig
    release: str


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A stimulus and its time, or (``stimulus`` is None) the outbox was emptied.

    Attributes:
        writes: (n, command): what plugins wrote in the n-th hook that the turn called.
        digest: of what was in the outbox; ``b""`` for nothing.
    """

    now: float
    stimulus: Stimulus | None
    digest: bytes = b""
    writes: tuple[tuple[int, Any], ...] = ()


class JournalReader:
    """Reads a journal that may lack its end.

    Attributes:
        header: its header.
        ending: after reading: how it ended, in words.

    Raises:
        JournalError: not a journal.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.ending = "not read to its end"
        self._codec = ValueCodec()
        self._file = open(path, "rb")  # noqa: SIM115 - closed by __iter__
        if self._file.read(len(MAGIC)) != MAGIC:
            raise JournalError(f"{os.fspath(path)} is not a journal of this format")
        record = self._next()
        if record is None or record[0] != "h":
            raise JournalError(f"{os.fspath(path)} has no header")
        header = record[1]
        known = {f.name for f in dataclasses.fields(SchedulerConfig)}
        config = SchedulerConfig(**{k: v for k, v in header["config"].items() if k in known})
        self.header = JournalHeader(config, header["release"])

    def __iter__(self) -> Iterator[JournalEntry]:
        with self._file:
            record = self._next()
            while record is not None:
                following = self._next()
                if record[0] == "s":
                    writes = following[1] if following is not None and following[0] == "w" else ()
                    yield JournalEntry(record[1], Stimulus(*record[2:6]), writes=tuple(writes))
                elif record[0] == "f":
                    yield JournalEntry(0.0, None, record[1])
                elif record[0] == "e":
                    self.ending = record[1]
                    return
                record = following

    def _next(self) -> list[Any] | None:
        prefix = self._file.read(_PREFIX.size)
        if not prefix:
            self.ending = "the process ended without closing it"
            return None
        if len(prefix) < _PREFIX.size:
            self.ending = "its last record is torn"
            return None
        length, checksum = _PREFIX.unpack(prefix)
        body = self._file.read(length) if length <= RECORD_MAX_NBYTES else b""
        if len(body) < length or zlib.crc32(body) != checksum:
            self.ending = "its last record is torn"
            return None
        record: list[Any] = self._codec.unpack(body)
        return record
