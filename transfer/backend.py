"""The interface of transfer backends.

A backend moves flat bytes from the worker that holds a value (``put``) to the worker that fetches
it (``get``). Its methods run in several threads of the worker at once. Only values of up to
``inline_nbytes`` are handled in the event loop. If a method raises ``BackendError`` or ``OSError``,
the value is sent by Dask's own transfer.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass, field
from typing import Any

Ref = dict[str, Any]
"""Location of a stored value. Sent with msgpack inside Dask's own ``get_data`` reply."""


class BackendError(Exception):
    """The backend failed or does not work here; Dask's own transfer is used. The text is logged."""


class BackendFull(BackendError):
    """The backend has no space for the value. Smaller or later values may fit."""


class ValueGone(BackendError):
    """The value no longer exists: its owner ended or deleted it. The backend itself works."""


@dataclass(frozen=True)
class Capacity:
    """Free space of a backend.

    Attributes:
        free_nbytes: bytes that can still be stored; None if unknown.
        value_nbytes_max: largest single value in bytes; None for no limit.
    """

    free_nbytes: int | None = None
    value_nbytes_max: int | None = None

    def holds(self, size_nbytes: int) -> bool:
        """Return whether a value of ``size_nbytes`` fits."""
        limits = (self.free_nbytes, self.value_nbytes_max)
        return all(limit is None or size_nbytes <= limit for limit in limits)


@dataclass
class Stored:
    """Result of ``Backend.put``.

    Attributes:
        ref: location of the stored value.
        view: read-only view of the stored bytes, if the worker can use them instead of its own
            copy; else None.
    """

    ref: Ref
    view: memoryview | None = None


@dataclass
class Fetched:
    """Result of ``Backend.get``.

    Attributes:
        view: the bytes of the value; valid as long as the view is referenced.
        ref: location under which this worker can offer the same bytes to other workers while
            ``view`` is referenced; None if it cannot.
    """

    view: memoryview
    ref: Ref | None = None


class Source(abc.ABC):
    """Random access to the bytes of a stored value, so that they are copied only once."""

    @abc.abstractmethod
    def read_into(self, begin: int, view: memoryview) -> None:
        """Fill `view` with the bytes from offset `begin` on. After ValueGone it is undefined.

        Raise ValueGone, BackendError or OSError as ``Backend.get``.
        """


@dataclass
class Traffic:
    """Number of values and bytes that a backend has moved since it started."""

    put_count: int = 0
    put_nbytes: int = 0
    got_count: int = 0
    got_nbytes: int = 0
    failed_count: int = 0

    def put(self, size_nbytes: int) -> None:
        self.put_count += 1
        self.put_nbytes += size_nbytes

    def got(self, size_nbytes: int) -> None:
        self.got_count += 1
        self.got_nbytes += size_nbytes


@dataclass
class BackendContext:
    """Facts about the worker that a backend runs in.

    Attributes:
        worker_id: unguessable name for the shared resources of this worker.
        host: address under which other workers reach this host.
        memory_limit_nbytes: memory limit of the worker; 0 for no limit.
        security: ``distributed.Security`` of the worker; None without TLS.
        options: options of this backend, as given by the user.
    """

    worker_id: str
    host: str = "127.0.0.1"
    memory_limit_nbytes: int = 0
    security: Any = None
    options: dict[str, Any] = field(default_factory=dict)


class Backend(abc.ABC):
    """A transfer backend. Use a subclass as ``Transfer("package.module:Class")``.

    The worker that holds a value calls ``put`` when a worker with the same ``place`` requests it.
    It calls ``delete`` exactly once: after the other worker has received the value or, if
    ``is_reusable`` is true, when Dask frees the key or the worker closes. The receiver calls
    ``get``.

    Attributes:
        name: name in rules, annotations and messages.
        is_reusable: whether a stored value serves later requests too; otherwise each ``put`` serves
            one receiver.
        min_nbytes: smaller values use Dask's own transfer.
        mapped_share_min: values with a smaller share of bytes that are used in place use another
            backend (``bytes`` objects are always copied).
        inline_nbytes: up to this size, ``put`` and ``get`` are called in the event loop.
    """

    name: str = ""
    is_reusable: bool = True
    min_nbytes: int = 1 << 20
    mapped_share_min: float = 0.0
    inline_nbytes: int = 0

    def __init__(self, context: BackendContext) -> None:
        self.context = context
        self.traffic = Traffic()

    @abc.abstractmethod
    def place(self) -> str:
        """Return the name of the storage; workers with equal names can read each other's values.

        The name is secret if knowing it gives access.

        Raises:
            BackendError: the backend does not work here (missing system call, server, directory).
        """

    @abc.abstractmethod
    def put(self, pieces: Sequence[memoryview], size_nbytes: int) -> Stored:
        """Store the concatenation of ``pieces``, flat views of bytes, ``size_nbytes`` long.

        Raises:
            BackendFull: there is no space.
        """

    @abc.abstractmethod
    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        """Return the bytes that another worker stored.

        Args:
            ref: location returned by ``put``.
            size_nbytes: number of bytes.
            into: scratch memory that a backend which copies may use; its contents are not used
                after the value was decoded.

        Raises:
            ValueGone: the value no longer exists.
        """

    def source(self, ref: Ref, size_nbytes: int) -> Source | None:
        """Return random access to the same bytes, or None if ``get`` is as good."""
        return None

    @abc.abstractmethod
    def delete(self, ref: Ref) -> None:
        """Free a stored value. Workers that have fetched it keep it."""

    def capacity(self) -> Capacity:
        """Return the free space. Called before each ``put``, so it must be cheap."""
        return Capacity()

    def renew(self) -> None:  # noqa: B027
        """Renew leases, check the backend, and delete values of dead workers.

        Called every ``RENEW_SECONDS``.
        """

    def close(self) -> None:  # noqa: B027
        """Free everything that this worker stored. Called once."""


def run_parts(
    threads: Executor, call: Callable[..., None], parts: Sequence[tuple[Any, ...]]
) -> None:
    """Call `call` with each of `parts` in parallel, the first one in this thread.

    Return or raise when all calls have ended.
    """
    jobs = [threads.submit(call, *part) for part in parts[1:]]
    try:
        for part in parts[:1]:
            call(*part)
    finally:
        wait(jobs)
    for job in jobs:
        job.result()


def slice_pieces(pieces: Sequence[memoryview], begin: int, length: int) -> Iterator[memoryview]:
    """Yield the views of ``length`` bytes at offset ``begin`` of the concatenated ``pieces``."""
    at = 0
    end = begin + length
    for piece in pieces:
        low, high = max(begin, at), min(end, at + piece.nbytes)
        if low < high:
            yield piece[low - at : high - at]
        at += piece.nbytes


#: Values of a worker whose lease was not renewed for this long may be deleted by other workers.
LEASE_SECONDS = 40.0
#: Seconds between renewals.
RENEW_SECONDS = LEASE_SECONDS / 4
