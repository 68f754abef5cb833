"""Requests to the scheduler for its state, logs, profiles and metadata."""

from typing import Any, ClassVar

from paceline.protocol.limits import Amount, Seconds

from .base import Request

# ------------------------------------------------------------------ state


class Identity(Request, frozen=True, kw_only=True, tag="identity"):
    """Get a description of the scheduler and its workers.

    Returns: {"type", "id", "address", "services", "started", "workers", ...}.

    Attributes:
        n_workers: maximum number of workers to describe; -1 or None for all.
    """

    n_workers: int | None = -1


class Versions(Request, frozen=True, kw_only=True, tag="versions"):
    """Get the versions of Python and packages. Returns: a nested dict."""

    packages: Any = None


class Echo(Request, frozen=True, kw_only=True, tag="echo"):
    """Return the data in the request. Returns: ``data``."""

    data: Any = None


class WhoHas(Request, frozen=True, kw_only=True, tag="who_has"):
    """Get the workers that hold keys. Returns: {key: addresses}."""

    keys: list[Any] | None = None


class HasWhat(Request, frozen=True, kw_only=True, tag="has_what"):
    """Get the keys that workers hold. Returns: {address: keys}."""

    workers: list[Any] | None = None


class Processing(Request, frozen=True, kw_only=True, tag="processing"):
    """Get the tasks that are processing on workers. Returns: {address: keys}."""

    workers: list[Any] | None = None


class Ncores(Request, frozen=True, kw_only=True, tag="ncores"):
    """Get the number of threads of workers. Returns: {address: number}."""

    workers: list[Any] | None = None


class NcoresRunning(Request, frozen=True, kw_only=True, tag="ncores_running"):
    """Get the number of threads of workers with status "running". Returns: {address: number}."""

    workers: list[Any] | None = None


class NbytesRequest(Request, frozen=True, kw_only=True, tag="nbytes"):
    """Get the sizes of results. Returns: {key: bytes}.

    Attributes:
        summary: whether to add up the sizes by task prefix.
    """

    keys: list[Any] | None = None
    summary: bool = True


class CallStack(Request, frozen=True, kw_only=True, tag="call_stack"):
    """Get the call stacks of running tasks. Returns: {address: {key: frames}}."""

    keys: list[Any] | None = None


class Profile(Request, frozen=True, kw_only=True, tag="profile"):
    """Get a statistical profile of the workers or the scheduler. Returns: a profile tree.

    Attributes:
        scheduler, server: profile the scheduler, or the event loops of the workers, instead of
            tasks.
        merge_workers: whether to merge the profiles of all workers.
        key: task prefix to which the profile is limited.
    """

    workers: Any = None
    scheduler: bool = False
    server: bool = False
    merge_workers: bool = True
    start: Amount | None = None
    stop: Amount | None = None
    key: Any = None


class Explain(Request, frozen=True, kw_only=True, tag="explain"):
    """Explain why a task does not run. The stock scheduler does not have this operation.

    Returns: the result of ``paceline.scheduler.core.inspection.explain``, with ``"summary"`` and
    ``"words"`` in English.

    Attributes:
        key: key of the task; None to explain what blocks the whole cluster.
        prefixes_only: whether to return only {"prefixes": {prefix: {state: count}}}.
    """

    key: Any = None
    prefixes_only: bool = False


class SharesRequest(Request, frozen=True, kw_only=True, tag="shares"):
    """Report share groups and their usage, or change settings of one before.

    The stock scheduler does not have this operation.

    Returns: the result of ``paceline.scheduler.core.inspection.share_report``.

    Attributes:
        group: group to change, or None.
        settings: weight, class, threads, tasks and memory, as far as they change; -1 for no cap.
    """

    group: str | None = None
    settings: dict[str, float] | None = None


class PerformanceReport(Request, frozen=True, kw_only=True, tag="performance_report"):
    """Create a performance report. Returns: HTML.

    Attributes:
        last_count: number of values that the scheduler's system monitor had at `start`.
        code: source code to show in the report.
        mode: mode of bokeh's resources.
    """

    start: float
    last_count: int = 0
    code: str = ""
    mode: str | None = None


class GetLogs(Request, frozen=True, kw_only=True, tag="get_logs"):
    """Get the scheduler's log. Returns: [(level, line)].

    Attributes:
        start: time of the oldest line, in seconds since the epoch.
    """

    start: Seconds = 0
    n: int | None = None
    timestamps: bool = False


class Logs(GetLogs, frozen=True, kw_only=True, tag="logs"):
    """Get the scheduler's log, like ``get_logs``. Returns: [(level, line)]."""


class WorkerLogs(Request, frozen=True, kw_only=True, tag="worker_logs"):
    """Get the logs of workers or nannies. Returns: {address: log}.

    Attributes:
        n: maximum number of lines of each log.
        nanny: whether to get the logs of the workers' nannies instead.
    """

    n: int | None = None
    workers: Any = None
    nanny: bool = False


class LogEventRpc(Request, frozen=True, kw_only=True, tag="log_event"):
    """Log an event, like ``log-event``. Returns: None.

    Attributes:
        topic: name of the topic, or a list of names.
    """

    topic: Any
    msg: Any = None


class Events(Request, frozen=True, kw_only=True, tag="events"):
    """Get the events of a topic. Returns: [(time, event)], or {topic: [(time, event)]}.

    Attributes:
        topic: name of the topic; None for all.
    """

    topic: Any = None


class GetTaskStatus(Request, frozen=True, kw_only=True, tag="get_task_status"):
    """Get the states of tasks. Returns: {key: state, or None if unknown}."""

    keys: list[Any] | None = None


class GetTaskPrefixStates(Request, frozen=True, kw_only=True, tag="get_task_prefix_states"):
    """Get the number of tasks in each state. Returns: {prefix: {state: count}}."""


class GetTaskStream(Request, frozen=True, kw_only=True, tag="get_task_stream"):
    """Get the records of finished tasks. Returns: the records.

    Attributes:
        start, stop: seconds since the epoch, or a text such as "5s" for a time before now.
        count: maximum number of records.
        start_index: index of the first record.
    """

    start: Any = None
    stop: Any = None
    count: int | None = None
    start_index: int | None = None


class GetTaskStreamIndex(Request, frozen=True, kw_only=True, tag="get_task_stream_index"):
    """Get the number of tasks that the task stream has recorded. Returns: the number."""


class GetStory(Request, frozen=True, kw_only=True, tag="get_story"):
    """Get the transitions of tasks or stimuli. Returns: the transitions."""

    keys_or_stimuli: list[Any]


class GetClusterState(Request, frozen=True, kw_only=True, tag="get_cluster_state"):
    """Get the state of the scheduler and all workers, for debugging. Returns: a nested dict."""

    exclude: list[str] = []


class DumpState(Request, frozen=True, kw_only=True, tag="dump_state"):
    """Get the state of the server, for debugging. Returns: a nested dict."""

    exclude: list[str] = []


class DumpClusterStateToUrl(Request, frozen=True, kw_only=True, tag="dump_cluster_state_to_url"):
    """Write the result of ``get_cluster_state`` to a file. Returns: None.

    Attributes:
        url: location of the file, for fsspec.
        format: "msgpack" or "yaml".
        storage_options: further arguments of fsspec.
    """

    EXTRA_FIELD: ClassVar[str | None] = "storage_options"

    url: str
    exclude: list[str] = []
    format: str = "msgpack"
    storage_options: dict[str, Any] = {}


class BenchmarkHardware(Request, frozen=True, kw_only=True, tag="benchmark_hardware"):
    """Measure the bandwidths of memory, disk and network. Returns: the bandwidths."""


# ------------------------------------------------------------------ metadata


class GetMetadata(Request, frozen=True, kw_only=True, tag="get_metadata"):
    """Get a value from the scheduler's metadata. Returns: the value.

    Attributes:
        keys: path of the value.
        default: value to return if there is none. Without a default, a missing value is an error; a
            client then sends its own marker.
    """

    keys: list[Any]
    default: Any = "__no_default__"


class SetMetadata(Request, frozen=True, kw_only=True, tag="set_metadata"):
    """Set a value in the scheduler's metadata. Returns: None.

    Attributes:
        keys: path of the value, or one name.
        value: any value.
    """

    keys: Any
    value: Any = None


class StartTaskMetadata(Request, frozen=True, kw_only=True, tag="start_task_metadata"):
    """Start collecting the metadata of tasks that finish. Returns: None."""

    name: str


class StopTaskMetadata(Request, frozen=True, kw_only=True, tag="stop_task_metadata"):
    """Stop collecting the metadata of tasks.

    Returns: {"metadata": {key: value}, "state": {key: state}}.
    """

    name: str | None = None
