"""Replicate, rebalance and delete the copies of task results on workers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.policy.rebalancing import Move, RebalancePlan
from paceline.scheduler.core.state.addresses import coerce_address
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.workers.loads import accepts_data
from paceline.scheduler.core.stimuli import ReplicasAdded, ReplicasLost
from paceline.scheduler.server.server_api import Handler, RemoteError, ServerApi

from .handler_parts import calls, checked_reply

logger = logging.getLogger("distributed.scheduler")

#: Rounds without a new copy after which a replication fails.
FRUITLESS_ROUNDS_MAX = 5
#: The reply of a successful rebalance.
OK = {"status": "OK"}


def _log_failure(address: str, error: Exception) -> None:
    logger.warning(
        "Communication with worker %s failed during replication: %s: %s",
        address,
        type(error).__name__,
        error,
    )


async def gather_on_worker(
    server: ServerApi, address: str, who_has: Mapping[Key, Sequence[str]]
) -> set[Key]:
    """Make a worker fetch keys from others. Return those that it could not fetch."""
    request = m.WorkerGather(who_has={k: list(v) for k, v in who_has.items()})
    try:
        reply = await server.rpc_call(address, request)
        checked_reply(address, request, reply, status=str)
    except (OSError, RemoteError) as error:  # also while a worker shuts down
        _log_failure(address, error)
        return set(who_has)
    if address not in server.state.workers:
        logger.warning("Worker %s lost during replication", address)
        return set(who_has)
    failed: set[Key] = set()
    if reply["status"] != "OK":
        failed = set(reply.get("keys", who_has))
        logger.warning("Worker %s failed to acquire keys: %s", address, sorted(map(str, failed)))
    copied = [key for key in who_has if key not in failed]
    if copied:
        server.send_stimulus(ReplicasAdded(address, copied))
    return failed


async def delete_worker_data(
    server: ServerApi, address: str, keys: Sequence[Key], stimulus_id: str
) -> None:
    """Make a worker delete its copies of `keys`. Lost results are recomputed if they are needed."""
    request = m.FreeKeysRpc(keys=list(keys), stimulus_id=f"delete-data-{time.time()}")
    try:
        await server.rpc_call(address, request)
    except (OSError, RemoteError) as error:
        _log_failure(address, error)
        return
    server.send_stimulus(ReplicasLost(address, list(keys)), stimulus_id=stimulus_id)
    server.log_event([address], {"action": "remove-worker-data", "keys": list(keys)})


async def _delete_all(
    server: ServerApi, keys: Mapping[str, Sequence[Key]], stimulus_id: str
) -> None:
    """Delete worker address -> keys."""
    await asyncio.gather(*(delete_worker_data(server, a, k, stimulus_id) for a, k in keys.items()))


async def _copy_all(
    server: ServerApi, plan: Mapping[str, Mapping[Key, list[str]]], action: str
) -> dict[str, set[Key]]:
    """Copy recipient -> key -> holders, and log events. Return recipient -> keys that failed."""
    failed = await asyncio.gather(*(gather_on_worker(server, a, w) for a, w in plan.items()))
    for address, who_has in plan.items():
        server.log_event([address], {"action": action, "who_has": who_has})
    return dict(zip(plan, failed))


async def replicate(
    server: ServerApi,
    keys: Sequence[Key],
    n: int | None = None,
    workers: Iterable[str] | None = None,
    branching_factor: int = 2,
    delete: bool = True,
    stimulus_id: str | None = None,
) -> dict[str, Any] | None:
    """Copy, or delete surplus copies, until ``n`` workers hold each key.

    See ``messages.Replicate`` for the arguments.

    Returns:
        None, or ``{"status": "partial-fail", "keys": [...]}`` with the keys that were not copied.

    Raises:
        KeyError: a key or worker is unknown.
        ValueError: ``n`` is 0, or no worker runs.
    """
    if branching_factor <= 0:
        raise ValueError("branching_factor must be positive")
    stimulus_id = stimulus_id or f"replicate-{time.time()}"
    async with server.request_state.replicas.exclusive():
        targets = _targets(server, workers)
        wanted = len(targets) if n is None else min(n, len(targets))
        if wanted == 0:
            raise ValueError("Can not use replicate to delete data")
        tasks = [server.state.tasks[key] for key in dict.fromkeys(keys)]
        missing = [ts.key for ts in tasks if not ts.who_has]
        if missing:
            return {"status": "partial-fail", "keys": missing}
        replication = _Replication(server, tasks, targets, wanted, branching_factor)
        if delete:
            await _delete_all(server, replication.surplus(), stimulus_id)
        failed = await replication.copy()
    event = {
        "action": "replicate",
        "workers": [ws.address for ws in targets],
        "key-count": len(keys),
        "branching-factor": branching_factor,
    }
    server.log_event(["all"], event)
    return {"status": "partial-fail", "keys": failed} if failed else None


def _targets(server: ServerApi, workers: Iterable[str] | None) -> dict[WorkerState, None]:
    state = server.state
    if workers is None:
        return dict.fromkeys(filter(accepts_data, state.workers.values()))
    named = [state.workers[address] for address in queries.workers_list(state, workers)]
    return {ws: None for ws in named if ws.status == "running"}


@dataclass
class _Replication:
    """Bring the number of copies of `tasks` on `targets` to `wanted`."""

    server: ServerApi
    tasks: Sequence[TaskState]
    targets: Mapping[WorkerState, None]
    wanted: int
    branching_factor: int

    def surplus(self) -> dict[str, list[Key]]:
        """Return worker address -> keys to delete."""
        surplus: dict[str, list[Key]] = {}
        for ts in self.tasks:
            holders = [ws for ws in ts.who_has if ws in self.targets]
            count = max(0, len(holders) - self.wanted)
            for ws in self.server.request_state.random.sample(holders, count):
                surplus.setdefault(ws.address, []).append(ts.key)
        return surplus

    async def copy(self) -> list[Key]:
        """Copy in rounds. Return the keys that could not be copied."""
        fruitless = 0
        while True:
            plan, unfinished = self._plan()
            if not plan or fruitless >= FRUITLESS_ROUNDS_MAX:
                return unfinished
            before = sum(len(ts.who_has) for ts in self.tasks)
            await _copy_all(self.server, plan, "replicate-add")
            made = sum(len(ts.who_has) for ts in self.tasks) > before
            fruitless = 0 if made else fruitless + 1

    def _plan(self) -> tuple[dict[str, dict[Key, list[str]]], list[Key]]:
        """Return recipient -> key -> holders, and the keys that have too few copies."""
        plan: dict[str, dict[Key, list[str]]] = {}
        unfinished = []
        workers = self.server.state.workers
        present = [ws for ws in self.targets if workers.get(ws.address) is ws]
        for ts in self.tasks:
            holders = list(ts.who_has)
            in_targets = sum(ws in self.targets for ws in holders)
            n_missing = min(self.wanted, len(present)) - in_targets
            if n_missing <= 0 or ts.state == "forgotten":
                continue
            unfinished.append(ts.key)
            without = [ws for ws in present if ws not in ts.who_has]
            count = min(n_missing, self.branching_factor * len(holders), len(without))
            for ws in self.server.request_state.random.sample(without, count):
                plan.setdefault(ws.address, {})[ts.key] = [h.address for h in holders]
        return plan, unfinished


async def rebalance(
    server: ServerApi,
    keys: Iterable[Key] | None = None,
    workers: Iterable[str] | None = None,
    stimulus_id: str | None = None,
) -> dict[str, Any]:
    """Move replicas from workers that use much memory to workers that use little.

    See ``messages.Rebalance`` for the arguments.

    Returns:
        ``{"status": "OK"}``, or ``{"status": "partial-fail", "keys": [...]}`` with those of
        ``keys`` that are not in memory or could not be moved.

    Raises:
        KeyError: a worker is unknown.
    """
    state = server.state
    if workers is None:
        chosen = list(state.workers.values())
    else:
        chosen = [state.workers[coerce_address(state, worker)] for worker in workers]
    requested = None if keys is None else dict.fromkeys(keys)
    if not chosen or (requested is not None and not requested):
        return OK
    absent = [
        key for key in requested or () if key not in state.tasks or not state.tasks[key].who_has
    ]
    if absent:
        return {"status": "partial-fail", "keys": absent}
    async with server.request_state.replicas.exclusive():
        plan = RebalancePlan(state, chosen, requested)
        if not plan.moves:
            _log_rebalance(server, plan.n_senders, plan.n_recipients, 0)
            return OK
        failed = await _move_replicas(server, plan.moves, stimulus_id or f"rebalance-{time.time()}")
    return {"status": "partial-fail", "keys": failed} if failed and requested is not None else OK


async def _move_replicas(server: ServerApi, moves: list[Move], stimulus_id: str) -> list[Key]:
    """Copy, then delete the originals. Return the keys that could not be copied."""
    incoming: dict[str, dict[Key, list[str]]] = {}
    for sender, recipient, ts in moves:
        incoming.setdefault(recipient.address, {}).setdefault(ts.key, []).append(sender.address)
    failed = await _copy_all(server, incoming, "rebalance")
    outgoing: dict[str, list[Key]] = {}
    for sender, recipient, ts in moves:
        if ts.key not in failed[recipient.address]:
            outgoing.setdefault(sender.address, []).append(ts.key)
    await _delete_all(server, outgoing, stimulus_id)
    senders = {address: len(keys) for address, keys in outgoing.items()}
    recipients = {address: len(who_has) for address, who_has in incoming.items()}
    _log_rebalance(server, senders, recipients, len(moves))
    return list(dict.fromkeys(key for keys in failed.values() for key in keys))


def _log_rebalance(server: ServerApi, senders: Any, recipients: Any, n_moves: int) -> None:
    event = {
        "action": "rebalance",
        "senders": senders,
        "recipients": recipients,
        "moved_keys": n_moves,
    }
    server.log_event(["all"], event)


HANDLERS: dict[type, Handler] = {
    m.Replicate: calls(replicate, shield=True),
    m.Rebalance: calls(rebalance, shield=True),
}
