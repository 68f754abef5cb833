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

A record that was cut off by a crash is the end of a journal, not an error.

Messages and dataclasses are written as class name and fields, so the format version changes when
classes or their modules are renamed. Tuples remain tuples. Bytes longer than ``BYTES_MAX_NBYTES``
(payload frames, buffers) are written as hash and length and are read as ``StubBytes``.
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
from paceline.scheduler.core.ports import TurnWrites
from paceline.scheduler.core.stimuli import Stimulus
from paceline.scheduler.core.turn import Outbox
from paceline.scheduler.core.turn_observer import TurnObserver
from paceline.scheduler.server.runtime import build

logger = logging.getLogger("distributed.scheduler")

#: Start of the first line of a journal. The version follows.
MAGIC = b"paceline-journal-"
#: Version of the format. Raised when records, classes or their modules change.
FORMAT_VERSION = 2
#: Longest first line of a journal, bytes.
FIRST_LINE_MAX_NBYTES = 64
#: Size at which a journal is closed, because a full disk would be worse than an incomplete journal.
JOURNAL_MAX_NBYTES = 4 * 2**30
#: Longer byte strings are written as hash and length, because the core never reads their content.
BYTES_MAX_NBYTES = 4096
#: Largest size of a record that is read.
RECORD_MAX_NBYTES = 2**30

_PREFIX = struct.Struct("<II")

#: Numbers of msgpack extension types.
EXT_TUPLE = 1
EXT_SET = 2
EXT_OBJECT = 3
EXT_PAYLOAD = 4
EXT_STUB = 5
EXT_BIG_INT = 6
EXT_OTHER = 7
EXT_FLAT = 8

#: Extension types are nested up to this depth; each level takes about 32 kB of the C stack when it
#: is read.
EXT_DEPTH_MAX = 16
#: Kinds of nodes in a flat value.
_LEAF, _LIST, _TUPLE, _DICT = range(4)

#: Modules whose classes a journal may name.
MODULES = (
    "paceline.protocol.messages",
    "paceline.scheduler.core.stimuli",
    "paceline.scheduler.core.task_policy",
    "paceline.scheduler.extensions",
)


class JournalError(Exception):
    """A file is not a journal of this format."""


class StubBytes(bytes):
    """Replaces bytes that were too long for the journal: contains their hash and length."""

    @classmethod
    def of(cls, data: Any) -> StubBytes:
        """Return the stub for ``data``."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return cls(b"journal-stub:" + digest + len(data).to_bytes(8, "little"))


# ------------------------------------------------------------------ values <-> bytes


def _field_names(cls: type) -> tuple[str, ...]:
    """Return the names of the fields of a message class or dataclass, in order."""
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return tuple(getattr(cls, "__struct_fields__", ()))


class ValueCodec:
    """Packs stimuli and outputs to bytes that do not depend on the process, and unpacks them."""

    def __init__(self) -> None:
        self._ext_depth = 0

    def pack(self, value: Any) -> bytes:
        """Return the bytes of ``value``, made of plain values, messages, dataclasses and payloads.

        Values may be nested to any depth.
        """
        if self._ext_depth < EXT_DEPTH_MAX:
            self._ext_depth += 1
            try:
                return self._packed(value)
            except (RecursionError, ValueError):  # nested too deeply for msgpack
                pass
            finally:
                self._ext_depth -= 1
        return self._packed(msgpack.ExtType(EXT_FLAT, self._packed(flatten(value))))

    def unpack(self, data: bytes) -> Any:
        """Return the value of which ``pack`` returned ``data``.

        Raises:
            ValueError: ``data`` was not made by ``pack``.
        """
        return msgpack.unpackb(
            data, ext_hook=self._ext, use_list=True, raw=False, strict_map_key=False
        )

    def _default(self, value: Any) -> Any:
        kind = type(value)
        if kind is tuple:
            return msgpack.ExtType(EXT_TUPLE, self.pack(list(value)))
        if kind is Payload:
            frames = [_shorten(frame) for frame in value.frames]
            return msgpack.ExtType(
                EXT_PAYLOAD, self.pack([value.kind, _shorten(value.header), frames])
            )
        if isinstance(value, StubBytes):
            return msgpack.ExtType(EXT_STUB, bytes(value))
        if kind is memoryview or kind is bytearray:
            return _shorten(value)
        if isinstance(value, set | frozenset):
            return msgpack.ExtType(EXT_SET, self.pack(sorted(value, key=repr)))
        if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(kind):
            name = f"{kind.__module__}:{kind.__qualname__}"
            fields = [_shorten_field(getattr(value, n)) for n in _field_names(kind)]
            return msgpack.ExtType(EXT_OBJECT, self.pack([name, fields]))
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

    def _packed(self, value: Any) -> bytes:
        packed: bytes = msgpack.packb(
            value, default=self._default, strict_types=True, use_bin_type=True
        )
        return packed

    def _ext(self, code: int, data: bytes) -> Any:
        if code == EXT_TUPLE:
            return tuple(self.unpack(data))
        if code == EXT_SET:
            return set(self.unpack(data))
        if code == EXT_PAYLOAD:
            kind, header, frames = self.unpack(data)
            return Payload(kind, header, tuple(frames))
        if code == EXT_OBJECT:
            name, values = self.unpack(data)
            cls = _find_class(name)
            return cls(**dict(zip(_field_names(cls), values)))
        if code == EXT_STUB:
            return StubBytes(data)
        if code == EXT_BIG_INT:
            return int(data)
        if code == EXT_FLAT:
            return unflatten(self.unpack(data))
        return f"<{data.decode()}>"


def flatten(value: Any) -> list[Any]:
    """Return lists, tuples and dicts within `value` as one flat list, without recursion.

    The list has two items per node: its kind, and the leaf or the number of children. Children
    precede their parent.
    """
    flat: list[Any] = []
    pending = [value]
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind is list or kind is tuple:
            flat += (len(node), _LIST if kind is list else _TUPLE)
            pending += node
        elif kind is dict:
            flat += (len(node), _DICT)
            for item in node.items():
                pending += item
        else:
            flat += (node, _LEAF)
    flat.reverse()
    return flat


def unflatten(flat: list[Any]) -> Any:
    """Return the value that ``flatten`` was called with."""
    done: list[Any] = []
    for kind, what in zip(flat[::2], flat[1::2], strict=True):
        if kind == _LEAF:
            done.append(what)
            continue
        start = len(done) - (2 * what if kind == _DICT else what)
        children = done[start:]
        del done[start:]
        if kind == _DICT:
            done.append(dict(zip(children[::2], children[1::2], strict=True)))
        else:
            done.append(tuple(children) if kind == _TUPLE else children)
    (value,) = done
    return value


def _shorten(data: Any) -> Any:
    """Return ``data`` as bytes, or a stub if it is long."""
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
        raise JournalError(f"the class {name!r} is not allowed in a journal")
    found = getattr(importlib.import_module(module_name), class_name, None)
    if not isinstance(found, type):
        raise JournalError(f"this release has no class {name!r}")
    return found


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
