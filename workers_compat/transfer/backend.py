"""The interface of a transfer's back ends: where bytes are put by the worker that has them, and got by the one that asks.

A back end moves flat bytes. It is called from threads of the worker, several at a time, and never from its event loop but for values
so small that they cost less than the way to a thread. What it raises, a ``BackendError`` or ``OSError``, is answered by Dask's own way.

Must not know: workers, keys, how values become bytes.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Ref = dict[str, Any]
"""Where a value lies: text, numbers, bytes and lists of them, as msgpack carries them. It travels inside Dask's own answer."""


class BackendError(Exception):
    """The back end cannot do it, now or ever: the value goes Dask's own way. The text is for the log."""


class BackendFull(BackendError):
    """There is no room for the value. Nothing is broken: the next one may fit."""


class ValueGone(BackendError):
    """The value is not there any more, for its owner has ended or let it go. Nothing is broken."""


@dataclass(frozen=True)
class Capacity:
    """What fits.

    Attributes:
        free_nbytes: how much more may be put; None where nobody knows.
        value_nbytes_max: the largest single value; None for any.
    """

    free_nbytes: int | None = None
    value_nbytes_max: int | None = None

    def holds(self, size_nbytes: int) -> bool:
        """Whether one more value of this size fits."""
        limits = (self.free_nbytes, self.value_nbytes_max)
        return all(limit is None or size_nbytes <= limit for limit in limits)


@dataclass
class Stored:
    """What ``put`` gives.

    Attributes:
        ref: where the value lies.
        view: the value's bytes as the back end has them, read-only, where they can be used in place of the worker's own; else None.
    """

    ref: Ref
    view: memoryview | None = None


@dataclass
class Fetched:
    """What ``get`` gives.

    Attributes:
        view: the value's bytes, read-only or not; they live as long as somebody looks at them.
        ref: under which this worker can pass the very same bytes on to others, as long as ``view`` lives; None where it cannot.
    """

    view: memoryview
    ref: Ref | None = None


class Source(abc.ABC):
    """A value's bytes where they lie, to be copied straight to where they will be used."""

    @abc.abstractmethod
    def read_into(self, begin: int, view: memoryview) -> None:
        """Fill the view with the bytes from there on.

        Raises:
            ValueGone: they are not there any more; what the view has by now means nothing.
            BackendError, OSError: they cannot be had.
        """


@dataclass
class Traffic:
    """What a back end did, for the worker's metrics and the benchmark. Numbers of values and bytes since it started."""

    put_count: int = 0
    put_nbytes: int = 0
    got_count: int = 0
    got_nbytes: int = 0
    failed_count: int = 0

    def as_dict(self) -> dict[str, int]:
        return dict(vars(self))


@dataclass
class Surroundings:
    """What a back end is told of the worker that uses it.

    Attributes:
        worker_id: unguessable name of this worker's part of whatever is shared.
        host: the address under which other workers reach this worker's host.
        memory_limit_nbytes: what the worker may use; 0 where there is no limit.
        security: ``distributed.Security`` of the worker; None without TLS.
        options: the options that the user gave to this back end.
    """

    worker_id: str
    host: str = "127.0.0.1"
    memory_limit_nbytes: int = 0
    security: Any = None
    options: dict[str, Any] = field(default_factory=dict)


class Backend(abc.ABC):
    """One way for bytes from worker to worker. Subclass it, and name it as ``Transfer("package.module:Class")``.

    The worker that has a value calls ``put`` when somebody asks who is at the same ``place``, and ``delete`` exactly once: when the asker
    has the value, or, where ``keeps`` holds, when Dask frees the key or the worker closes. The asking worker calls ``get``.

    Attributes:
        name: how it is called in rules, annotations and messages.
        keeps: whether what was put serves later askers too; else each put serves one.
        worth_nbytes: values smaller than this go Dask's own way.
        mapped_share_min: values of which a smaller part is used where it lies (``bytes`` are always copied out) go another way.
        inline_nbytes: up to this size ``put`` and ``get`` cost less than the way to a thread.
    """

    name: str = ""
    keeps: bool = True
    worth_nbytes: int = 1 << 20
    mapped_share_min: float = 0.0
    inline_nbytes: int = 0

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.traffic = Traffic()

    @abc.abstractmethod
    def place(self) -> str:
        """Who says the same text reads what is put here. Secret where knowing it opens something; no secrets in it otherwise.

        Raises:
            BackendError: this back end does not work here (no such system call, no server, no directory).
        """

    @abc.abstractmethod
    def put(self, pieces: Sequence[memoryview], size_nbytes: int) -> Stored:
        """Store the pieces one after the other.

        Raises:
            BackendFull: there is no room.
            BackendError, OSError: it is broken.
        """

    @abc.abstractmethod
    def get(self, ref: Ref, size_nbytes: int, into: memoryview | None = None) -> Fetched:
        """The bytes that another worker put.

        Args:
            ref: as ``put`` gave it.
            size_nbytes: how many.
            into: memory for them that is there already, if the back end copies; nobody looks at it later.

        Raises:
            ValueGone: they are not there any more.
            BackendError, OSError: they cannot be had.
        """

    def source(self, ref: Ref, size_nbytes: int) -> Source | None:
        """The same bytes, for a reader who copies them to their places himself; None from a back end that ``get`` serves as well.

        Raises:
            ValueGone, BackendError, OSError: as ``get``.
        """
        return None

    @abc.abstractmethod
    def delete(self, ref: Ref) -> None:
        """Free what ``put`` stored. Readers that have the value keep it.

        Raises:
            BackendError, OSError: it is broken; leases will see to it.
        """

    @abc.abstractmethod
    def capacity(self) -> Capacity:
        """What fits. Cheap: asked before each put.

        Raises:
            BackendError, OSError: it is broken.
        """

    def renew(self) -> None:  # noqa: B027
        """Liveness, both ways: called every ``RENEW_SECONDS``, it says that this worker lives, sees whether the back end does, and
        sweeps up what dead workers left.

        Raises:
            BackendError, OSError: it is broken.
        """

    def close(self) -> None:  # noqa: B027
        """The worker ends: nothing of it stays. Called once, whatever happened before."""


LEASE_SECONDS = 40.0
"""What a worker put is anybody's to sweep up when nobody renewed its lease for so long."""
RENEW_SECONDS = LEASE_SECONDS / 4
