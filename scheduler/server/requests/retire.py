"""Retirement: workers hand their data to others, and go."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

from paceline.protocol import messages as r
from paceline.protocol.keys import Key
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.policy import scaling
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.stimuli import (
    CloseWorker,
    LogEventCommand,
    MoveReplicas,
    SetWorkerStatus,
    WorkerRemoved,
)
from paceline.workers_compat.security.unpickling import unpickle

from .api import Handler, PeerApi, ServerApi, shielded
from .replicate import gather_on_worker

logger = logging.getLogger("distributed.scheduler")
#: Where stock says what keeps data on a worker that retires.
manager_logger = logging.getLogger("distributed.active_memory_manager")

#: Workers are asked to fetch data when they have time; where none arrives for so long, they are asked for an answer.
PATIENCE_SECONDS = 30.0
#: Rounds of asking for an answer in which nothing arrived; after so many a worker is not retired.
FRUITLESS_ROUNDS_MAX = 10
#: Pause after a round in which nothing arrived, seconds.
FRUITLESS_PAUSE_SECONDS = 0.1
#: A log line names at most this many keys.
KEYS_IN_LOG_LINE = 20
#: How often it is looked whether data has arrived, seconds: the more there is, the more seldom.
POLL_MIN_SECONDS, POLL_MAX_SECONDS, POLL_SECONDS_PER_KEY = 0.01, 0.5, 0.0025


async def retire_workers(
    server: ServerApi,
    workers: Iterable[str] | None = None,
    *,
    names: Iterable[Any] | None = None,
    close_workers: bool = False,
    remove: bool = True,
    stimulus_id: str | None = None,
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Retire workers. Returns address -> identity of those that went; one whose data has no place to go stays.

    Args:
        workers: addresses, or names. Without it and ``names``, ``workers_to_close(**options)`` chooses.
        names: their names, compared as text.
        close_workers: tell them to close.
        remove: forget them now, without waiting for their goodbye.

    Raises:
        TypeError: ``workers``, ``names`` and ``options`` exclude one another.
    """
    if names is not None and workers is not None:
        raise TypeError("names and workers are mutually exclusive")
    if (names is not None or workers is not None) and options:
        raise TypeError(
            "Parameters for workers_to_close() are mutually exclusive with "
            f"names and workers: {options}"
        )
    stimulus_id = stimulus_id or f"retire-workers-{time.time()}"
    async with server.request_state.replicas.shared("retire-workers"):
        chosen = _chosen(server, workers, names, stimulus_id, options)
        if not chosen:
            return {}
        before = {ws.address: ws.status for ws in chosen}
        for ws in chosen:  # at once: neither is to send its data to another
            server.send_stimulus(
                SetWorkerStatus(ws.address, "closing_gracefully"), stimulus_id=stimulus_id
            )
        reasons = await asyncio.gather(
            *(
                _retire(server, ws, before[ws.address], close_workers, remove, stimulus_id)
                for ws in chosen
            )
        )
    retired = [ws for ws, reason in zip(chosen, reasons) if not reason]
    kept = {ws: reason for ws, reason in zip(chosen, reasons) if reason}
    _log(server, retired, kept, stimulus_id)
    return {ws.address: queries.worker_identity(ws) for ws in retired}


def workers_to_close(server: ServerApi, **options: Any) -> list[Any]:
    """Workers that can go, as far as plugins let them: ``scaling.workers_to_close(**options)``."""
    state, plugins = server.state, server.plugins
    candidates = [ws for ws in state.workers.values() if not ws.long_running]
    views = [plugins.facade.workers[ws.address] for ws in candidates]
    kept = [state.workers[view.address] for view in plugins.valid_workers_downscaling(views)]
    return scaling.workers_to_close(state, candidates=kept, **options)


def _chosen(
    server: ServerApi,
    workers: Iterable[str] | None,
    names: Iterable[Any] | None,
    stimulus_id: str,
    options: dict[str, Any],
) -> list[WorkerState]:
    state = server.state
    if names is not None:
        named = {str(name) for name in names}
        logger.info("Retire worker names %s", sorted(named))
        return [ws for ws in state.workers.values() if str(ws.name) in named]
    if workers is None:
        workers = workers_to_close(server, **options)
        if options.get("attribute", "address") != "address":
            return [ws for ws in map(state.resolve_worker, workers) if ws is not None]
    else:
        workers = list(workers)
        logger.info("Retire worker addresses (stimulus_id=%r) %s", stimulus_id, workers)
    # stock's SpecCluster.scale gives the names of its workers here (distributed/deploy/spec.py, _correct_state_internal)
    found = map(state.resolve_worker, dict.fromkeys(workers))
    return list(dict.fromkeys(ws for ws in found if ws is not None))


async def _retire(
    server: ServerApi,
    ws: WorkerState,
    status_before: str,
    close: bool,
    remove: bool,
    stimulus_id: str,
) -> str:
    """Let a worker finish what it runs, move its data and let it go. Returns why it stays, or ""."""
    try:
        reason = await _move_data(server, ws)
        if not reason and ws.processing:
            await _let_finish(server, ws)
            reason = await _move_data(server, ws)
    except BaseException:
        server.send_stimulus(SetWorkerStatus(ws.address, status_before), stimulus_id=stimulus_id)
        raise
    if reason:
        server.send_stimulus(SetWorkerStatus(ws.address, status_before), stimulus_id=stimulus_id)
        logger.warning(
            "Could not retire worker %r: %s (stimulus_id=%r)", ws.address, reason, stimulus_id
        )
        return reason
    if remove:
        server.send_stimulus(
            WorkerRemoved(ws.address, expected=True, close=close), stimulus_id=stimulus_id
        )
    elif close and _present(server, ws):
        server.send_stimulus(CloseWorker(ws.address), stimulus_id=stimulus_id)
    elif _present(
        server, ws
    ):  # it stays, and shall hold nothing that somebody could still come for
        copied = [ts.key for ts in ws.has_what if _is_safe(server, ts)]
        server.send_stimulus(MoveReplicas(drop={ws.address: copied}), stimulus_id=stimulus_id)
    logger.info("Retired worker %r (stimulus_id=%r)", ws.address, stimulus_id)
    return ""


async def _let_finish(server: ServerApi, ws: WorkerState) -> None:
    """Wait for the tasks that the worker runs; what it had not begun it was asked for when its status changed.

    They may run so long as ``paceline.scheduler.retire-running`` says (30 s).
    """
    logger.info("Retiring worker %s; %d tasks run there.", ws.address, len(ws.processing))
    ended = await server.wait_for(
        lambda: not ws.processing or not _present(server, ws),
        server.state.config.retire_running_seconds,
    )
    if not ended:
        keys = [ts.key for ts in islice(ws.processing, KEYS_IN_LOG_LINE)]
        logger.warning(
            "Worker %s is retired while it still runs %d tasks, which begin anew elsewhere: %s",
            ws.address, len(ws.processing), keys,
        )  # fmt: skip


async def _move_data(server: ServerApi, ws: WorkerState) -> str:
    """Copy to others what nobody else has. Returns why that could not be done, or ""."""
    fruitless = 0
    patient = True
    while _present(server, ws):
        if ws.actors:
            keys = [ts.key for ts in ws.actors]
            manager_logger.warning(
                "Tried retiring worker %s, but it holds actor(s) %s, which can't be moved",
                ws.address,
                keys,
            )
            return f"it holds actor(s) {keys}, which can't be moved"
        unique = _unique(server, ws)
        if not unique:
            return ""
        plan = _recipients(server, unique)
        if not plan:
            return "unique data could not be moved to any other worker"
        logger.info("Retiring worker %s; %d keys are being moved away.", ws.address, len(unique))
        if patient:
            patient = await _ask_and_wait(server, ws, plan)
            continue
        failures = await asyncio.gather(*(gather_on_worker(server, a, w) for a, w in plan.items()))
        if sum(map(len, failures)) < len(unique):
            fruitless = 0
            continue
        fruitless += 1
        if fruitless >= FRUITLESS_ROUNDS_MAX:
            return f"{len(unique)} keys could not be copied to other workers"
        await asyncio.sleep(FRUITLESS_PAUSE_SECONDS)
    return ""


async def _ask_and_wait(
    server: ServerApi, ws: WorkerState, plan: dict[str, dict[Key, list[str]]]
) -> bool:
    """Ask recipients to fetch copies beside their work, and wait until they have, or one of them is there no more.

    Results that the worker finishes meanwhile are not waited for: nobody was asked for them yet.
    Returns False when nothing arrives any more: then something is wrong, and they have to say what.
    """
    server.send_stimulus(
        MoveReplicas(acquire={address: list(keys) for address, keys in plan.items()})
    )
    asked = {key for keys in plan.values() for key in keys}

    def outstanding() -> int:
        return sum(ts.key in asked for ts in _unique(server, ws))

    left = outstanding()
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        pause = min(POLL_MAX_SECONDS, len(ws.has_what) * POLL_SECONDS_PER_KEY)
        await asyncio.sleep(max(POLL_MIN_SECONDS, pause))
        before, left = left, outstanding()
        if not left or not _present(server, ws) or ws.actors:
            return True
        if left < before:
            until = time.monotonic() + PATIENCE_SECONDS
        if not all(_takes(server, address) for address in plan):
            return True
    return False


def _takes(server: ServerApi, address: str) -> bool:
    """Return whether a worker can receive data."""
    ws = server.state.workers.get(address)
    return ws is not None and ws in server.state.running


def _unique(server: ServerApi, ws: WorkerState) -> list[TaskState]:
    """Return the tasks on `ws` whose data no running worker holds."""
    return [ts for ts in ws.has_what if not ts.actor and not _is_safe(server, ts)]


def _present(server: ServerApi, ws: WorkerState) -> bool:
    return server.state.workers.get(ws.address) is ws


def _is_safe(server: ServerApi, ts: TaskState) -> bool:
    """Return whether a running worker holds the data of `ts`."""
    return any(ws in server.state.running for ws in ts.who_has)


def _recipients(server: ServerApi, tasks: Collection[TaskState]) -> dict[str, dict[Key, list[str]]]:
    """Recipient -> key -> holders: each goes to the running worker that will then hold the least."""
    heap = [(ws.nbytes, ws.index, ws.address) for ws in server.state.running]
    heapq.heapify(heap)
    plan: dict[str, dict[Key, list[str]]] = {}
    if not heap:
        return plan
    for ts in tasks:
        held, index, address = heap[0]
        plan.setdefault(address, {})[ts.key] = [ws.address for ws in ts.who_has]
        heapq.heapreplace(heap, (held + max(0, ts.nbytes), index, address))
    return plan


def _log(
    server: ServerApi,
    retired: list[WorkerState],
    kept: dict[WorkerState, str],
    stimulus_id: str,
) -> None:
    """Say who went, and of each that stays why."""
    went = [ws.address for ws in retired]
    event = {
        "action": "retire-workers",
        "retired": went,
        "could-not-retire": [ws.address for ws in kept],
        "stimulus_id": stimulus_id,
    }
    server.send_stimulus(LogEventCommand(["all"], event))
    if went:
        server.send_stimulus(
            LogEventCommand(went, {"action": "retired", "stimulus_id": stimulus_id})
        )
    for ws, reason in kept.items():
        why = {"action": "could-not-retire", "stimulus_id": stimulus_id, "reason": reason}
        server.send_stimulus(LogEventCommand([ws.address], why))


async def handle_retire_workers(
    server: ServerApi, request: r.RetireWorkers, peer: PeerApi
) -> dict[str, Any]:
    """See ``retire_workers``."""
    coroutine = retire_workers(
        server,
        request.workers,
        names=request.names,
        close_workers=request.close_workers,
        remove=request.remove,
        stimulus_id=request.stimulus_id,
        **_with_unpickled_key(request.extra_arguments),
    )
    return await shielded(server, coroutine, "retire_workers")


def handle_workers_to_close(
    server: ServerApi, request: r.WorkersToClose, peer: PeerApi
) -> list[Any]:
    """See ``workers_to_close``."""
    names = ("memory_ratio", "n", "key", "minimum", "target", "attribute")
    options = {name: getattr(request, name) for name in names}
    return workers_to_close(server, **_with_unpickled_key(options))


def _with_unpickled_key(options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` with the function ``key`` deserialized."""
    if isinstance(options.get("key"), bytes):
        key = unpickle(options["key"], "the function `key` of workers_to_close")
        return {**options, "key": key}
    return options


HANDLERS: dict[type, Handler] = {
    r.RetireWorkers: handle_retire_workers,
    r.WorkersToClose: handle_workers_to_close,
}
