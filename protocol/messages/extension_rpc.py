"""Requests to the scheduler's extensions: locks, queues, variables, datasets, replay, shuffles.

Stock loads the extensions from ``scheduler.DEFAULT_EXTENSIONS``; each registers its handlers when
it starts. The names of locks, queues and similar objects are keys.
"""

from typing import Any, ClassVar

from paceline.protocol.limits import Seconds, TimeLimit

from .base import Request, _NamedRequest

# ------------------------------------------------------------------ events, locks


class EventSet(_NamedRequest, frozen=True, kw_only=True, tag="event_set"):
    """Set a ``distributed.Event``. Returns: None."""


class EventClear(_NamedRequest, frozen=True, kw_only=True, tag="event_clear"):
    """Clear an event. Returns: None."""


class EventIsSet(_NamedRequest, frozen=True, kw_only=True, tag="event_is_set"):
    """Get whether an event is set. Returns: a bool."""


class EventWait(_NamedRequest, frozen=True, kw_only=True, tag="event_wait"):
    """Wait until an event is set. Returns: False if the time limit expired first."""

    timeout: TimeLimit = None


class MultiLockAcquire(Request, frozen=True, kw_only=True, tag="multi_lock_acquire"):
    """Acquire several locks together.

    Stock: ``multi_lock.py``.

    Returns: False if the time limit expired first.

    Attributes:
        locks: names of the locks.
        id: ID of the request, used to release them.
        num_locks: number of locks to acquire at least; None for all.
    """

    locks: Any = None
    id: Any = None
    timeout: TimeLimit = None
    num_locks: int | None = None


class MultiLockRelease(Request, frozen=True, kw_only=True, tag="multi_lock_release"):
    """Release the locks that a request acquired. Returns: None.

    Attributes:
        id: ID of the request.
    """

    id: Any = None


class SemaphoreRegister(Request, frozen=True, kw_only=True, tag="semaphore_register"):
    """Create a semaphore unless it exists.

    Stock: ``semaphore.py``. A ``Lock`` is a semaphore with one lease.

    Returns: None.

    Attributes:
        max_leases: maximum number of leases.
        lease_timeout: time after which a lease that is not refreshed expires; seconds, a text such
            as "30s", or None for never.
    """

    name: Any
    max_leases: int
    lease_timeout: TimeLimit = None


class SemaphoreAcquire(_NamedRequest, frozen=True, kw_only=True, tag="semaphore_acquire"):
    """Acquire a lease. Returns: False if the time limit expired first."""

    timeout: TimeLimit = None
    lease_id: Any = None


class SemaphoreRelease(_NamedRequest, frozen=True, kw_only=True, tag="semaphore_release"):
    """Release a lease. Returns: None."""

    lease_id: Any = None


class SemaphoreRefreshLeases(
    _NamedRequest, frozen=True, kw_only=True, tag="semaphore_refresh_leases"
):
    """Prolong leases that are still in use. Returns: None."""

    lease_ids: Any = None


class SemaphoreValue(_NamedRequest, frozen=True, kw_only=True, tag="semaphore_value"):
    """Get the number of leases in use. Returns: the number."""


class SemaphoreClose(_NamedRequest, frozen=True, kw_only=True, tag="semaphore_close"):
    """Close a semaphore for all clients. Returns: None."""


# ------------------------------------------------------------------ queues, variables, publishing


class QueueCreate(_NamedRequest, frozen=True, kw_only=True, tag="queue_create"):
    """Open a queue. Stock: ``queues.py``. Returns: None.

    Attributes:
        maxsize: maximum number of elements; 0 for no limit.
    """

    client: str | None = None
    maxsize: int = 0


class QueuePut(_NamedRequest, frozen=True, kw_only=True, tag="queue_put"):
    """Put a future or a value into a queue. Returns: None.

    Attributes:
        data: the value, if it is not a future.
    """

    key: Any = None
    data: Any = None
    client: str | None = None
    timeout: TimeLimit = None


class QueueGet(_NamedRequest, frozen=True, kw_only=True, tag="queue_get"):
    """Take one or more elements from a queue.

    Returns: {"type", "value", "state", ...}, or a list of these.

    Attributes:
        batch: True for all elements, or the number of elements.
    """

    client: str | None = None
    timeout: TimeLimit = None
    batch: Any = False


class QueueQsize(_NamedRequest, frozen=True, kw_only=True, tag="queue_qsize"):
    """Get the size of a queue. Returns: the number of elements."""

    client: str | None = None


class VariableSet(_NamedRequest, frozen=True, kw_only=True, tag="variable_set"):
    """Set a variable to a future or a value. Stock: ``variable.py``. Returns: None.

    Attributes:
        data: the value, if it is not a future.
    """

    key: Any = None
    data: Any = None
    client: str | None = None
    timeout: TimeLimit = None


class VariableGet(_NamedRequest, frozen=True, kw_only=True, tag="variable_get"):
    """Get the value of a variable. Returns: {"type", "value", "state", "token", ...}."""

    client: str | None = None
    timeout: TimeLimit = None


class PublishPut(Request, frozen=True, kw_only=True, tag="publish_put"):
    """Publish datasets. Stock: ``publish.py``. Returns: None.

    Attributes:
        keys: for each dataset, the keys of its futures.
        data: the serialized datasets.
        override: whether to replace datasets with the same names.
    """

    names: list[Any]
    keys: list[Any]
    data: list[Any]
    override: bool
    client: str
    uid: Any


class PublishGet(Request, frozen=True, kw_only=True, tag="publish_get"):
    """Get published datasets. Returns: for each name {"keys", "data"}, or None."""

    names: list[Any]


class PublishDelete(Request, frozen=True, kw_only=True, tag="publish_delete"):
    """Unpublish datasets. Returns: None."""

    names: list[Any]
    client: str
    uid: Any


class PublishList(Request, frozen=True, kw_only=True, tag="publish_list"):
    """Get the names of all published datasets. Returns: the names."""


# ------------------------------------------------------------------ replay, memory


class GetRunspec(Request, frozen=True, kw_only=True, tag="get_runspec"):
    """Get a task, to run it in the client. Stock: ``recreate_tasks.py``.

    Returns: the pickled task, or None for scattered data.
    """

    EXTRA_FIELD: ClassVar[str | None] = "extra_arguments"

    key: Any = None
    extra_arguments: dict[str, Any] = {}


class GetErrorCause(Request, frozen=True, kw_only=True, tag="get_error_cause"):
    """Get the task whose failure caused the failure of others. Returns: its key."""

    EXTRA_FIELD: ClassVar[str | None] = "extra_arguments"

    keys: Any = ()
    extra_arguments: dict[str, Any] = {}


class AmmHandler(Request, frozen=True, kw_only=True, tag="amm_handler"):
    """Control the active memory manager.

    Stock: ``active_memory_manager.py``.

    Returns: the result of the method.

    Attributes:
        method: "start", "stop", "run_once" or "running".
    """

    method: str


class MemorySamplerStart(Request, frozen=True, kw_only=True, tag="memory_sampler_start"):
    """Start recording the memory of the cluster.

    Stock: ``diagnostics/memory_sampler.py``.

    Returns: ID of the recording.

    Attributes:
        measure: "process", "managed", "spilled", ...
        interval: seconds between samples.
    """

    client: str
    measure: str
    interval: Seconds


class MemorySamplerStop(Request, frozen=True, kw_only=True, tag="memory_sampler_stop"):
    """Stop recording the memory. Returns: [(time, bytes)].

    Attributes:
        key: ID of the recording.
    """

    key: str


# ------------------------------------------------------------------ shuffles


class ShuffleGetOrCreate(Request, frozen=True, kw_only=True, tag="shuffle_get_or_create"):
    """Join a P2P shuffle, and create it if needed. Stock: ``shuffle/_scheduler_plugin.py``.

    Returns: {"status": "OK", "run_spec": serialized} or an error.

    Attributes:
        key: key of the task that joins.
    """

    shuffle_id: str
    key: Any
    worker: str


class ShuffleGet(Request, frozen=True, kw_only=True, tag="shuffle_get"):
    """Get a P2P shuffle. Returns: {"status": "OK", "run_spec": serialized} or an error."""

    id: str
    worker: str


class ShuffleBarrier(Request, frozen=True, kw_only=True, tag="shuffle_barrier"):
    """Report that all input of a P2P shuffle has been sent. Returns: None.

    Attributes:
        consistent: whether all transfers belonged to this attempt.
    """

    id: str
    run_id: int
    consistent: bool


class ShuffleRestrictTask(Request, frozen=True, kw_only=True, tag="shuffle_restrict_task"):
    """Restrict a task to the worker that holds its partition.

    Returns: {"status": "OK"} or an error.
    """

    id: str
    run_id: int
    key: Any
    worker: str
