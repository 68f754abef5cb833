"""Questions that workers answer: call stacks, profiles, hardware, and who is there.

Must not know: who asks, or why.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.protocol.keys import Key
from paceline.protocol.messages import Message, worker_rpc
from paceline.scheduler.core import queries

from ..rpc.base import PeerPort, RemoteError
from .broadcast import broadcast
from .ports import FlowServer

#: A profile's root: what merging no profiles gives.
EMPTY_PROFILE_ROOT = ("root", {"filename": "", "name": "", "line_number": 0, "line": ""})
#: Profiles are merged down to this depth; deeper frames are cut off.
PROFILE_DEPTH_MAX = 400
#: Width of the bins of profile metadata unless the configuration says otherwise, seconds.
PROFILE_CYCLE_SECONDS = 1.0


async def call_stack(server: FlowServer, keys: Iterable[Key] | None = None) -> dict[str, Any]:
    """Worker -> key -> what its thread executes now; workers with nothing to tell are left out.

    Raises:
        KeyError: a key is unknown. OSError: a worker was lost meanwhile.
    """
    whom = queries.call_stack_keys(server.state, keys)
    replies = await asyncio.gather(
        *(server.rpc_call(a, worker_rpc.WorkerCallStack(keys=ks)) for a, ks in whom.items())
    )
    return {address: reply for address, reply in zip(whom, replies) if reply}


async def benchmark_hardware(server: FlowServer) -> dict[str, dict[str, float]]:
    """ "disk", "memory" and "network" -> size -> bandwidth, averaged over the workers."""
    samples: dict[str, list[dict[str, float]]] = {
        "disk": list((await broadcast(server, worker_rpc.BenchmarkDisk())).values()),
        "memory": list((await broadcast(server, worker_rpc.BenchmarkMemory())).values()),
    }
    workers = list(server.state.workers)
    server.flows.random.shuffle(workers)  # neighbours in order of arrival often share a machine
    pairs = zip(workers[::2], workers[1::2])
    samples["network"] = await asyncio.gather(
        *(server.rpc_call(a, worker_rpc.BenchmarkNetwork(address=b)) for a, b in pairs)
    )
    return {mode: _averages(found) for mode, found in samples.items()}


def _averages(samples: Sequence[dict[str, float]]) -> dict[str, float]:
    sums: dict[str, list[float]] = {}
    for sample in samples:
        for size, value in sample.items():
            sums.setdefault(size, []).append(value)
    return {size: sum(values) / len(values) for size, values in sums.items()}


# ------------------------------------------------------------------ profiles


async def profile(
    server: FlowServer,
    workers: Iterable[str] | None = None,
    scheduler: bool = False,
    server_threads: bool = False,
    merge_workers: bool = True,
    start: float | None = None,
    stop: float | None = None,
    key: Any = None,
) -> dict[str, Any]:
    """The workers' statistical profiles, merged or worker -> profile.

    Args:
        scheduler: of the scheduler's event loop instead, from when somebody first asks for it.
        server_threads: of the workers' event loops, not their tasks.
        start, stop: seconds since the epoch.
        key: of tasks with this prefix.
    """
    if scheduler:
        return server.flows.own_profile.get(start, stop)
    request = worker_rpc.WorkerProfile(start=start, stop=stop, key=key, server=server_threads)
    replies = await _ask_each(server, workers, request)
    return merged_profile(list(replies.values())) if merge_workers else replies


async def _ask_each(
    server: FlowServer, workers: Iterable[str] | None, request: Message
) -> dict[str, Any]:
    """Replies of the workers that gave one."""
    present = server.state.workers
    chosen = list(present) if workers is None else [w for w in workers if w in present]
    replies = await asyncio.gather(
        *(server.rpc_call(address, request) for address in chosen), return_exceptions=True
    )
    out = {}
    for address, reply in zip(chosen, replies):
        if isinstance(reply, BaseException) and not isinstance(reply, OSError | RemoteError):
            raise reply
        if not isinstance(reply, BaseException):
            out[address] = reply
    return out


def merged_profile(profiles: Sequence[dict[str, Any]], depth: int = 0) -> dict[str, Any]:
    """One tree of frames that counts what is in all of them."""
    if not profiles:
        identifier, description = EMPTY_PROFILE_ROOT
        return {
            "count": 0,
            "children": {},
            "identifier": identifier,
            "description": dict(description),
        }
    children: dict[Any, list[dict[str, Any]]] = {}
    if depth < PROFILE_DEPTH_MAX:
        for each in profiles:
            for name, child in each["children"].items():
                children.setdefault(name, []).append(child)
    return {
        "description": profiles[0]["description"],
        "children": {name: merged_profile(found, depth + 1) for name, found in children.items()},
        "count": sum(each["count"] for each in profiles),
        "identifier": profiles[0]["identifier"],
    }


async def profile_metadata(
    server: FlowServer,
    workers: Iterable[str] | None = None,
    start: float = 0,
    stop: float | None = None,
    bin_seconds: float = PROFILE_CYCLE_SECONDS,
) -> dict[str, Any]:
    """How many samples were taken when, in all and per prefix: ``{"counts": [(time, n)], "keys": {prefix: [[time, n]]}}``."""
    request = worker_rpc.ProfileMetadata(start=start, stop=stop)
    found = list((await _ask_each(server, workers, request)).values())
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


# ------------------------------------------------------------------ who is there


def watched_identity(identity: dict[str, Any]) -> dict[str, Any]:
    """The first word to who watches workers: the identity without what changes all the time."""
    workers = {a: _steady(facts) for a, facts in identity["workers"].items()}
    return {**identity, "workers": workers}


def _steady(facts: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in facts.items() if k not in ("metrics", "last_seen")}


async def watch_workers(server: FlowServer, peer: PeerPort, known: Iterable[str]) -> None:
    """Tell a peer of workers that come and go, until it is gone: batches of ["add", ...] and ["remove", address].

    Args:
        known: addresses that it was told of before.
    """
    state = server.state
    seen = {a: state.workers[a] for a in known if a in state.workers}
    removed = [a for a in known if a not in seen]

    def count() -> int:
        return state.worker_added_count + state.worker_removed_count

    while not peer.closed:
        messages: list[Any] = [["remove", address] for address in removed]
        messages += [["remove", a] for a, ws in seen.items() if state.workers.get(a) is not ws]
        for address, ws in state.workers.items():
            if seen.get(address) is not ws:
                facts = _steady(queries.worker_identity(ws))
                messages.append(["add", {"workers": {address: facts}}])
        seen = dict(state.workers)
        removed = []
        if messages:
            peer.reply(messages)
        at = count()
        await server.wait_for(lambda at=at: peer.closed or count() != at)  # type: ignore[misc]
