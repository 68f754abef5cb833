"""Snapshots: the state of a scheduler in a file, which another release can read.

A snapshot starts with a header of 52 bytes, little endian: a line that holds the format version,
padded to 32 bytes; the length of the records and the length of the table (both u64); the CRC-32 of
both (u32). Records and table follow.

The table is a pickle of built-in objects (``Table``). The records are written by one pickler with
protocol 5, so that a later one may refer to objects of an earlier one. The first record is the
root. Each other record contains the attributes of some objects of one shape, by column:
``(number of the shape, numbers of the objects, columns, names of columns with unset values)``. The
numbers of the objects are u32. A *shape* is a class of paceline with the names of attributes.

Objects of paceline whose class compares by identity are replaced by ``object_at(number)`` wherever
they occur, so that chains of tasks need no recursion. Other objects of paceline are replaced by
``value_of(class, names, values)``. Everything else is pickled as usual, functions by reference.

A reader creates all objects, and then sets their attributes. It ignores attributes that its classes
do not have. An attribute that the snapshot does not have gets the value that the constructor sets,
for the classes in ``CONSTRUCTORS``, or else the default in the class body. Other changes of these
classes need a new format version.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import mmap
import pickle
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from itertools import count, repeat
from operator import attrgetter
from struct import Struct
from typing import IO, Any, TypedDict

import msgspec
from paceline.protocol.connection import Connection
from paceline.protocol.framing import HANDSHAKE_LIMITS, FrameReader
from paceline.protocol.payload import Payload
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.state.containers import LoadBuckets, PriorityQueue
from paceline.scheduler.core.state.deferred import Deferred
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.state.fixed_set import FixedSet
from paceline.scheduler.core.state.graphs.spans import SpanTree
from paceline.scheduler.core.state.model import TaskGroup, TaskPrefix, TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import Account, ShareGroup, Shares
from paceline.scheduler.core.state.sharing.fair_queue import FairQueue, ShareQueue
from paceline.scheduler.core.state.workers.loads import WorkerLoads
from paceline.scheduler.core.state.workers.locality import SharedMemoryDomains
from paceline.scheduler.core.state.workers.stealing import StealingState
from paceline.scheduler.server.peers.receive_spool import ReceiveSpool
from paceline.workers_compat.counters import next_number

logger = logging.getLogger("distributed.scheduler")

#: First line of a snapshot.
MAGIC = b"paceline-snapshot-10\n"
_HEADER = Struct("<32sQQI")
#: Objects in a record.
BATCH_OBJECTS = 1_000
#: Bytes that are checked at a time.
CHECKED_NBYTES = 2**20

#: Attributes that are not written, because a reader creates them.
OMITTED: dict[type, frozenset[str]] = {
    SchedulerCore: frozenset({"handlers"}),
    SchedulerState: frozenset({"plugins"}),
}


#: Creates objects whose class has a constructor that compiled classes cannot do without.
CONSTRUCTORS: dict[type, Callable[[], Any]] = {
    Deferred: Deferred,
    EventLog: EventLog,
    FairQueue: lambda: FairQueue(Shares(SchedulerConfig())),
    LoadBuckets: LoadBuckets,
    Payload: partial(Payload, "pickled", b""),
    PriorityQueue: PriorityQueue,
    SchedulerCore: lambda: SchedulerCore(SchedulerConfig(), None, EventLog()),  # type: ignore[arg-type]
    SchedulerState: lambda: SchedulerState(SchedulerConfig(), EventLog(), None),  # type: ignore[arg-type]
    ShareQueue: lambda: ShareQueue(ShareGroup("", 0)),
    SharedMemoryDomains: lambda: SharedMemoryDomains({}),
    Shares: lambda: Shares(SchedulerConfig()),
    SpanTree: SpanTree,
    StealingState: lambda: StealingState(0.0, {}),
    TaskState: partial(
        TaskState, "", TaskGroup("", TaskPrefix("")), Account("", ShareGroup("", 0))
    ),
    WorkerLoads: lambda: WorkerLoads({}),
}


class SnapshotError(Exception):
    """A file is not a complete snapshot that this release can read."""


class Table(TypedDict):
    """The content of the table.

    Attributes:
        about: facts about the snapshot, such as the release that wrote it.
        shapes: module, qualified name and names of attributes of each shape.
        objects: the shape of each object, u32.
        n_records: number of records after the first.
    """

    about: dict[str, Any]
    shapes: list[tuple[str, str, tuple[str, ...]]]
    objects: bytes
    n_records: int


class Unset:
    """Marks an attribute that an object does not have."""


def object_at(number: int) -> Any:
    """Return an object of the snapshot. Readers replace this function."""
    raise SnapshotError(f"object {number} is not in a snapshot")


def value_of(cls: type, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Return an object that is compared by its attributes, or a named tuple or struct."""
    known = dict(zip(names, values, strict=True))
    fields = _tuple_or_struct_fields(cls)
    if fields:
        return cls(**{name: known[name] for name in fields if name in known})
    made = _constructor(cls)()
    expected = _declared(cls)
    for name, value in known.items():
        if value is not Unset and (not expected or name in expected):
            object.__setattr__(made, name, value)
    for name in _missing(cls, expected, names):
        object.__setattr__(made, name, _default(cls, name))
    return made


def _tuple_or_struct_fields(cls: type) -> tuple[str, ...]:
    """Return the fields of a class of named tuples or structs; empty for other classes."""
    return getattr(cls, "_fields", ()) or getattr(cls, "__struct_fields__", ())


def connection_of(phase: str, agreement: Any) -> Any:
    """Return the protocol state of an accepted connection. Readers replace this function."""
    raise SnapshotError(f"a connection in the phase {phase} with {agreement}")


def reader_of(unread: bytes, is_admitted: bool, error: str | None) -> FrameReader:
    """Return the reader of an accepted connection, which has received a part of a message."""
    reader = FrameReader(first=HANDSHAKE_LIMITS)
    reader.resume(unread, is_admitted, error)
    return reader


# writing


class _Writer(pickle.Pickler):
    """Writes the records, and collects what the table contains."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=5)
        self.shapes: dict[tuple[type, tuple[str, ...]], int] = {}
        self.objects = array("I")
        self._pending: dict[tuple[type, tuple[str, ...]], list[tuple[int, Any]]] = {}
        self._reducers: dict[type, Callable[[Any], Any] | None] = {}

    def reducer_override(self, value: Any) -> Any:
        cls = type(value)
        try:
            reduce = self._reducers[cls]
        except KeyError:
            reduce = self._reducers[cls] = self._reducer(cls)
        return NotImplemented if reduce is None else reduce(value)

    def _reducer(self, cls: type) -> Callable[[Any], Any] | None:
        """Return the function that replaces objects of a class; None to pickle them as usual."""
        for base, reduce in _REDUCERS:
            if issubclass(cls, base):
                return reduce
        if not cls.__module__.startswith("paceline."):
            return None
        if hasattr(cls, "_fields") or _compares_by_value(cls):
            return _value
        names = tuple([name for name in _declared(cls) if name not in OMITTED.get(cls, ())])
        return lambda value: self._object(value, (cls, _attributes(value, names)))

    def _object(self, value: Any, shape: tuple[type, tuple[str, ...]]) -> Any:
        number = len(self.objects)
        self.objects.append(self.shapes.setdefault(shape, len(self.shapes)))
        self._pending.setdefault(shape, []).append((number, value))
        return object_at, (number,)

    def records(self, root: Any) -> int:
        """Write all records. Return the number of those after the first."""
        self.dump(root)
        n_records = 0
        while self._pending:
            shape, found = self._pending.popitem()
            for first in range(0, len(found), BATCH_OBJECTS):
                numbers, objects = zip(*found[first : first + BATCH_OBJECTS], strict=True)
                columns, unset = _columns(objects, shape[1])
                self.dump((self.shapes[shape], array("I", numbers).tobytes(), columns, unset))
                n_records += 1
        return n_records


def _compares_by_value(cls: type) -> bool:
    """Return whether objects of a class may be keys that are found by their attributes."""
    hash_function: Any = cls.__hash__
    return hash_function is not None and hash_function is not object.__hash__


def _attributes(value: Any, declared: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the attributes of an object, ``declared`` and others."""
    others = getattr(value, "__dict__", None)
    if not others:
        return declared
    omitted = (*declared, *OMITTED.get(type(value), ()))
    return (*declared, *[name for name in others if name not in omitted])


def _declared(cls: type) -> dict[str, None]:
    """Return the names of the attributes that all objects of a class have, as far as is known."""
    names: list[str] = [*getattr(cls, "__mypyc_attrs__", ())]
    if dataclasses.is_dataclass(cls):
        names += [field.name for field in dataclasses.fields(cls)]
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return dict.fromkeys(name for name in names if name not in ("__dict__", "__weakref__"))


def _columns(
    objects: Sequence[Any], names: tuple[str, ...]
) -> tuple[list[Sequence[Any]], frozenset[str]]:
    """Return the attributes of objects, by name, and the names that some of them do not have."""
    if not names:
        return [], frozenset()
    try:
        rows = list(map(attrgetter(*names), objects))
    except AttributeError:
        columns = [[getattr(each, name, Unset) for each in objects] for name in names]
        unset = [name for name in names if any(not hasattr(each, name) for each in objects)]
        return list(columns), frozenset(unset)
    return [rows] if len(names) == 1 else list(map(list, zip(*rows, strict=True))), frozenset()


def _value(value: Any) -> Any:
    cls = type(value)
    names = _tuple_or_struct_fields(cls) or tuple(_declared(cls)) or tuple(value.__dict__)
    return value_of, (cls, names, tuple([getattr(value, name, Unset) for name in names]))


def _usual(value: Any) -> Any:
    return NotImplemented


def _as_bytes(buffer: Any) -> Any:
    return bytes, (bytes(buffer),)


#: How objects of special classes and their subclasses are pickled, first match first.
_REDUCERS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (memoryview, _as_bytes),
    (mmap.mmap, _as_bytes),
    # its reduction is deprecated
    (count, lambda numbers: (count, (next_number(numbers),))),
    (FixedSet, lambda items: (FixedSet, (tuple(items),))),
    (Connection, lambda connection: (connection_of, (connection.phase, connection.agreement))),
    (FrameReader, lambda reader: (reader_of, reader.captured())),
    (ReceiveSpool, lambda spool: (type(None), ())),  # its files are those of this process
    (BaseException, _usual),
    (Enum, _usual),
    (dict, _usual),
    (list, _usual),
    (msgspec.Struct, _value),
)


class _CheckedFile:
    """Writes to a file and computes the CRC of what it writes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.crc = self.nbytes = 0

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.crc = zlib.crc32(data, self.crc)
        self.nbytes += len(data)
        return len(data)


def write(file: IO[bytes], root: Any, about: dict[str, Any]) -> int:
    """Write a snapshot. Return its size in bytes.

    Args:
        file: an empty file.
        root: the object from which all others are reached.
        about: facts for ``read``, of built-in types.

    Raises:
        OSError: the disk is full.
        SnapshotError: an object cannot be pickled.
    """
    file.write(bytes(_HEADER.size))
    checked = _CheckedFile(file)
    writer = _Writer(checked)
    try:
        n_records = writer.records(root)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"the state cannot be written: {error}") from error
    nbytes = checked.nbytes
    table = Table(
        about=about,
        shapes=[(cls.__module__, cls.__qualname__, names) for cls, names in writer.shapes],
        objects=writer.objects.tobytes(),
        n_records=n_records,
    )
    checked.write(pickle.dumps(table, protocol=5))
    file.seek(0)
    file.write(_HEADER.pack(MAGIC, nbytes, checked.nbytes - nbytes, checked.crc))
    file.flush()
    return _HEADER.size + checked.nbytes


# reading


class _TableReader(pickle.Unpickler):
    """Reads a table, which contains built-in objects only."""

    def find_class(self, module: str, name: str) -> Any:
        raise SnapshotError(f"the table of the snapshot contains {module}.{name}")


class _Reader(pickle.Unpickler):
    """Reads the records.

    Args:
        new_connection: returns the protocol state of an accepted connection.
    """

    def __init__(
        self, file: IO[bytes], table: Table, new_connection: Callable[[], Connection]
    ) -> None:
        super().__init__(file)
        self._new_connection = new_connection
        self._shapes = [(self._class(*shape[:2]), shape[2]) for shape in table["shapes"]]
        new = [_constructor(cls) for cls, _ in self._shapes]
        self._objects = [make() for make in map(new.__getitem__, _numbers(table["objects"]))]
        self._ignored: set[tuple[str, str]] = set()

    def _class(self, module: str, qualname: str) -> type:
        cls = self.find_class(module, qualname)
        if not isinstance(cls, type) or not module.startswith("paceline."):
            raise SnapshotError(f"{module}.{qualname} is not a class of paceline")
        return cls

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == object_at.__name__:
            return self._objects.__getitem__
        if module == __name__ and name == connection_of.__name__:
            return self._connection
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError) as error:
            raise SnapshotError(f"this release has no {module}.{name}") from error

    def _connection(self, phase: Any, agreement: Any) -> Connection:
        connection = self._new_connection()
        connection.resume(phase, agreement)
        return connection

    def records(self, n_records: int) -> Any:
        """Read all records. Return the root."""
        root = self.load()
        for _ in range(n_records):
            shape, numbers, columns, unset = self.load()
            cls, names = self._shapes[shape]
            objects = [self._objects[number] for number in _numbers(numbers)]
            expected = _declared(cls)
            for name, column in zip(names, columns, strict=True):
                if expected and name not in expected and not hasattr(objects[0], "__dict__"):
                    self._ignore(cls, name)
                elif name in unset:
                    for each, value in zip(objects, column, strict=True):
                        if value is not Unset:
                            setattr(each, name, value)
                else:
                    deque(map(setattr, objects, repeat(name), column), maxlen=0)
            for name in _missing(cls, expected, names):
                for each in objects:
                    setattr(each, name, _default(cls, name))
        return root

    def _ignore(self, cls: type, name: str) -> None:
        """Log once that an attribute of the snapshot is not known to this release."""
        if (cls.__qualname__, name) not in self._ignored:
            self._ignored.add((cls.__qualname__, name))
            logger.info("This release has no attribute %s of %s", name, cls.__qualname__)


def _numbers(data: bytes) -> Iterator[int]:
    return iter(array("I", data))


def _constructor(cls: type) -> Callable[[], Any]:
    """Return a function that creates an object of a class."""
    return CONSTRUCTORS.get(cls) or partial(cls.__new__, cls)


def _missing(cls: type, expected: dict[str, None], names: tuple[str, ...]) -> set[str]:
    """Return the attributes that neither a snapshot nor a constructor provides."""
    if cls in CONSTRUCTORS:
        return set()
    return expected.keys() - set(names) - OMITTED.get(cls, frozenset())


def _default(cls: type, name: str) -> Any:
    """Return the default of an attribute that a snapshot does not have."""
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if field.name == name and field.default is not dataclasses.MISSING:
                return field.default
            if field.name == name and field.default_factory is not dataclasses.MISSING:
                return field.default_factory()
    try:
        return getattr(_constructor(cls)(), name)  # a default in the class body
    except AttributeError:
        raise SnapshotError(
            f"it has no attribute {name} of {cls.__qualname__}, which has no default"
        ) from None


def read(
    file: IO[bytes], new_connection: Callable[[], Connection] = lambda: Connection("listener")
) -> tuple[Any, dict[str, Any]]:
    """Read a snapshot. Return its root, and what ``write`` was given as ``about``.

    Args:
        file: the file that contains it.
        new_connection: returns the protocol state of an accepted connection.

    Raises:
        SnapshotError: the file is not a complete snapshot that this release can read.
        OSError: the file cannot be read.
    """
    about_nbytes = _check(file)
    try:
        file.seek(-about_nbytes, io.SEEK_END)
        table: Table = _TableReader(file).load()
        file.seek(_HEADER.size)
        return _Reader(file, table, new_connection).records(table["n_records"]), table["about"]
    except SnapshotError:
        raise
    except Exception as error:
        raise SnapshotError(f"{type(error).__name__}: {error}") from error


def _check(file: IO[bytes]) -> int:
    """Check lengths and CRC of a snapshot. Return the size of its table."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    header = file.read(_HEADER.size)
    if not any(header):
        raise SnapshotError("the snapshot was not completed")
    line = header[: len(MAGIC)]
    if line != MAGIC:
        found, known = (
            each.partition(b"\n")[0].decode("ascii", "replace").rpartition("-")[2]
            for each in (line, MAGIC)
        )
        raise SnapshotError(
            f"the snapshot has format {found}, and this release knows format {known}. "
            "Stop the scheduler and start this release instead"
        )
    if len(header) < _HEADER.size:
        raise SnapshotError("the snapshot ends within its header")
    _, records_nbytes, table_nbytes, expected = _HEADER.unpack(header)
    if _HEADER.size + records_nbytes + table_nbytes != size:
        raise SnapshotError(f"the snapshot has {size} bytes, which its header contradicts")
    crc = 0
    while data := file.read(CHECKED_NBYTES):
        crc = zlib.crc32(data, crc)
    if crc != expected:
        raise SnapshotError("the checksum of the snapshot is wrong")
    return int(table_nbytes)
