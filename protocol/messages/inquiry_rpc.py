"""Requests that ask what the scheduler knows, and metadata. Part of ``scheduler_rpc``.

Must not know: how a request is served.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .base import Request

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


class Explain(Request, frozen=True, kw_only=True, tag="explain"):
    """Why a task does not run. Not an op of stock's.
    Returns: what ``paceline.scheduler.core.explain`` says; with ``"summary"`` and ``"words"`` in English.

    Attributes:
        key: which; None for what holds up the cluster as a whole.
    """

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
