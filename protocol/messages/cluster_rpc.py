"""Requests that change something: who connects, data, workers, code. Part of ``scheduler_rpc``.

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
        workers: addresses. (``SpecCluster`` gives names here when it shrinks; they match nobody, as in stock.)
        names: names, instead of addresses.
        close_workers: close them.
        remove: remove them from the scheduler.
        stimulus_id: what to call it.
        extra_arguments: for ``workers_to_close``, when neither addresses nor names are given.
    """

    EXTRA_FIELD: ClassVar[str | None] = "extra_arguments"

    workers: list[Any] | None = None
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
