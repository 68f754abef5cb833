"""Requests that extensions of the scheduler serve: locks, queues, variables, publishing, replay, shuffles, ...

Stock loads them as ``DEFAULT_EXTENSIONS`` (``scheduler.py``); each registers its handlers when it starts. Names of locks,
queues and the like are any key.

Must not know: how a request is served.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .base import Request

# ------------------------------------------------------------------ events, locks


class EventSet(Request, frozen=True, kw_only=True, tag="event_set"):
    """Set an event. Stock: ``event.py``. Returns: None.

    Attributes:
        name: which.
    """

    name: Any = None


class EventClear(Request, frozen=True, kw_only=True, tag="event_clear"):
    """Clear an event. Returns: None.

    Attributes:
        name: which.
    """

    name: Any = None


class EventIsSet(Request, frozen=True, kw_only=True, tag="event_is_set"):
    """Returns: whether the event is set.

    Attributes:
        name: which.
    """

    name: Any = None


class EventWait(Request, frozen=True, kw_only=True, tag="event_wait"):
    """Wait for an event. Returns: whether it was set in time.

    Attributes:
        name: which.
        timeout: seconds; None for ever.
    """

    name: Any = None
    timeout: Any = None


class MultiLockAcquire(Request, frozen=True, kw_only=True, tag="multi_lock_acquire"):
    """Acquire several locks at once. Stock: ``multi_lock.py``. Returns: whether it was possible in time.

    Attributes:
        locks: their names.
        id: of the request.
        timeout: seconds; None for ever.
        num_locks: how many of them are enough.
    """

    locks: Any = None
    id: Any = None
    timeout: Any = None
    num_locks: int | None = None


class MultiLockRelease(Request, frozen=True, kw_only=True, tag="multi_lock_release"):
    """Give back what a request acquired. Returns: None.

    Attributes:
        id: of the request.
    """

    id: Any = None


class SemaphoreRegister(Request, frozen=True, kw_only=True, tag="semaphore_register"):
    """Make a semaphore, or find it. Stock: ``semaphore.py``; locks are semaphores of one lease. Returns: None.

    Attributes:
        name: which.
        max_leases: how many may hold it.
        lease_timeout: seconds after which a lease that is not refreshed ends; or "30s"; None for never.
    """

    name: Any
    max_leases: int
    lease_timeout: Any = None


class SemaphoreAcquire(Request, frozen=True, kw_only=True, tag="semaphore_acquire"):
    """Acquire a lease. Returns: whether it was possible in time.

    Attributes:
        name: which.
        timeout: seconds; None for ever.
        lease_id: of the lease.
    """

    name: Any = None
    timeout: Any = None
    lease_id: Any = None


class SemaphoreRelease(Request, frozen=True, kw_only=True, tag="semaphore_release"):
    """Give a lease back. Returns: None.

    Attributes:
        name: which.
        lease_id: of the lease.
    """

    name: Any = None
    lease_id: Any = None


class SemaphoreRefreshLeases(Request, frozen=True, kw_only=True, tag="semaphore_refresh_leases"):
    """Leases are still in use. Returns: None.

    Attributes:
        name: which.
        lease_ids: of the leases.
    """

    name: Any = None
    lease_ids: Any = None


class SemaphoreValue(Request, frozen=True, kw_only=True, tag="semaphore_value"):
    """Returns: how many leases are out.

    Attributes:
        name: which.
    """

    name: Any = None


class SemaphoreClose(Request, frozen=True, kw_only=True, tag="semaphore_close"):
    """Close a semaphore for everybody. Returns: None.

    Attributes:
        name: which.
    """

    name: Any = None


# ------------------------------------------------------------------ queues, variables, publishing


class QueueCreate(Request, frozen=True, kw_only=True, tag="queue_create"):
    """Open a queue. Stock: ``queues.py``. Returns: None.

    Attributes:
        name: which.
        client: who.
        maxsize: 0 for no limit.
    """

    name: Any = None
    client: str | None = None
    maxsize: int = 0


class QueuePut(Request, frozen=True, kw_only=True, tag="queue_put"):
    """Put a future or a value. Returns: None.

    Attributes:
        name: which.
        key: of a future.
        data: or a value.
        client: who.
        timeout: seconds; None for ever.
    """

    name: Any = None
    key: Any = None
    data: Any = None
    client: str | None = None
    timeout: Any = None


class QueueGet(Request, frozen=True, kw_only=True, tag="queue_get"):
    """Get one element or several. Returns: {"type", "value", "state", ...}, or a list of such.

    Attributes:
        name: which.
        client: who.
        timeout: seconds; None for ever.
        batch: True for all there are, a number for so many.
    """

    name: Any = None
    client: str | None = None
    timeout: Any = None
    batch: Any = False


class QueueQsize(Request, frozen=True, kw_only=True, tag="queue_qsize"):
    """Returns: the number of elements.

    Attributes:
        name: which.
        client: who.
    """

    name: Any = None
    client: str | None = None


class VariableSet(Request, frozen=True, kw_only=True, tag="variable_set"):
    """Set a variable to a future or a value. Stock: ``variable.py``. Returns: None.

    Attributes:
        name: which.
        key: of a future.
        data: or a value.
        client: who.
        timeout: seconds, or "30 s".
    """

    name: Any = None
    key: Any = None
    data: Any = None
    client: str | None = None
    timeout: Any = None


class VariableGet(Request, frozen=True, kw_only=True, tag="variable_get"):
    """Returns: {"type", "value", "state", "token", ...}.

    Attributes:
        name: which.
        client: who.
        timeout: seconds; None for ever.
    """

    name: Any = None
    client: str | None = None
    timeout: Any = None


class PublishPut(Request, frozen=True, kw_only=True, tag="publish_put"):
    """Publish datasets. Stock: ``publish.py``. Returns: None.

    Attributes:
        names: of the datasets.
        keys: for each, the keys of its futures.
        data: each, closed.
        override: replace those of the same name.
        client: who.
        uid: of the ``publish_flush_batched_send`` to wait for.
    """

    names: list[Any]
    keys: list[Any]
    data: list[Any]
    override: bool
    client: str
    uid: Any


class PublishGet(Request, frozen=True, kw_only=True, tag="publish_get"):
    """Returns: for each name {"keys", "data"} or None.

    Attributes:
        names: which.
    """

    names: list[Any]


class PublishDelete(Request, frozen=True, kw_only=True, tag="publish_delete"):
    """Returns: None.

    Attributes:
        names: which.
        client: who.
        uid: of the ``publish_flush_batched_send`` to wait for.
    """

    names: list[Any]
    client: str
    uid: Any


class PublishList(Request, frozen=True, kw_only=True, tag="publish_list"):
    """Returns: all names."""


# ------------------------------------------------------------------ replay, memory


class GetRunspec(Request, frozen=True, kw_only=True, tag="get_runspec"):
    """How to run a task again elsewhere. Stock: ``recreate_tasks.py``. Returns: {"task": closed, "deps": keys}.

    Attributes:
        key: which.
        extra_arguments: stock takes and ignores any.
    """

    EXTRA_FIELD: ClassVar[str | None] = "extra_arguments"

    key: Any = None
    extra_arguments: dict[str, Any] = {}


class GetErrorCause(Request, frozen=True, kw_only=True, tag="get_error_cause"):
    """Returns: the key of the task that is to blame.

    Attributes:
        keys: that have erred.
        extra_arguments: stock takes and ignores any.
    """

    EXTRA_FIELD: ClassVar[str | None] = "extra_arguments"

    keys: Any = ()
    extra_arguments: dict[str, Any] = {}


class AmmHandler(Request, frozen=True, kw_only=True, tag="amm_handler"):
    """Drive the active memory manager. Stock: ``active_memory_manager.py``. Returns: what the method returns.

    Attributes:
        method: "start", "stop", "run_once" or "running".
    """

    method: str


class MemorySamplerStart(Request, frozen=True, kw_only=True, tag="memory_sampler_start"):
    """Record the cluster's memory. Stock: ``diagnostics/memory_sampler.py``. Returns: a key.

    Attributes:
        client: who.
        measure: "process", "managed", "spilled", ...
        interval: seconds.
    """

    client: str
    measure: str
    interval: float


class MemorySamplerStop(Request, frozen=True, kw_only=True, tag="memory_sampler_stop"):
    """Returns: [(time, bytes)].

    Attributes:
        key: of the recording.
    """

    key: str


# ------------------------------------------------------------------ shuffles


class ShuffleGetOrCreate(Request, frozen=True, kw_only=True, tag="shuffle_get_or_create"):
    """Take part in a P2P shuffle. Stock: ``shuffle/_scheduler_plugin.py``.

    Returns: {"status": "OK", "run_spec": closed} or an error.

    Attributes:
        shuffle_id: which.
        key: of the task that asks.
        worker: that runs it.
    """

    shuffle_id: str
    key: Any
    worker: str


class ShuffleGet(Request, frozen=True, kw_only=True, tag="shuffle_get"):
    """Returns: {"status": "OK", "run_spec": closed} or an error.

    Attributes:
        id: of the shuffle.
        worker: who asks.
    """

    id: str
    worker: str


class ShuffleBarrier(Request, frozen=True, kw_only=True, tag="shuffle_barrier"):
    """All input has been sent. Returns: None.

    Attributes:
        id: of the shuffle.
        run_id: which attempt.
        consistent: all transfers were of this attempt.
    """

    id: str
    run_id: int
    consistent: bool


class ShuffleRestrictTask(Request, frozen=True, kw_only=True, tag="shuffle_restrict_task"):
    """A task must run where its partition is. Returns: {"status": "OK"} or an error.

    Attributes:
        id: of the shuffle.
        run_id: which attempt.
        key: of the task.
        worker: where.
    """

    id: str
    run_id: int
    key: Any
    worker: str
