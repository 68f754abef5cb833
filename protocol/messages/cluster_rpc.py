"""Requests to the scheduler that change something: registration, data, workers, code.

Stock's handlers are listed in ``Scheduler.__init__``, and a request has the arguments of its
handler. An unknown or missing argument gets the reply that stock sends for a ``TypeError``. Fields
with several types are ``Any``. "Returns" describes the reply.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from paceline.protocol.limits import (
    Amount,
    HeartbeatExtensions,
    Name,
    Nbytes,
    Nthreads,
    Ordered,
    Seconds,
    TimeLimit,
    WorkerMetrics,
    WorkerStatus,
)

from .base import Key, Request

# ------------------------------------------------------------------ registration


class RegisterWorker(Request, frozen=True, kw_only=True, tag="register-worker"):
    """Register a worker; the connection becomes its stream.

    Stock: ``Worker._register_with_scheduler`` (with ``reply`` false).

    Attributes:
        status: "running", "paused", ...
        server_id: unique ID of this start of the worker.
        nthreads: number of threads.
        name: name of the worker; a str or an int.
        host_info: information on the host, sent by old workers.
        memory_limit: bytes; None for no limit.
        metrics: as in ``heartbeat_worker``.
        pid: process ID.
        services: name -> port ("dashboard").
        local_directory: directory for spilled data.
        nanny: address of the worker's nanny, or None.
        extra: further information to store with the worker.
    """

    OPEN_MAPS: ClassVar[Mapping[str, type]] = MappingProxyType({"metrics": WorkerMetrics})

    address: Name
    status: WorkerStatus = "running"
    server_id: str = ""
    nthreads: Nthreads = 1
    name: Key = None
    resolve_address: bool = True
    now: Seconds = 0.0
    resources: dict[Name, Ordered] | None = None
    host_info: dict[str, Any] | None = None
    memory_limit: Nbytes | None = None
    metrics: dict[Any, Any] = {}
    pid: int = 0
    services: dict[str, int | str | None] | None = None
    local_directory: str = ""
    versions: dict[str, Any] = {}
    nanny: str | None = None
    extra: dict[str, Any] = {}
    stimulus_id: str = ""


class RegisterNanny(Request, frozen=True, kw_only=True, tag="register_nanny"):
    """Register a nanny.

    Attributes:
        address: address at which the nanny accepts connections.
    """

    address: str


class RegisterClient(Request, frozen=True, kw_only=True, tag="register-client"):
    """Register a client; the connection becomes its stream, which starts with ``stream-start``."""

    client: Name
    versions: dict[str, Any] = {}


class HeartbeatWorker(Request, frozen=True, kw_only=True, tag="heartbeat_worker"):
    """Report that a worker is alive, and its metrics. Stock: ``Worker.heartbeat``.

    Attributes:
        resources: resource -> amount, if changed.
        metrics: an open map: "cpu", "memory", "task_counts", "bandwidth", "event_loop_interval",
            ...
        executing: key -> seconds since the task started.
        extensions: name of a worker extension -> its data.
    """

    LENIENT_FIELDS: ClassVar[tuple[str, ...]] = (
        "now", "resources", "host_info", "metrics", "executing", "extensions",
    )  # fmt: skip
    OPEN_MAPS: ClassVar[Mapping[str, type]] = MappingProxyType(
        {"metrics": WorkerMetrics, "extensions": HeartbeatExtensions}
    )

    address: str
    resolve_address: bool = True
    now: Seconds | None = None
    resources: dict[Name, Ordered] | None = None
    host_info: dict[str, Any] | None = None
    metrics: dict[Any, Any] = {}
    executing: dict[Any, Seconds] | None = None
    extensions: dict[str, Any] | None = None


class Unregister(Request, frozen=True, kw_only=True, tag="unregister"):
    """Remove a worker that closes. Returns: "OK" or "already-removed".

    Attributes:
        expected: whether the removal is intended, so that its tasks are not marked suspicious.
    """

    address: str
    stimulus_id: str = ""
    expected: bool = False


class SubscribeWorkerStatus(Request, frozen=True, kw_only=True, tag="subscribe_worker_status"):
    """Subscribe to workers that join or leave. Stock: ``deploy/cluster.py``.

    Returns: the identity, then raw messages ["add", {...}] and ["remove", address].
    """


class ConnectionStream(Request, frozen=True, kw_only=True, tag="connection_stream"):
    """Turn the connection into a stream without a registration. Stock: ``Server.handle_stream``."""

    extra: dict[str, Any] | None = None


class Feed(Request, frozen=True, kw_only=True, tag="feed"):
    """Call a function in the scheduler periodically and send its results. Stock: ``diagnostics/``.

    Attributes:
        function, setup, teardown: pickled functions.
        interval: seconds, or a text such as "1s".
        extra_arguments: arguments of the function.
    """

    EXTRA_FIELD: ClassVar[str | None] = "extra_arguments"

    function: Any = None
    setup: Any = None
    teardown: Any = None
    interval: TimeLimit = "1s"
    extra_arguments: dict[str, Any] = {}


# ------------------------------------------------------------------ data


class Gather(Request, frozen=True, kw_only=True, tag="gather"):
    """Fetch results through the scheduler."""

    keys: list[Any]


class Scatter(Request, frozen=True, kw_only=True, tag="scatter"):
    """Write data to workers through the scheduler. Returns: the keys.

    Attributes:
        data: key -> serialized value.
        workers: addresses or names of the workers that may receive it; None for all.
        broadcast: True to write it to all workers, or the number of workers.
    """

    data: dict[Key, Any]
    workers: Any = None
    client: Name = ""
    broadcast: Any = False
    timeout: TimeLimit = 2


class UpdateDataRpc(Request, frozen=True, kw_only=True, tag="update_data"):
    """Register data that is already on workers, like ``update-data``. Returns: None."""

    LENIENT_FIELDS: ClassVar[tuple[str, ...]] = ("nbytes",)

    who_has: dict[Key, list[str]]
    nbytes: dict[Key, Nbytes] = {}
    client: str | None = None


class AddKeysRpc(Request, frozen=True, kw_only=True, tag="add_keys"):
    """Report additional replicas, like ``add-keys``. Returns: "OK" or "not found"."""

    worker: str
    keys: list[Any] = []
    stimulus_id: str | None = None


class Rebalance(Request, frozen=True, kw_only=True, tag="rebalance"):
    """Balance memory between workers."""

    keys: list[Any] | None = None
    workers: list[str] | None = None
    stimulus_id: str | None = None


class Replicate(Request, frozen=True, kw_only=True, tag="replicate"):
    """Copy data to more workers. Returns: None or {"status": "partial-fail", "keys"}.

    Attributes:
        n: number of replicas of each key; None for one on each worker.
        branching_factor: number of workers that fetch from one replica in each step.
        delete: whether to remove replicas in excess of ``n``.
    """

    keys: list[Any]
    n: int | None = None
    workers: Any = None
    branching_factor: int = 2
    delete: bool = True
    stimulus_id: str | None = None


class Retry(Request, frozen=True, kw_only=True, tag="retry"):
    """Run failed tasks again. Returns: the keys of the tasks that had failed."""

    keys: list[Any]
    client: str | None = None


# ------------------------------------------------------------------ workers


class Broadcast(Request, frozen=True, kw_only=True, tag="broadcast"):
    """Send a request to several workers. Returns: {address: reply}.

    Attributes:
        msg: the request, ``op`` included.
        hosts: hosts whose workers all receive it, in addition.
        nanny: whether to send it to the workers' nannies instead.
        on_error: "raise", "return", "return_pickle" or "ignore".
    """

    msg: dict[Any, Any]
    workers: Any = None
    hosts: Any = None
    nanny: bool = False
    on_error: str = "raise"


class Proxy(Request, frozen=True, kw_only=True, tag="proxy"):
    """Send a request to one worker. Returns: its reply.

    Attributes:
        msg: the request, ``op`` included.
    """

    msg: dict[Any, Any]
    worker: str


class RestartRpc(Request, frozen=True, kw_only=True, tag="restart"):
    """Forget all tasks and restart all workers. Returns: None."""

    client: str | None = None
    timeout: int | Ordered | None = 30
    wait_for_workers: bool = True
    stimulus_id: str = ""


class RestartWorkers(Request, frozen=True, kw_only=True, tag="restart_workers"):
    """Restart some workers. Returns: {address: "OK", "removed" or "timed out"}.

    Attributes:
        on_error: "raise" or "return".
    """

    workers: list[str] | None = None
    client: str | None = None
    timeout: int | Ordered | None = 30
    wait_for_workers: bool = True
    on_error: str = "raise"
    stimulus_id: str = ""


class RetireWorkers(Request, frozen=True, kw_only=True, tag="retire_workers"):
    """Move all data off workers and remove them. Returns: {address: information on the worker}.

    Attributes:
        workers: addresses. Names are accepted too, unlike in stock, because ``SpecCluster`` sends
            them here when it scales down.
        names: names, instead of addresses.
        close_workers: whether to close the workers.
        remove: whether to remove them from the scheduler.
        extra_arguments: arguments of ``workers_to_close``, if neither addresses nor names are
            given.
    """

    EXTRA_FIELD: ClassVar[str | None] = "extra_arguments"

    workers: list[Any] | None = None
    names: list[Any] | None = None
    close_workers: bool = False
    remove: bool = True
    stimulus_id: str | None = None
    extra_arguments: dict[str, Any] = {}


class WorkersToClose(Request, frozen=True, kw_only=True, tag="workers_to_close"):
    """Choose workers that could be closed. Returns: addresses, or values of ``attribute``.

    Attributes:
        memory_ratio: keep memory for at least this multiple of the data in memory.
        n: number of workers to close.
        key: a pickled function that groups workers.
        minimum: number of workers to keep at least.
        target: number of workers to keep.
        attribute: attribute of each worker to return.
    """

    memory_ratio: Amount | None = None
    n: int | None = None
    key: Any = None
    minimum: int | None = None
    target: int | None = None
    attribute: str = "address"


class AdaptiveTarget(Request, frozen=True, kw_only=True, tag="adaptive_target"):
    """Compute the number of workers that the work requires. Returns: the number.

    Attributes:
        target_duration: time in which all work should finish; seconds or a text such as "5s".
    """

    target_duration: TimeLimit = None


class SetResources(Request, frozen=True, kw_only=True, tag="set_resources"):
    """Change the resources of a worker. Returns: "OK"."""

    worker: str
    resources: dict[Name, Ordered] | None = None


class SetRestrictions(Request, frozen=True, kw_only=True, tag="set_restrictions"):
    """Restrict tasks to workers. Returns: None.

    Attributes:
        worker: key -> addresses, one address, or None for no restriction.
    """

    worker: dict[Any, Any]


class CheckIdle(Request, frozen=True, kw_only=True, tag="check_idle"):
    """Check whether the scheduler is idle.

    Returns: the time since which it has been idle, in seconds since the epoch, or None.
    """


class Terminate(Request, frozen=True, kw_only=True, tag="terminate"):
    """Close the scheduler. There is no reply; the connection is closed.

    Attributes:
        timeout: ignored.
    """

    timeout: Ordered | None = None
    reason: str = "unknown"


# ------------------------------------------------------------------ code


class RunFunction(Request, frozen=True, kw_only=True, tag="run_function"):
    """Run a function in the scheduler."""

    function: Any
    args: Any = ()
    kwargs: Any = None
    wait: bool = True


class RegisterSchedulerPlugin(Request, frozen=True, kw_only=True, tag="register_scheduler_plugin"):
    """Register a plugin on the scheduler. Returns: None."""

    plugin: Any
    name: str | None = None
    idempotent: bool | None = None


class UnregisterSchedulerPlugin(
    Request, frozen=True, kw_only=True, tag="unregister_scheduler_plugin"
):
    """Remove a plugin from the scheduler. Returns: None."""

    name: str


class RegisterWorkerPlugin(Request, frozen=True, kw_only=True, tag="register_worker_plugin"):
    """Register a plugin on all current and future workers.

    Returns: {address: {"status": "OK"} or an error}.
    """

    plugin: Any
    name: str
    idempotent: bool | None = None


class UnregisterWorkerPlugin(Request, frozen=True, kw_only=True, tag="unregister_worker_plugin"):
    """Remove a plugin from all workers. Returns: {address: {"status": "OK"} or an error}."""

    name: str


class RegisterNannyPlugin(Request, frozen=True, kw_only=True, tag="register_nanny_plugin"):
    """Register a plugin on all current and future nannies.

    Returns: {address: {"status": "OK"} or an error}.
    """

    plugin: Any
    name: str
    idempotent: bool | None = None


class UnregisterNannyPlugin(Request, frozen=True, kw_only=True, tag="unregister_nanny_plugin"):
    """Remove a plugin from all nannies. Returns: {address: {"status": "OK"} or an error}."""

    name: str
