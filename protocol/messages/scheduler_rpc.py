"""Requests that the scheduler serves on a connection in its RPC phase, extensions aside (``extension_rpc``).

Stock's table of handlers is in ``scheduler.py``, ``Scheduler.__init__``. Arguments are what those handlers take; a request
with an argument more, or without one that has no default here, gets the reply that stock gives to a ``TypeError``.
Fields that may be of several types are ``Any``. "Returns" is the reply message.

Must not know: how a request is served.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .base import Request

# ------------------------------------------------------------------ who connects


class RegisterWorker(Request, frozen=True, kw_only=True, tag="register-worker"):
    """A worker joins; the connection becomes its stream. Stock: ``Worker._register_with_scheduler`` (``reply`` false).

    Returns: {"status": "OK", "time", "heartbeat-interval", "worker-plugins": {name: pickle}, "warning", "error"}, or
    {"status": "error", "message", "time"}.

    Attributes:
        address: where others reach it.
        status: "running", "paused", ...
        server_id: unique for each start of a worker.
        nthreads: how many tasks run at a time.
        name: what users call it; a str or an int.
        resolve_address: resolve the host name in ``address``.
        now: the worker's clock, seconds since the epoch.
        resources: resource -> amount it has.
        host_info: facts about the host, from old workers.
        memory_limit: bytes; None for no limit.
        metrics: as in ``heartbeat_worker``.
        pid: process id.
        services: name -> port ("dashboard").
        local_directory: where it spills.
        versions: of Python and packages.
        nanny: address of its nanny, or None.
        extra: facts that are stored with it.
        stimulus_id: what to call it.
    """

    address: str
    status: str = "running"
    server_id: str = ""
    nthreads: int = 1
    name: Any = None
    resolve_address: bool = True
    now: float = 0.0
    resources: dict[str, float] | None = None
    host_info: dict[str, Any] | None = None
    memory_limit: int | None = None
    metrics: dict[Any, Any] = {}
    pid: int = 0
    services: dict[str, Any] | None = None
    local_directory: str = ""
    versions: dict[str, Any] = {}
    nanny: str | None = None
    extra: dict[str, Any] = {}
    stimulus_id: str = ""


class RegisterNanny(Request, frozen=True, kw_only=True, tag="register_nanny"):
    """A nanny starts. Returns: {"status": "OK", "nanny-plugins": {name: pickle}}.

    Attributes:
        address: where others reach it.
    """

    address: str


class RegisterClient(Request, frozen=True, kw_only=True, tag="register-client"):
    """A client joins; the connection becomes its stream, which begins with ``stream-start``.

    Attributes:
        client: its name.
        versions: of Python and packages.
    """

    client: str
    versions: dict[str, Any] = {}


class HeartbeatWorker(Request, frozen=True, kw_only=True, tag="heartbeat_worker"):
    """A worker is alive, and how it is. Stock: ``Worker.heartbeat``.

    Returns: {"status": "OK", "time", "heartbeat-interval"}, or {"status": "missing"}.

    Attributes:
        address: whose.
        resolve_address: resolve the host name in ``address``.
        now: the worker's clock, seconds since the epoch.
        resources: resource -> amount, where it changed.
        host_info: facts about the host.
        metrics: an open map: "cpu", "memory", "task_counts", "bandwidth", "event_loop_interval", ...
        executing: key -> seconds since it started.
        extensions: extension -> what it says.
    """

    address: str
    resolve_address: bool = True
    now: float | None = None
    resources: dict[str, float] | None = None
    host_info: dict[str, Any] | None = None
    metrics: dict[Any, Any] = {}
    executing: dict[Any, float] | None = None
    extensions: dict[str, Any] | None = None


class Unregister(Request, frozen=True, kw_only=True, tag="unregister"):
    """A worker goes. Returns: "OK" or "already-removed".

    Attributes:
        address: which.
        stimulus_id: what to call it.
        expected: nobody is to blame.
    """

    address: str
    stimulus_id: str = ""
    expected: bool = False


class SubscribeWorkerStatus(Request, frozen=True, kw_only=True, tag="subscribe_worker_status"):
    """Tell me who joins and leaves. Stock: ``deploy/cluster.py``.

    Returns: the identity; then raw messages ["add", {...}] and ["remove", address].
    """


class ConnectionStream(Request, frozen=True, kw_only=True, tag="connection_stream"):
    """Turns the connection into a stream of messages without a registration. Stock: ``Server.handle_stream``.

    Attributes:
        extra: arguments added to each message.
    """

    extra: dict[str, Any] | None = None


class Feed(Request, frozen=True, kw_only=True, tag="feed"):
    """Run a function every so often and send what it returns. Stock: ``diagnostics/``.

    Attributes:
        function, setup, teardown: pickles.
        interval: seconds, or "1s".
        extra_arguments: for the function.
    """

    EXTRA_FIELD: ClassVar[str | None] = "extra_arguments"

    function: Any = None
    setup: Any = None
    teardown: Any = None
    interval: Any = "1s"
    extra_arguments: dict[str, Any] = {}


# ------------------------------------------------------------------ data


class Gather(Request, frozen=True, kw_only=True, tag="gather"):
    """Fetch results through the scheduler.

    Returns: {"status": "OK", "data": {key: closed}} or {"status": "error", "keys": [...]}.

    Attributes:
        keys: which.
    """

    keys: list[Any]


class Scatter(Request, frozen=True, kw_only=True, tag="scatter"):
    """Put data onto workers through the scheduler. Returns: the keys.

    Attributes:
        data: key -> value, closed.
        workers: addresses or names it may go to.
        client: who wants it.
        broadcast: to all workers; or a number of them.
        timeout: seconds to wait for a worker.
    """

    data: dict[Any, Any]
    workers: Any = None
    client: str = ""
    broadcast: Any = False
    timeout: Any = 2


class UpdateDataRpc(Request, frozen=True, kw_only=True, tag="update_data"):
    """As ``update-data``, with an answer. Returns: None.

    Attributes:
        who_has: key -> addresses.
        nbytes: key -> size in bytes.
        client: who wants it.
    """

    who_has: dict[Any, list[str]]
    nbytes: dict[Any, int]
    client: str | None = None


class AddKeysRpc(Request, frozen=True, kw_only=True, tag="add_keys"):
    """As ``add-keys``, with an answer. Returns: "OK" or "not found".

    Attributes:
        worker: who holds them.
        keys: which.
        stimulus_id: what to call it.
    """

    worker: str
    keys: list[Any] = []
    stimulus_id: str | None = None


class Rebalance(Request, frozen=True, kw_only=True, tag="rebalance"):
    """Even out memory. Returns: {"status": "OK"} or {"status": "partial-fail", "keys"}.

    Attributes:
        keys: only these.
        workers: only these.
        stimulus_id: what to call it.
    """

    keys: list[Any] | None = None
    workers: list[str] | None = None
    stimulus_id: str | None = None


class Replicate(Request, frozen=True, kw_only=True, tag="replicate"):
    """Make copies. Returns: None or {"status": "partial-fail", "keys"}.

    Attributes:
        keys: of what.
        n: how many of each; None for one a worker.
        workers: where.
        branching_factor: how many copies a copy gives in one step.
        delete: drop what is too many.
        stimulus_id: what to call it.
    """

    keys: list[Any]
    n: int | None = None
    workers: Any = None
    branching_factor: int = 2
    delete: bool = True
    stimulus_id: str | None = None


class Retry(Request, frozen=True, kw_only=True, tag="retry"):
    """Run erred tasks again. Returns: the keys that were erred.

    Attributes:
        keys: which.
        client: who asks.
    """

    keys: list[Any]
    client: str | None = None


# ------------------------------------------------------------------ workers


class Broadcast(Request, frozen=True, kw_only=True, tag="broadcast"):
    """Send a request to many workers. Returns: address -> reply.

    Attributes:
        msg: the request, op included.
        workers: to these; None for all.
        hosts: and to all on these hosts.
        nanny: to their nannies instead.
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
        msg: the request, op included.
        worker: to whom.
    """

    msg: dict[Any, Any]
    worker: str


class RestartRpc(Request, frozen=True, kw_only=True, tag="restart"):
    """Forget all tasks and restart all workers. Returns: None.

    Attributes:
        client: who asks.
        timeout: seconds to wait for the workers.
        wait_for_workers: wait until they are back.
        stimulus_id: what to call it.
    """

    client: str | None = None
    timeout: Any = 30
    wait_for_workers: bool = True
    stimulus_id: str = ""


class RestartWorkers(Request, frozen=True, kw_only=True, tag="restart_workers"):
    """Restart some workers. Returns: address -> "OK", "removed", "timed out" or an error.

    Attributes:
        workers: addresses; None for all.
        client: who asks.
        timeout: seconds to wait.
        wait_for_workers: wait until they are back.
        on_error: "raise" or "return".
        stimulus_id: what to call it.
    """

    workers: list[str] | None = None
    client: str | None = None
    timeout: Any = 30
    wait_for_workers: bool = True
    on_error: str = "raise"
    stimulus_id: str = ""


class RetireWorkers(Request, frozen=True, kw_only=True, tag="retire_workers"):
    """Move the data off workers and let them go. Returns: address -> facts about it.

    Attributes:
        workers: addresses.
        names: names, instead of addresses.
        close_workers: close them.
        remove: remove them from the scheduler.
        stimulus_id: what to call it.
        extra_arguments: for ``workers_to_close``, when neither addresses nor names are given.
    """

    EXTRA_FIELD: ClassVar[str | None] = "extra_arguments"

    workers: list[str] | None = None
    names: list[Any] | None = None
    close_workers: bool = False
    remove: bool = True
    stimulus_id: str | None = None
    extra_arguments: dict[str, Any] = {}


class WorkersToClose(Request, frozen=True, kw_only=True, tag="workers_to_close"):
    """Which workers could go. Returns: addresses, or values of ``attribute``.

    Attributes:
        memory_ratio: keep so many times the memory that is used.
        n: how many to close.
        key: groups workers; a pickled function.
        minimum: keep at least so many.
        target: keep so many.
        attribute: what to return of each.
    """

    memory_ratio: float | None = None
    n: int | None = None
    key: Any = None
    minimum: int | None = None
    target: int | None = None
    attribute: str = "address"


class AdaptiveTarget(Request, frozen=True, kw_only=True, tag="adaptive_target"):
    """How many workers would be right. Returns: a number.

    Attributes:
        target_duration: seconds all the work should take; a number or "5s".
    """

    target_duration: Any = None


class SetResources(Request, frozen=True, kw_only=True, tag="set_resources"):
    """A worker's resources change. Returns: "OK".

    Attributes:
        worker: whose.
        resources: resource -> amount.
    """

    worker: str
    resources: dict[str, float] | None = None


class SetRestrictions(Request, frozen=True, kw_only=True, tag="set_restrictions"):
    """Where tasks may run. Returns: None.

    Attributes:
        worker: key -> addresses, one address, or None.
    """

    worker: dict[Any, Any]


class CheckIdle(Request, frozen=True, kw_only=True, tag="check_idle"):
    """Since when the scheduler has had nothing to do. Returns: seconds since the epoch, or None."""


class Terminate(Request, frozen=True, kw_only=True, tag="terminate"):
    """Close the scheduler. Returns: None.

    Attributes:
        timeout: seconds.
        reason: for logs.
    """

    timeout: float | None = None
    reason: str = "unknown"


# ------------------------------------------------------------------ what the scheduler knows


class Identity(Request, frozen=True, kw_only=True, tag="identity"):
    """Who the scheduler is, and its workers. Returns: {"type", "id", "address", "services", "started", "workers", ...}.

    Attributes:
        n_workers: describe at most so many; -1 for all.
    """

    n_workers: int = -1


class Versions(Request, frozen=True, kw_only=True, tag="versions"):
    """Versions of Python and packages. Returns: a nested dict.

    Attributes:
        packages: further ones.
    """

    packages: Any = None


class Echo(Request, frozen=True, kw_only=True, tag="echo"):
    """Returns: the same.

    Attributes:
        data: anything.
    """

    data: Any = None


class WhoHas(Request, frozen=True, kw_only=True, tag="who_has"):
    """Returns: key -> addresses.

    Attributes:
        keys: which; None for all.
    """

    keys: list[Any] | None = None


class HasWhat(Request, frozen=True, kw_only=True, tag="has_what"):
    """Returns: address -> keys.

    Attributes:
        workers: whose; None for all.
    """

    workers: list[str] | None = None


class Processing(Request, frozen=True, kw_only=True, tag="processing"):
    """Returns: address -> keys being processed there.

    Attributes:
        workers: whose; None for all.
    """

    workers: list[str] | None = None


class Ncores(Request, frozen=True, kw_only=True, tag="ncores"):
    """Returns: address -> number of threads.

    Attributes:
        workers: whose; None for all.
    """

    workers: list[str] | None = None


class NcoresRunning(Request, frozen=True, kw_only=True, tag="ncores_running"):
    """Returns: address -> number of threads, of workers that are running.

    Attributes:
        workers: whose; None for all.
    """

    workers: list[str] | None = None


class Nbytes(Request, frozen=True, kw_only=True, tag="nbytes"):
    """Returns: key -> size in bytes.

    Attributes:
        keys: which; None for all.
        summary: per prefix instead.
    """

    keys: list[Any] | None = None
    summary: bool = True


class CallStack(Request, frozen=True, kw_only=True, tag="call_stack"):
    """Returns: address -> {key: frames}.

    Attributes:
        keys: of these tasks; None for all that run.
    """

    keys: list[Any] | None = None


class Profile(Request, frozen=True, kw_only=True, tag="profile"):
    """Returns: a profile tree.

    Attributes:
        workers: of these.
        scheduler, server: of the scheduler's, or of the servers' own threads.
        merge_workers: one tree for all.
        start, stop: seconds since the epoch.
        key: of this task prefix.
    """

    workers: Any = None
    scheduler: bool = False
    server: bool = False
    merge_workers: bool = True
    start: Any = None
    stop: Any = None
    key: Any = None


class PerformanceReport(Request, frozen=True, kw_only=True, tag="performance_report"):
    """Returns: HTML.

    Attributes:
        start: seconds since the epoch.
        last_count: where in the task stream it begins.
        code: shown in it.
        mode: of bokeh.
    """

    start: float
    last_count: int = 0
    code: str = ""
    mode: str | None = None


class GetLogs(Request, frozen=True, kw_only=True, tag="get_logs"):
    """The scheduler's log. Returns: [(level, line)].

    Attributes:
        start: leave out so many.
        n: at most so many.
        timestamps: with their times.
    """

    start: int = 0
    n: int | None = None
    timestamps: bool = False


class Logs(Request, frozen=True, kw_only=True, tag="logs"):
    """The same as ``get_logs``.

    Attributes:
        start: leave out so many.
        n: at most so many.
        timestamps: with their times.
    """

    start: int = 0
    n: int | None = None
    timestamps: bool = False


class WorkerLogs(Request, frozen=True, kw_only=True, tag="worker_logs"):
    """Returns: address -> log.

    Attributes:
        n: at most so many lines each.
        workers: whose.
        nanny: of their nannies.
    """

    n: int | None = None
    workers: Any = None
    nanny: bool = False


class LogEventRpc(Request, frozen=True, kw_only=True, tag="log_event"):
    """As ``log-event``, with an answer. Returns: None.

    Attributes:
        topic: a str, or several.
        msg: the event; anything.
    """

    topic: Any
    msg: Any = None


class Events(Request, frozen=True, kw_only=True, tag="events"):
    """Returns: [(time, event)], or {topic: the same}.

    Attributes:
        topic: which; None for all.
    """

    topic: Any = None


class GetTaskStatus(Request, frozen=True, kw_only=True, tag="get_task_status"):
    """Returns: key -> state, or None if unknown.

    Attributes:
        keys: which.
    """

    keys: list[Any] | None = None


class GetTaskPrefixStates(Request, frozen=True, kw_only=True, tag="get_task_prefix_states"):
    """Returns: prefix -> {state: count}."""


class GetTaskStream(Request, frozen=True, kw_only=True, tag="get_task_stream"):
    """Returns: the records of finished tasks.

    Attributes:
        start, stop: seconds since the epoch, or "5s" for so long ago.
        count: at most so many.
        start_index: from this one on.
    """

    start: Any = None
    stop: Any = None
    count: int | None = None
    start_index: int | None = None


class GetTaskStreamIndex(Request, frozen=True, kw_only=True, tag="get_task_stream_index"):
    """Returns: how many tasks the stream has had."""


class GetStory(Request, frozen=True, kw_only=True, tag="get_story"):
    """Returns: transitions.

    Attributes:
        keys_or_stimuli: of what.
    """

    keys_or_stimuli: list[Any]


class GetClusterState(Request, frozen=True, kw_only=True, tag="get_cluster_state"):
    """Returns: everything, for debugging.

    Attributes:
        exclude: attributes to leave out.
    """

    exclude: list[str] = []


class DumpState(Request, frozen=True, kw_only=True, tag="dump_state"):
    """Returns: the scheduler's state, for debugging.

    Attributes:
        exclude: attributes to leave out.
    """

    exclude: list[str] = []


class DumpClusterStateToUrl(Request, frozen=True, kw_only=True, tag="dump_cluster_state_to_url"):
    """Write what ``get_cluster_state`` gives to a file. Returns: None.

    Attributes:
        url: where, for fsspec.
        exclude: attributes to leave out.
        format: "msgpack" or "yaml".
        storage_options: further arguments, for fsspec.
    """

    EXTRA_FIELD: ClassVar[str | None] = "storage_options"

    url: str
    exclude: list[str] = []
    format: str = "msgpack"
    storage_options: dict[str, Any] = {}


class BenchmarkHardware(Request, frozen=True, kw_only=True, tag="benchmark_hardware"):
    """Returns: bandwidths of memory, disk and network."""


# ------------------------------------------------------------------ metadata


class GetMetadata(Request, frozen=True, kw_only=True, tag="get_metadata"):
    """Returns: the value.

    Attributes:
        keys: path to it.
        default: if there is none; without it that is an error. A client sends its own mark for "no default".
    """

    keys: list[Any]
    default: Any = "__no_default__"


class SetMetadata(Request, frozen=True, kw_only=True, tag="set_metadata"):
    """Returns: None.

    Attributes:
        keys: path to the value; or one name.
        value: anything.
    """

    keys: Any
    value: Any = None


class StartTaskMetadata(Request, frozen=True, kw_only=True, tag="start_task_metadata"):
    """Gather the metadata of tasks that finish. Returns: None.

    Attributes:
        name: of this gathering.
    """

    name: str


class StopTaskMetadata(Request, frozen=True, kw_only=True, tag="stop_task_metadata"):
    """Returns: {"metadata": {key: value}, "state": {key: state}}.

    Attributes:
        name: of the gathering.
    """

    name: str | None = None


# ------------------------------------------------------------------ code


class RunFunction(Request, frozen=True, kw_only=True, tag="run_function"):
    """Run a function in the scheduler. Returns: {"status": "OK", "result": closed} or an error.

    Attributes:
        function, args, kwargs: pickles.
        wait: for a coroutine.
    """

    function: Any
    args: Any = ()
    kwargs: Any = None
    wait: bool = True


class RegisterSchedulerPlugin(Request, frozen=True, kw_only=True, tag="register_scheduler_plugin"):
    """Returns: None.

    Attributes:
        plugin: a pickle.
        name: what to call it.
        idempotent: do nothing if there is one of this name.
    """

    plugin: Any
    name: str | None = None
    idempotent: bool | None = None


class UnregisterSchedulerPlugin(
    Request, frozen=True, kw_only=True, tag="unregister_scheduler_plugin"
):
    """Returns: None.

    Attributes:
        name: which.
    """

    name: str


class RegisterWorkerPlugin(Request, frozen=True, kw_only=True, tag="register_worker_plugin"):
    """On all workers, now and later. Returns: address -> {"status": "OK"} or an error.

    Attributes:
        plugin: a pickle.
        name: what to call it.
        idempotent: do nothing if there is one of this name.
    """

    plugin: Any
    name: str
    idempotent: bool | None = None


class UnregisterWorkerPlugin(Request, frozen=True, kw_only=True, tag="unregister_worker_plugin"):
    """Returns: address -> {"status": "OK"} or an error.

    Attributes:
        name: which.
    """

    name: str


class RegisterNannyPlugin(Request, frozen=True, kw_only=True, tag="register_nanny_plugin"):
    """On all nannies, now and later. Returns: address -> {"status": "OK"} or an error.

    Attributes:
        plugin: a pickle.
        name: what to call it.
        idempotent: do nothing if there is one of this name.
    """

    plugin: Any
    name: str
    idempotent: bool | None = None


class UnregisterNannyPlugin(Request, frozen=True, kw_only=True, tag="unregister_nanny_plugin"):
    """Returns: address -> {"status": "OK"} or an error.

    Attributes:
        name: which.
    """

    name: str
