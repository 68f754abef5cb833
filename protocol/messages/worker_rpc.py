"""Requests that a worker serves, on a connection that somebody else opened: the scheduler, a client, another worker.

Stock's table of handlers is in ``worker.py``, ``Worker.__init__``. A class is called as its op is; where the scheduler serves
an op of the same name, ``Worker`` stands before it.

Must not know: who asks, and why.
"""

from __future__ import annotations

from typing import Any

from .base import Request


class GetData(Request, frozen=True, kw_only=True, tag="get_data"):
    """Give me results.

    Returns: {"status": "OK", "data": {key: closed}}, to which the asker says "OK" in a further message, or
    {"status": "busy"}. Keys that the worker does not have are missing in it.

    Attributes:
        keys: which.
        who: address of the asker; None where it is no worker.
    """

    keys: list[Any]
    who: str | None = None


class WorkerGather(Request, frozen=True, kw_only=True, tag="gather"):
    """Fetch copies from other workers.

    Returns: {"status": "OK"} or {"status": "partial-fail", "keys": [...]}.

    Attributes:
        who_has: key -> addresses.
    """

    who_has: dict[Any, list[str]]


class WorkerUpdateData(Request, frozen=True, kw_only=True, tag="update_data"):
    """Take this data. Returns: {"nbytes": {key: bytes}, "status": "OK"}.

    Attributes:
        data: key -> value, closed.
        stimulus_id: what to call it.
    """

    data: dict[Any, Any]
    stimulus_id: str | None = None


class FreeKeysRpc(Request, frozen=True, kw_only=True, tag="free_keys"):
    """As ``free-keys``, with an answer. Returns: None.

    Attributes:
        keys: which.
        stimulus_id: what to call it.
    """

    keys: list[Any]
    stimulus_id: str


class Run(Request, frozen=True, kw_only=True, tag="run"):
    """Run a function, on a worker or a nanny. Returns: {"status": "OK", "result": closed} or an error.

    Attributes:
        function, args, kwargs: pickles.
        wait: for a coroutine.
    """

    function: Any
    args: Any = ()
    kwargs: Any = None
    wait: bool = True


class RunCoroutine(Request, frozen=True, kw_only=True, tag="run_coroutine"):
    """As ``run``.

    Attributes:
        function, args, kwargs: pickles.
        wait: for its end.
    """

    function: Any
    args: Any = ()
    kwargs: Any = None
    wait: bool = True


class PluginAdd(Request, frozen=True, kw_only=True, tag="plugin-add"):
    """Returns: {"status": "OK"} or an error.

    Attributes:
        plugin: a pickle.
        name: what to call it.
        catch_errors: return an error instead of raising it.
    """

    plugin: Any
    name: str | None = None
    catch_errors: bool = True


class PluginRemove(Request, frozen=True, kw_only=True, tag="plugin-remove"):
    """Returns: {"status": "OK"} or an error.

    Attributes:
        name: which.
    """

    name: str


class ActorExecute(Request, frozen=True, kw_only=True, tag="actor_execute"):
    """Call a method of an actor. Returns: {"status": "OK", "result": closed} or an error.

    Attributes:
        actor: its key.
        function: name of the method.
        args, kwargs: closed each.
    """

    actor: Any = None
    function: Any = None
    args: Any = ()
    kwargs: Any = None


class ActorAttribute(Request, frozen=True, kw_only=True, tag="actor_attribute"):
    """Returns: {"status": "OK", "result": closed} or an error.

    Attributes:
        actor: its key.
        attribute: its name.
    """

    actor: Any = None
    attribute: Any = None


class WorkerCallStack(Request, frozen=True, kw_only=True, tag="call_stack"):
    """Returns: key -> frames.

    Attributes:
        keys: of these tasks; None for all that run.
    """

    keys: list[Any] | None = None


class WorkerProfile(Request, frozen=True, kw_only=True, tag="profile"):
    """Returns: a profile tree.

    Attributes:
        start, stop: seconds since the epoch.
        key: of this task prefix.
        server: of the event loop instead of tasks.
    """

    start: float | None = None
    stop: float | None = None
    key: Any = None
    server: bool = False


class ProfileMetadata(Request, frozen=True, kw_only=True, tag="profile_metadata"):
    """Returns: {"counts": [(time, number)], "keys": [(time, {prefix: number})]}.

    Attributes:
        start, stop: seconds since the epoch.
    """

    start: float = 0
    stop: float | None = None


class GetMonitorInfo(Request, frozen=True, kw_only=True, tag="get_monitor_info"):
    """Returns: series of the system monitor.

    Attributes:
        recent: only the newest of each.
        start: from this number on.
    """

    recent: bool = False
    start: int = 0


class UploadFile(Request, frozen=True, kw_only=True, tag="upload_file"):
    """Returns: {"status": "OK", "nbytes": number} or an error.

    Attributes:
        filename: its name.
        data: what is in it.
        load: import it.
    """

    filename: str
    data: Any
    load: bool = True


class Keys(Request, frozen=True, kw_only=True, tag="keys"):
    """Returns: the keys of all results that the worker holds."""


class Ping(Request, frozen=True, kw_only=True, tag="ping"):
    """Returns: b"pong"."""


class BenchmarkDisk(Request, frozen=True, kw_only=True, tag="benchmark_disk"):
    """Returns: size -> bytes per second."""


class BenchmarkMemory(Request, frozen=True, kw_only=True, tag="benchmark_memory"):
    """Returns: size -> bytes per second."""


class BenchmarkNetwork(Request, frozen=True, kw_only=True, tag="benchmark_network"):
    """Returns: size -> bytes per second.

    Attributes:
        address: of the other worker.
    """

    address: str


class WorkerTerminate(Request, frozen=True, kw_only=True, tag="terminate"):
    """Close the worker. Returns: "OK".

    Attributes:
        timeout: seconds for each step.
        executor_wait: wait for running tasks.
        nanny: close the nanny too.
        reason: for logs.
    """

    timeout: float = 30
    executor_wait: bool = True
    nanny: bool = True
    reason: str = "worker-close"


class WorkerIdentity(Request, frozen=True, kw_only=True, tag="identity"):
    """Returns: {"type", "id", "scheduler", "nthreads", "memory_limit"}."""


class WorkerVersions(Request, frozen=True, kw_only=True, tag="versions"):
    """Returns: versions of Python and packages.

    Attributes:
        packages: further ones.
    """

    packages: Any = None


class WorkerGetLogs(Request, frozen=True, kw_only=True, tag="get_logs"):
    """Returns: [(level, line)]. A nanny serves it too.

    Attributes:
        start: leave out so many.
        n: at most so many.
        timestamps: with their times.
    """

    start: int = 0
    n: int | None = None
    timestamps: bool = False


class WorkerGetStory(Request, frozen=True, kw_only=True, tag="get_story"):
    """Returns: the worker's transitions.

    Attributes:
        keys_or_stimuli: of what.
    """

    keys_or_stimuli: list[Any]


class WorkerDumpState(Request, frozen=True, kw_only=True, tag="dump_state"):
    """Returns: the worker's state, for debugging.

    Attributes:
        exclude: attributes to leave out.
    """

    exclude: list[str] = []


class WorkerEcho(Request, frozen=True, kw_only=True, tag="echo"):
    """Returns: the same.

    Attributes:
        data: anything.
    """

    data: Any = None


class WorkerConnectionStream(Request, frozen=True, kw_only=True, tag="connection_stream"):
    """Turns the connection into a stream..

    Attributes:
        extra: arguments added to each message.
    """

    extra: dict[str, Any] | None = None


class ShuffleReceive(Request, frozen=True, kw_only=True, tag="shuffle_receive"):
    """Shards of a P2P shuffle, from another worker. Returns: {"status": "OK"} or an error.

    Attributes:
        shuffle_id: which.
        run_id: which attempt.
        data: the shards, closed.
    """

    shuffle_id: str
    run_id: int
    data: Any


class ShuffleInputsDone(Request, frozen=True, kw_only=True, tag="shuffle_inputs_done"):
    """All input of a P2P shuffle has been sent; the scheduler says so. Returns: None.

    Attributes:
        shuffle_id: which.
        run_id: which attempt.
    """

    shuffle_id: str
    run_id: int
