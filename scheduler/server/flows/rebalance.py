"""Rebalance: data moves between workers until each uses about as much memory.

Must not know: which data moves where (``core/rebalancing.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from paceline.protocol.keys import Key
from paceline.scheduler.core import queries
from paceline.scheduler.core.rebalancing import Move, RebalancePlan
from paceline.scheduler.core.stimuli import LogEventCommand

from .ports import FlowServer
from .replicate import delete_worker_data, gather_on_worker

OK = {"status": "OK"}


async def rebalance(
    server: FlowServer,
    keys: Iterable[Key] | None = None,
    workers: Iterable[str] | None = None,
    stimulus_id: str | None = None,
) -> dict[str, Any]:
    """Even out memory. ``{"status": "OK"}``, or ``{"status": "partial-fail", "keys": [...]}`` with keys that are
    not there or could not be moved; of those that nobody asked for nobody hears.

    Args:
        keys: that alone may move.
        workers: addresses or names of workers that may give or take; None is all.

    Raises:
        KeyError: a worker is unknown.
    """
    state = server.state
    if workers is None:
        chosen = list(state.workers.values())
    else:
        chosen = [state.workers[queries.coerce_address(state, worker)] for worker in workers]
    asked = None if keys is None else dict.fromkeys(keys)
    if not chosen or (asked is not None and not asked):
        return OK
    absent = [key for key in asked or () if key not in state.tasks or not state.tasks[key].who_has]
    if absent:
        return {"status": "partial-fail", "keys": absent}
    async with server.flows.replicas.alone():
        plan = RebalancePlan(state, chosen, asked)
        if not plan.moves:
            _log(server, plan.n_senders, plan.n_recipients, 0)
            return OK
        failed = await _move(server, plan.moves, stimulus_id or f"rebalance-{time.time()}")
    return {"status": "partial-fail", "keys": failed} if failed and asked is not None else OK


async def _move(server: FlowServer, moves: list[Move], stimulus_id: str) -> list[Key]:
    """Copy, then delete what was copied. Returns keys that could not be copied."""
    incoming: dict[str, dict[Key, list[str]]] = {}
    for sender, recipient, ts in moves:
        incoming.setdefault(recipient.address, {}).setdefault(ts.key, []).append(sender.address)
    outcomes = await asyncio.gather(*(gather_on_worker(server, a, w) for a, w in incoming.items()))
    failed = dict(zip(incoming, outcomes))
    outgoing: dict[str, list[Key]] = {}
    for sender, recipient, ts in moves:
        if ts.key not in failed[recipient.address]:
            outgoing.setdefault(sender.address, []).append(ts.key)
    await asyncio.gather(
        *(delete_worker_data(server, a, keys, stimulus_id) for a, keys in outgoing.items())
    )
    for address, who_has in incoming.items():
        event = {"action": "rebalance", "who_has": who_has}
        server.tell(LogEventCommand([address], event))
    senders = {address: len(keys) for address, keys in outgoing.items()}
    recipients = {address: len(who_has) for address, who_has in incoming.items()}
    _log(server, senders, recipients, len(moves))
    return list(dict.fromkeys(key for keys in outcomes for key in keys))


def _log(server: FlowServer, senders: Any, recipients: Any, n_moves: int) -> None:
    event = {
        "action": "rebalance",
        "senders": senders,
        "recipients": recipients,
        "moved_keys": n_moves,
    }
    server.tell(LogEventCommand(["all"], event))
