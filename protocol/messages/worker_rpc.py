"""Requests to a worker, on a connection opened by the scheduler, a client or another worker.

Stock's handlers are listed in ``Worker.__init__``. Classes are named after their operation, with
the prefix ``Worker`` if the scheduler has an operation of the same name.
"""

from typing import Any

from .base import Request
from .inquiry_rpc import GetLogs


class GetData(Request, frozen=True, kw_only=True, tag="get_data"):
    """Fetch results from a worker.

    The receiver confirms the data with a further message, "OK". Keys that the worker does not hold
    are missing in the reply.

    Attributes:
        who: address of the worker that sends the request; None for other senders.
    """

    keys: list[Any]
    who: str | None = None


class WorkerGather(Request, frozen=True, kw_only=True, tag="gather"):
    """Make the worker fetch replicas from other workers."""

    who_has: dict[Any, list[str]]


class WorkerUpdateData(Request, frozen=True, kw_only=True, tag="update_data"):
    """Store data on the worker.

    Attributes:
        data: key -> serialized value.
    """

    data: dict[Any, Any]
    stimulus_id: str | None = None


class FreeKeysRpc(Request, frozen=True, kw_only=True, tag="free_keys"):
    """Make the worker forget tasks, like ``free-keys``. Returns: None."""

    keys: list[Any]
    stimulus_id: str


class Run(Request, frozen=True, kw_only=True, tag="run"):
    """Run a function on a worker or a nanny."""

    function: Any
    args: Any = ()
    kwargs: Any = None
    wait: bool = True


class RunCoroutine(Run, frozen=True, kw_only=True, tag="run_coroutine"):
    """Run a coroutine function on the worker."""


class PluginAdd(Request, frozen=True, kw_only=True, tag="plugin-add"):
    """Register a plugin on the worker. Returns: {"status": "OK"} or an error.

    Attributes:
        catch_errors: whether to return an exception of the plugin's setup instead of raising it.
    """

    plugin: Any
    name: str | None = None
    catch_errors: bool = True


class PluginRemove(Request, frozen=True, kw_only=True, tag="plugin-remove"):
    """Remove a plugin from the worker. Returns: {"status": "OK"} or an error."""

    name: str


class ActorExecute(Request, frozen=True, kw_only=True, tag="actor_execute"):
    """Call a method of an actor.

    Attributes:
        function: name of the method.
        args, kwargs: serialized one by one.
    """

    actor: Any = None
    function: Any = None
    args: Any = ()
    kwargs: Any = None


class ActorAttribute(Request, frozen=True, kw_only=True, tag="actor_attribute"):
    """Get an attribute of an actor."""

    actor: Any = None
    attribute: Any = None


class WorkerCallStack(Request, frozen=True, kw_only=True, tag="call_stack"):
    """Get the call stacks of running tasks. Returns: {key: frames}."""

    keys: list[Any] | None = None


class WorkerProfile(Request, frozen=True, kw_only=True, tag="profile"):
    """Get a statistical profile of the worker. Returns: a profile tree.

    Attributes:
        key: task prefix to which the profile is limited.
        server: whether to profile the event loop instead of tasks.
    """

    start: float | None = None
    stop: float | None = None
    key: Any = None
    server: bool = False


class ProfileMetadata(Request, frozen=True, kw_only=True, tag="profile_metadata"):
    """Get the number of samples in the worker's profile over time.

    Returns: {"counts": [(time, number)], "keys": [(time, {prefix: number})]}.
    """

    start: float = 0
    stop: float | None = None


class GetMonitorInfo(Request, frozen=True, kw_only=True, tag="get_monitor_info"):
    """Get the time series of the system monitor. Returns: the time series.

    Attributes:
        recent: whether to return only the latest sample of each.
        start: number of the first sample.
    """

    recent: bool = False
    start: int = 0


class UploadFile(Request, frozen=True, kw_only=True, tag="upload_file"):
    """Upload a file to the worker.

    Attributes:
        filename: name of the file.
        data: content of the file.
        load: whether to import it.
    """

    filename: str
    data: Any
    load: bool = True


class Keys(Request, frozen=True, kw_only=True, tag="keys"):
    """Get the keys of all results that the worker holds. Returns: the keys."""


class Ping(Request, frozen=True, kw_only=True, tag="ping"):
    """Check that the worker responds. Returns: b"pong"."""


class BenchmarkDisk(Request, frozen=True, kw_only=True, tag="benchmark_disk"):
    """Measure the bandwidth of the disk. Returns: {size: bytes per second}."""


class BenchmarkMemory(Request, frozen=True, kw_only=True, tag="benchmark_memory"):
    """Measure the bandwidth of the memory. Returns: {size: bytes per second}."""


class BenchmarkNetwork(Request, frozen=True, kw_only=True, tag="benchmark_network"):
    """Measure the bandwidth to another worker. Returns: {size: bytes per second}."""

    address: str


class WorkerTerminate(Request, frozen=True, kw_only=True, tag="terminate"):
    """Close the worker. Returns: "OK"."""

    timeout: float = 30
    executor_wait: bool = True
    nanny: bool = True
    reason: str = "worker-close"


class WorkerIdentity(Request, frozen=True, kw_only=True, tag="identity"):
    """Get a description of the worker.

    Returns: {"type", "id", "scheduler", "nthreads", "memory_limit"}.
    """


class WorkerVersions(Request, frozen=True, kw_only=True, tag="versions"):
    """Get the versions of Python and packages. Returns: a nested dict."""

    packages: Any = None


class WorkerGetLogs(GetLogs, frozen=True, kw_only=True, tag="get_logs"):
    """Get the log of a worker or a nanny. Returns: [(level, line)]."""


class ShuffleReceive(Request, frozen=True, kw_only=True, tag="shuffle_receive"):
    """Send shards of a P2P shuffle to another worker. Returns: {"status": "OK"} or an error.

    Attributes:
        data: the serialized shards.
    """

    shuffle_id: str
    run_id: int
    data: Any


class ShuffleInputsDone(Request, frozen=True, kw_only=True, tag="shuffle_inputs_done"):
    """Report that all input of a P2P shuffle has been sent.

    The scheduler sends it.

    Returns: None.
    """

    shuffle_id: str
    run_id: int
