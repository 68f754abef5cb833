"""Diagnostics: call stacks, versions, hardware benchmarks, profiles, logs, records of tasks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.protocol.messages import Message
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.server.peers.peer import Peer
from paceline.scheduler.server.server_api import Handler, ServerApi
from paceline.workers_compat.config import versions
from paceline.workers_compat.facade import stock_plugins
from paceline.workers_compat.loop_profile import merged_profile

from .broadcast import broadcast, call_each
from .handler_parts import arguments, calls

#: Kinds of collectors, for the recorder.
TASK_STREAM, TASK_METADATA = "task-stream", "task-metadata"
#: Default width of the bins of profile metadata, in seconds.
PROFILE_CYCLE_SECONDS = 1.0


async def call_stack(server: ServerApi, keys: Iterable[Key] | None = None) -> dict[str, Any]:
    """Return worker address -> key -> call stack of the tasks that are running.

    Workers that run none of the tasks are left out.

    Raises:
        KeyError: a key is unknown.
        OSError: a worker was lost meanwhile.
    """
    plan = queries.call_stack_keys(server.state, keys)
    replies = await asyncio.gather(
        *(server.rpc_call(a, m.WorkerCallStack(keys=ks)) for a, ks in plan.items())
    )
    return {address: reply for address, reply in zip(plan, replies) if reply}


async def benchmark_hardware(server: ServerApi) -> dict[str, dict[str, float]]:
    """Return average bandwidths: "disk", "memory" or "network" -> size -> bandwidth."""
    samples: dict[str, list[dict[str, float]]] = {
        "disk": list((await broadcast(server, m.BenchmarkDisk())).values()),
        "memory": list((await broadcast(server, m.BenchmarkMemory())).values()),
    }
    workers = list(server.state.workers)
    # workers that registered one after the other often share a machine
    server.request_state.random.shuffle(workers)
    pairs = zip(workers[::2], workers[1::2])
    samples["network"] = await asyncio.gather(
        *(server.rpc_call(a, m.BenchmarkNetwork(address=b)) for a, b in pairs)
    )
    return {mode: _averages(found) for mode, found in samples.items()}


def _averages(samples: Sequence[dict[str, float]]) -> dict[str, float]:
    sums: dict[str, list[float]] = {}
    for sample in samples:
        for size, value in sample.items():
            sums.setdefault(size, []).append(value)
    return {size: sum(values) / len(values) for size, values in sums.items()}


async def profile(
    server: ServerApi,
    workers: Iterable[str] | None = None,
    scheduler: bool = False,
    server_threads: bool = False,
    merge_workers: bool = True,
    start: float | None = None,
    stop: float | None = None,
    key: Any = None,
) -> dict[str, Any]:
    """Return the statistical profiles of workers, merged or by address.

    See ``messages.Profile`` for the arguments. With ``scheduler``, the event
    loop is sampled from the first request on.
    """
    if scheduler:
        return server.request_state.loop_profile.get(start, stop)
    request = m.WorkerProfile(start=start, stop=stop, key=key, server=server_threads)
    replies = await _replies(server, workers, request)
    return merged_profile(list(replies.values())) if merge_workers else replies


async def _replies(
    server: ServerApi, workers: Iterable[str] | None, request: Message
) -> dict[str, Any]:
    """Return the replies of the workers that answered."""
    present = server.state.workers
    targets = {a: a for a in (present if workers is None else workers) if a in present}
    outcomes = await call_each(server, targets, request)
    return {a: reply for a, reply in outcomes.items() if not isinstance(reply, Exception)}


async def profile_metadata(
    server: ServerApi,
    workers: Iterable[str] | None = None,
    start: float = 0,
    stop: float | None = None,
    bin_seconds: float = PROFILE_CYCLE_SECONDS,
) -> dict[str, Any]:
    """Return the number of profile samples over time, in total and per prefix.

    Returns:
        ``{"counts": [(time, n)], "keys": {prefix: [[time, n]]}}``.
    """
    request = m.ProfileMetadata(start=start, stop=stop)
    found = list((await _replies(server, workers, request)).values())
    counts = sorted(pair for each in found for pair in each["counts"])

    def bin_of(entry: Any) -> float:
        return float(entry[0] // bin_seconds * bin_seconds)

    binned = [(at, sum(n for _, n in group)) for at, group in itertools.groupby(counts, key=bin_of)]
    samples = sorted(((t, d) for each in found for t, d in each["keys"]), key=lambda e: e[0])
    keys: dict[Any, list[list[float]]] = {name: [] for _, d in samples for name in d}
    last = 0.0
    for t, counted in samples:
        at = bin_of((t,))
        if at > last:
            last = at
            for column in keys.values():
                column.append([at, 0])
        for name, n in counted.items():
            keys[name][-1][1] += n
    return {"counts": binned, "keys": keys}


def handle_profile(server: ServerApi, request: m.Profile, peer: Peer) -> Any:
    """See ``profile``."""
    options = arguments(request)
    return profile(server, server_threads=options.pop("server"), **options)


def task_stream(server: ServerApi, *_: Any) -> Any:
    """Return distributed's ``TaskStreamPlugin``. It collects from the first call on."""
    if stock_plugins.TASK_STREAM not in server.plugins:
        server.recorder.continued(TASK_STREAM, "", b"")
    return stock_plugins.task_stream(server.plugins)


def handle_get_task_stream(server: ServerApi, request: m.GetTaskStream, peer: Peer) -> list[Any]:
    """Return records of finished tasks. They are collected from the first such request on."""
    return list(task_stream(server).collect(**arguments(request)))


def start_task_metadata(server: ServerApi, name: str, *_: Any) -> None:
    """Start a collection of metadata of tasks."""
    stock_plugins.start_task_metadata(server.plugins, name)
    server.recorder.continued(TASK_METADATA, name, b"")


def stop_task_metadata(server: ServerApi, name: str | None) -> dict[str, Any]:
    """Stop a collection and return what it found. Raise ValueError for an unknown name."""
    found = stock_plugins.stop_task_metadata(server.plugins, name)
    server.recorder.continued(TASK_METADATA, str(name), None)
    return found


def handle_logs(
    server: ServerApi, request: m.GetLogs | m.Logs, peer: Peer
) -> list[tuple[Any, ...]]:
    """Return the last lines of the scheduler's log."""
    return server.request_state.log.lines(**arguments(request))


HANDLERS: dict[type, Handler] = {
    m.CallStack: calls(call_stack),
    m.Versions: lambda server, request, peer: versions.get_versions(request.packages),
    m.BenchmarkHardware: calls(benchmark_hardware),
    m.Profile: handle_profile,
    m.GetLogs: handle_logs,
    m.Logs: handle_logs,
    m.GetTaskStream: handle_get_task_stream,
    m.GetTaskStreamIndex: lambda server, request, peer: int(task_stream(server).index),
    m.StartTaskMetadata: lambda server, request, peer: start_task_metadata(server, request.name),
    m.StopTaskMetadata: lambda server, request, peer: stop_task_metadata(server, request.name),
}
