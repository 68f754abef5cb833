"""Retire workers: move their data to other workers, then remove them."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Collection, Coroutine, Iterable
from itertools import islice
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.policy import scaling
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.workers.loads import accepts_data
from paceline.scheduler.core.stimuli import (
    CloseWorker,
    MoveReplicas,
    SetWorkerStatus,
    WorkerRemoved,
)
from paceline.scheduler.core.turn import KEYS_IN_LOG_LINE
from paceline.scheduler.server.peers.peer import Peer
from paceline.scheduler.server.server_api import Handler, ServerApi
from paceline.workers_compat.security.unpickling import deserialize_or_raise, unpickle

from .handler_parts import arguments, shielded
from .replicate import gather_on_worker
from .state import RetiringWorker

logger = logging.getLogger("distributed.scheduler")
#: Stock logs here which data keeps a retiring worker.
manager_logger = logging.getLogger("distributed.active_memory_manager")

#: Workers first fetch data in the background. If none arrives for this time, they receive requests
#: to fetch it and to report errors, seconds.
PATIENCE_SECONDS = 30.0
#: Such requests without any data after which a worker is not retired.
FRUITLESS_ROUNDS_MAX = 10
#: Pause after such a request, seconds.
FRUITLESS_PAUSE_SECONDS = 0.1
#: Interval in which the arrival of data is checked, seconds: shorter for fewer keys.
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
    """Retire workers. A worker whose data cannot be moved stays.

    See ``messages.RetireWorkers`` for the arguments. Without `workers` and `names`,
    ``workers_to_close(**options)`` are retired.

    Returns:
        address -> identity of the retired workers.

    Raises:
        TypeError: two of ``workers``, ``names`` and ``options`` were given.
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
        retirements = [_Retirement(server, ws, stimulus_id) for ws in chosen]
        for retirement in retirements:  # all before any data is moved to another one of them
            retirement.begin()
        reasons = await asyncio.gather(*(each.run(close_workers, remove) for each in retirements))
    retired = [ws for ws, reason in zip(chosen, reasons) if not reason]
    kept = {ws: reason for ws, reason in zip(chosen, reasons) if reason}
    _log_events(server, retired, kept, stimulus_id)
    return {ws.address: queries.worker_identity(ws) for ws in retired}


def give_up_lost_retirements(server: ServerApi) -> None:
    """Return the workers to service whose retirement ended with another process.

    A client or worker that still waits for a retirement has its request repeated by this process.
    """
    for ws in list(server.state.workers.values()):
        if ws.status_before and ws not in server.request_state.retiring:
            logger.warning(
                "The retirement of worker %s was lost with a process of the scheduler; "
                "its status is %s again",
                ws.address,
                ws.status_before,
            )
            server.send_stimulus(SetWorkerStatus(ws.address, ws.status_before))


def workers_to_close(server: ServerApi, **options: Any) -> list[Any]:
    """Return ``scaling.workers_to_close(**options)`` of the workers that plugins do not keep."""
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
    # stock's SpecCluster.scale passes names here (distributed/deploy/spec.py)
    found = map(state.resolve_worker, dict.fromkeys(workers))
    return list(dict.fromkeys(ws for ws in found if ws is not None))


class _Retirement:
    """The retirement of worker `ws`."""

    def __init__(self, server: ServerApi, ws: WorkerState, stimulus_id: str) -> None:
        self._server = server
        self._state = server.state
        self._ws = ws
        self._stimulus_id = stimulus_id

    def _send(self, message: Any) -> None:
        self._server.send_stimulus(message, stimulus_id=self._stimulus_id)

    def begin(self) -> None:
        """Set the status of the worker to closing_gracefully."""
        ws = self._ws
        retiring = self._server.request_state.retiring
        worker = retiring.setdefault(ws, RetiringWorker(ws.status_before or ws.status))
        worker.n_requests += 1
        self._send(SetWorkerStatus(ws.address, "closing_gracefully", worker.next_status))

    def _end(self, retired: bool) -> None:
        """Revert the status of the worker with the last request, unless one has `retired` it."""
        ws = self._ws
        retiring = self._server.request_state.retiring
        worker = retiring[ws]
        worker.n_requests -= 1
        if retired:
            worker.next_status = "closing_gracefully"
        if not worker.n_requests:
            del retiring[ws]
            if self._is_present() and (ws.status != worker.next_status or ws.status_before):
                self._send(SetWorkerStatus(ws.address, worker.next_status))

    async def run(self, close: bool, remove: bool) -> str:
        """Move its data, wait for its running tasks, and remove it. Return why it stays, or "".

        If all workers are removed, running tasks are not waited for: no worker could take results.
        """
        ws = self._ws
        retired = False
        try:
            reason = await self._move_data()
            if not reason and ws.processing and not (remove and self._all_retire()):
                await self._wait_for_tasks()
                reason = await self._move_data()
            retired = not reason
        finally:
            self._end(retired)
        if reason:
            text = "Could not retire worker %r: %s (stimulus_id=%r)"
            logger.warning(text, ws.address, reason, self._stimulus_id)
            return reason
        if self._is_present():  # if it left, another worker may have its address
            hooks = self._server.plugins.hooks_started_by(
                lambda: self._finish(close, remove), "remove_worker"
            )
            if hooks:
                await asyncio.wait(hooks)
        logger.info("Retired worker %r (stimulus_id=%r)", ws.address, self._stimulus_id)
        return ""

    def _finish(self, close: bool, remove: bool) -> None:
        """Remove or close the worker, whose data is on others. If it stays, drop its copies."""
        ws = self._ws
        if remove:
            self._send(WorkerRemoved(ws.address, expected=True, close=close))
        elif close:
            self._send(CloseWorker(ws.address))
        else:  # no worker may fetch from it any more
            copied = [ts.key for ts in ws.has_what if self._is_safe(ts)]
            self._send(MoveReplicas(drop={ws.address: copied}))

    async def _wait_for_tasks(self) -> None:
        """Wait for running tasks, at most ``paceline.scheduler.retire-running`` (30 s).

        Tasks that had not started were recalled when the status of the worker changed.
        """
        ws = self._ws
        logger.info("Retiring worker %s; %d tasks run there.", ws.address, len(ws.processing))
        if not await self._server.wait_for(
            lambda: not ws.processing or not self._is_present(),
            self._state.config.retire_running_seconds,
        ):
            logger.warning(
                "Worker %s is retired while it still runs %d tasks, which are rescheduled: %s",
                ws.address,
                len(ws.processing),
                [ts.key for ts in islice(ws.processing, KEYS_IN_LOG_LINE)],
            )

    async def _move_data(self) -> str:
        """Copy data that no other running worker holds. Return why that failed, or ""."""
        server, ws = self._server, self._ws
        fruitless = 0
        patient = True
        while self._is_present():
            if ws.actors:
                keys = [ts.key for ts in ws.actors]
                text = "Tried retiring worker %s, but it holds actor(s) %s, which can't be moved"
                manager_logger.warning(text, ws.address, keys)
                return f"it holds actor(s) {keys}, which can't be moved"
            unique = self._unique()
            if not unique:
                return ""
            plan = _recipients(server, unique)
            if not plan:
                return "unique data could not be moved to any other worker"
            logger.info(
                "Retiring worker %s; %d keys are being moved away.", ws.address, len(unique)
            )
            if patient:
                patient = await self._move_in_background(plan)
                continue
            failures = await asyncio.gather(
                *(gather_on_worker(server, a, who_has) for a, who_has in plan.items())
            )
            if sum(map(len, failures)) < len(unique):
                fruitless = 0
                continue
            fruitless += 1
            if fruitless >= FRUITLESS_ROUNDS_MAX:
                return f"{len(unique)} keys could not be copied to other workers"
            await asyncio.sleep(FRUITLESS_PAUSE_SECONDS)
        return ""

    async def _move_in_background(self, plan: dict[str, dict[Key, list[str]]]) -> bool:
        """Let recipients fetch copies, and wait until they have them or one of them is gone.

        Results that the worker stores meanwhile are not waited for. Return False if no copy arrived
        for ``PATIENCE_SECONDS``.
        """
        self._server.send_stimulus(MoveReplicas(acquire={a: list(ks) for a, ks in plan.items()}))
        moving = {key for keys in plan.values() for key in keys}
        left = len(moving)
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            pause = min(POLL_MAX_SECONDS, len(self._ws.has_what) * POLL_SECONDS_PER_KEY)
            await asyncio.sleep(max(POLL_MIN_SECONDS, pause))
            before, left = left, sum(ts.key in moving for ts in self._unique())
            if not left or not self._is_present() or self._ws.actors:
                return True
            if left < before:
                until = time.monotonic() + PATIENCE_SECONDS
            workers = self._state.workers
            if not all(a in workers and accepts_data(workers[a]) for a in plan):
                return True
        return False

    def _unique(self) -> list[TaskState]:
        """Return the tasks of the worker whose data no other running worker holds."""
        return [ts for ts in self._ws.has_what if not ts.actor and not self._is_safe(ts)]

    def _all_retire(self) -> bool:
        """Return whether all workers are being retired."""
        return set(self._state.workers.values()) <= self._server.request_state.retiring.keys()

    def _is_present(self) -> bool:
        return self._state.workers.get(self._ws.address) is self._ws

    def _is_safe(self, ts: TaskState) -> bool:
        """Return whether another running worker holds the data of `ts`."""
        return any(ws is not self._ws and accepts_data(ws) for ws in ts.who_has)


def _recipients(server: ServerApi, tasks: Collection[TaskState]) -> dict[str, dict[Key, list[str]]]:
    """Return recipient -> key -> holders; each key goes to the worker that then holds the least."""
    workers = filter(accepts_data, server.state.workers.values())
    heap = [(ws.nbytes, ws.index, ws.address) for ws in workers]
    heapq.heapify(heap)
    plan: dict[str, dict[Key, list[str]]] = {}
    if not heap:
        return plan
    for ts in tasks:
        held, index, address = heap[0]
        plan.setdefault(address, {})[ts.key] = [ws.address for ws in ts.who_has]
        heapq.heapreplace(heap, (held + max(0, ts.nbytes), index, address))
    return plan


def _log_events(
    server: ServerApi,
    retired: list[WorkerState],
    kept: dict[WorkerState, str],
    stimulus_id: str,
) -> None:
    """Log the retired workers, and for each that stays the reason."""
    addresses = [ws.address for ws in retired]
    event = {
        "action": "retire-workers",
        "retired": addresses,
        "could-not-retire": [ws.address for ws in kept],
        "stimulus_id": stimulus_id,
    }
    server.log_event(["all"], event)
    if addresses:
        server.log_event(addresses, {"action": "retired", "stimulus_id": stimulus_id})
    for ws, reason in kept.items():
        why = {"action": "could-not-retire", "stimulus_id": stimulus_id, "reason": reason}
        server.log_event([ws.address], why)


def handle_retire_workers(
    server: ServerApi, request: m.RetireWorkers, peer: Peer
) -> Coroutine[Any, Any, dict[str, Any]]:
    """See ``retire_workers``."""
    options = arguments(request)
    options |= _with_unpickled_key(options.pop("extra_arguments"))
    return shielded(server, retire_workers(server, **options), "retire_workers")


def handle_workers_to_close(server: ServerApi, request: m.WorkersToClose, peer: Peer) -> list[Any]:
    """See ``workers_to_close``."""
    return workers_to_close(server, **_with_unpickled_key(arguments(request)))


def _with_unpickled_key(options: dict[str, Any]) -> dict[str, Any]:
    """Return ``options`` with the function ``key`` deserialized."""
    key, what = options.get("key"), "the function `key` of workers_to_close"
    key = unpickle(key, what) if isinstance(key, bytes) else deserialize_or_raise(key, what)
    return options if key is None else {**options, "key": key}


HANDLERS: dict[type, Handler] = {
    m.RetireWorkers: handle_retire_workers,
    m.WorkersToClose: handle_workers_to_close,
}
