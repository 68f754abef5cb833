"""Stimuli about peers: they joined, left or sent a heartbeat, or their state is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from paceline.protocol.messages import HeartbeatWorker, RegisterWorker

#: State of a task on a worker, its state after that if it is "resumed", and its run_id, which is
#: negative if the worker was not asked to compute it.
ReportedTask: TypeAlias = tuple[str, str | None, int]


@dataclass(slots=True)
class WorkerJoined:
    """A worker registered.

    The driver has checked that its address and name are free
    (``core.state.addresses.registration_error``).

    Attributes:
        address: normalised contact address.
        message: the ``RegisterWorker`` request.
        host: host part of the address.
    """

    address: str
    host: str
    message: RegisterWorker


@dataclass(slots=True)
class WorkerRemoved:
    """A worker left, lost its connection, or is removed.

    Attributes:
        expected: it unregistered or was retired, so no task is blamed.
        close: ask the worker to close.
    """

    address: str
    expected: bool = False
    close: bool = True


@dataclass(slots=True)
class WorkerHeartbeat:
    """A worker's heartbeat, its address normalised.

    Attributes:
        message: the ``HeartbeatWorker`` request.
    """

    address: str
    message: HeartbeatWorker


@dataclass(slots=True)
class WorkerBackpressured:
    """A worker's connection became backpressured, or writable again."""

    address: str
    backpressured: bool


@dataclass(slots=True)
class ClientJoined:
    """A client registered."""

    client: str
    versions: Any = None


@dataclass(slots=True)
class ClientRemoved:
    """A client left, or its connection broke."""

    client: str


@dataclass(slots=True)
class RequestGone:
    """The connection on which request ``request_id`` waits for its reply is gone."""

    request_id: int


@dataclass(slots=True)
class SettleWorker:
    """Prepare a comparison with a worker's state. Replies when the worker may make its report.

    Attributes:
        address: address of the worker.
    """

    address: str


@dataclass(slots=True)
class WorkerReport:
    """A worker's state, to be compared after ``SettleWorker``. Replies when that is done.

    Attributes:
        address: address of the worker.
        tasks: the tasks that the worker knows.
        keys: results that it holds, except actors.
    """

    address: str
    tasks: dict[Any, ReportedTask]
    keys: list[Any]


@dataclass(slots=True)
class EndComparison:
    """Forget the comparison with a worker, which does not answer.

    Attributes:
        address: address of the worker.
    """

    address: str
