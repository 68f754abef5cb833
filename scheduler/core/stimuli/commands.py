"""Commands of requests, coroutines of the server, and plugins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class DataPlaced:
    """Data without a run_spec was put on workers (scatter, update_data).

    Attributes:
        who_has: key -> addresses.
        nbytes: key -> size in bytes.
        client: name of the client that wants it, or "".
    """

    who_has: dict[Any, list[str]]
    nbytes: dict[Any, int]
    client: str = ""


@dataclass(slots=True)
class ReplicasAdded:
    """A worker has further replicas (after replicate, rebalance, gather_on_worker)."""

    address: str
    keys: list[Any]


@dataclass(slots=True)
class ReplicasLost:
    """A worker no longer has these keys (it reported them missing, or deleted them on request)."""

    address: str
    keys: list[Any]


@dataclass(slots=True)
class MoveReplicas:
    """Ask workers to acquire or drop replicas.

    Attributes:
        acquire: address -> keys to fetch.
        drop: address -> keys that other workers have too.
    """

    acquire: dict[str, list[Any]] = field(default_factory=dict)
    drop: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class RetryKeys:
    """``Client.retry``. Replies with the keys that were touched."""

    keys: list[Any]
    client: str = ""


@dataclass(slots=True)
class ReleaseAll:
    """First step of a restart: release all keys, forget all tasks, clear histories."""


@dataclass(slots=True)
class SetWorkerStatus:
    """The server changes a worker's status (retirement).

    Attributes:
        before: status to which it returns unless the retirement is finished; "" without one.
    """

    address: str
    status: str
    before: str = ""


@dataclass(slots=True)
class CloseWorker:
    """Ask a worker to close; it is removed when its connection ends."""

    address: str


@dataclass(slots=True)
class MetadataSet:
    """``Client.set_metadata``: `keys` is a path into nested dicts whose last key gets `value`."""

    keys: list[Any]
    value: Any


@dataclass(slots=True)
class RestrictionsSet:
    """Restrict tasks to workers: key -> addresses, None for any worker."""

    restrictions: dict[Any, Any]


@dataclass(slots=True)
class WriteTask:
    """A plugin, or a function that a client runs here, writes an attribute of a task.

    Attributes:
        key: of the task; an unknown one is ignored.
        field: one of ``handlers.commands.WRITABLE``.
        value: as stored in the state (plain, or serialized).
    """

    key: Any
    field: str
    value: Any


@dataclass(slots=True)
class Configure:
    """Change a setting, for a program, a plugin or a function that runs on the scheduler.

    Attributes:
        field: of ``SchedulerConfig``; one of ``handlers.commands.CONFIGURABLE``.
        value: in its range.
    """

    field: str
    value: Any


@dataclass(slots=True)
class SetShare:
    """Change settings (``config.SHARE_DEFAULTS``) of a share group while the scheduler runs."""

    group: str
    settings: dict[str, float]


@dataclass(slots=True)
class SizeCluster:
    """Compute the number of workers that an adaptive cluster should have: ``Scaling.asked``."""

    target_duration_seconds: float


@dataclass(slots=True)
class ConfigureStealing:
    """Start or stop work stealing, or change its interval.

    Attributes:
        running: steal periodically.
        interval_seconds: seconds between rounds; None to keep the present value.
    """

    running: bool
    interval_seconds: float | None = None


@dataclass(slots=True)
class BalanceWork:
    """Run one round of work stealing now."""


@dataclass(slots=True)
class RecallTask:
    """Ask the worker of the task `key` to give it back, so that it moves to the worker `thief`."""

    key: Any
    thief: str


@dataclass(slots=True)
class MakeTransitions:
    """Recommendations of a plugin, such as a shuffle that restarts: key -> state.

    The last entry is made first. Unknown keys are ignored.
    """

    recommendations: dict[Any, str]


@dataclass(slots=True)
class LogEventCommand:
    """Log an event under topics, as if a plugin or the server had.

    Attributes:
        topics: one or several.
        event: any plain or serialized value.
    """

    topics: list[str]
    event: Any
