"""Scatter and update_data: values that clients send to workers. They stay serialized."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.keys import Key, check_prefix
from paceline.scheduler.core.state.workers.loads import accepts_data
from paceline.scheduler.core.stimuli import DataPlaced
from paceline.scheduler.server.server_api import Handler, ServerApi
from paceline.workers_compat.config import config

from .handler_parts import calls, checked_reply, worker_address
from .replicate import replicate

logger = logging.getLogger("distributed.scheduler")

#: Keys that are reported to the core in one turn.
PLACED_PER_TURN_MAX = 2000
#: Default time limit to wait for a worker, seconds.
SCATTER_TIMEOUT_SECONDS = 2.0


async def scatter(
    server: ServerApi,
    data: Mapping[Key, Any],
    workers: Iterable[Any] | None,
    client: str,
    broadcast: bool | int = False,
    timeout: float | str | None = SCATTER_TIMEOUT_SECONDS,
) -> list[Key]:
    """Send values to workers in turn, and return their keys.

    See ``messages.Scatter`` for the arguments.

    Raises:
        IndexError, UnicodeDecodeError: a key is invalid (``check_prefix``).
        TimeoutError: none of the workers runs.
        KeyError: a worker is unknown.
        OSError: no worker could be reached.
    """
    for key in data:
        check_prefix(key)
    addresses = await _running_workers(server, workers, config.seconds(timeout))
    if not data:
        return []
    nbytes: dict[Key, int] = {}
    who_has: dict[Key, list[str]] = {}
    missing = data
    while missing:
        plan = _round_robin(server, addresses, missing)
        put = await asyncio.gather(
            *(_put(server, part, address, addresses) for address, part in plan.items())
        )
        for part, (address, sizes) in zip(plan.values(), put):
            nbytes.update(sizes)
            who_has.update((key, [address]) for key in part)
        # a worker may leave while others receive their parts
        present = server.state.workers
        missing = {key: data[key] for key, [a] in who_has.items() if a not in present}
        addresses = [address for address in addresses if address in present]
        if missing and not addresses:
            raise OSError("all workers that were to receive the data have left")
    await _place(server, who_has, nbytes, client)
    keys = list(data)
    if broadcast:
        n = len(addresses) if broadcast is True else broadcast
        await replicate(server, keys, n=n, workers=addresses)
    event = {"action": "scatter", "client": client, "count": len(data)}
    server.log_event([client, "all"], event)
    return keys


async def _put(
    server: ServerApi, part: Mapping[Key, Any], address: str, addresses: list[str]
) -> tuple[str, Mapping[Key, int]]:
    """Send values to `address` or the next reachable worker; return its address and their sizes."""
    begin = addresses.index(address)
    lost: OSError | None = None
    request = m.WorkerUpdateData(data=dict(part))
    for candidate in addresses[begin:] + addresses[:begin]:
        ws = server.state.workers.get(candidate)
        if lost is not None and (ws is None or ws.status != "running"):
            continue
        try:
            reply = await server.rpc_call(candidate, request)
            checked_reply(candidate, request, reply, nbytes=dict)
        except OSError as error:
            logger.warning("Scatter could not reach %s: %s", candidate, error)
            lost = error
        else:
            return candidate, reply["nbytes"]
    assert lost is not None
    raise lost


async def _running_workers(
    server: ServerApi, workers: Iterable[Any] | None, timeout: float | None
) -> list[str]:
    """Wait until one of `workers` runs. Return the sorted addresses of those that do."""
    state = server.state
    if isinstance(workers, str):
        workers = [workers]
    chosen = None
    if workers is not None:
        chosen = [state.workers[worker_address(server, w)].address for w in workers]

    def running() -> list[str]:
        if chosen is None:
            return [ws.address for ws in state.workers.values() if accepts_data(ws)]
        present = [state.workers[a] for a in chosen if a in state.workers]  # others left meanwhile
        return [ws.address for ws in present if ws.status == "running"]

    if not await server.wait_for(lambda: bool(running()), timeout):
        raise TimeoutError("No valid workers found")
    return sorted(running())


def _round_robin(
    server: ServerApi, addresses: list[str], data: Mapping[Key, Any]
) -> dict[str, dict[Key, Any]]:
    """Return address -> its part of `data`. Each scatter continues where the last one ended."""
    start = server.request_state.round_robin
    server.request_state.round_robin += len(data)
    plan: dict[str, dict[Key, Any]] = {}
    for i, (key, value) in enumerate(data.items(), start):
        plan.setdefault(addresses[i % len(addresses)], {})[key] = value
    return plan


async def update_data(
    server: ServerApi,
    who_has: Mapping[Key, Iterable[Any]],
    nbytes: Mapping[Key, int],
    client: str | None = None,
) -> None:
    """Report data that a client has sent to workers. Raise KeyError if a worker is unknown."""
    known = server.state.workers
    placed = {
        key: [known[worker_address(server, w)].address for w in workers]
        for key, workers in who_has.items()
    }
    await _place(server, placed, nbytes, client or "")


async def _place(
    server: ServerApi, who_has: Mapping[Key, list[str]], nbytes: Mapping[Key, int], client: str
) -> None:
    """Report placed data to the core. Other stimuli are handled between two parts."""
    left = iter(who_has.items())
    for start in range(0, len(who_has), PLACED_PER_TURN_MAX):
        if start:
            await asyncio.sleep(0)
        part = dict(islice(left, PLACED_PER_TURN_MAX))
        sizes = {key: nbytes[key] for key in part if key in nbytes}
        server.send_stimulus(DataPlaced(who_has=part, nbytes=sizes, client=client))


HANDLERS: dict[type, Handler] = {
    m.Scatter: calls(scatter, shield=True),
    m.UpdateDataRpc: calls(update_data),
}
