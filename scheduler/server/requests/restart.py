"""Restart: every task is forgotten, and workers are started anew by their nannies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

from paceline.protocol import messages as r
from paceline.protocol.messages import nanny_rpc
from paceline.scheduler.core.state.model import WorkerState
from paceline.scheduler.core.stimuli import LogEventCommand, ReleaseAll, WorkerRemoved

from .api import Handler, PeerApi, ServerApi, shielded

logger = logging.getLogger("distributed.scheduler")

#: How long a restart may take unless the client says otherwise, seconds.
RESTART_TIMEOUT_SECONDS = 30.0


async def restart(
    server: ServerApi,
    *,
    client: str | None = None,
    timeout: float = RESTART_TIMEOUT_SECONDS,
    wait_for_workers: bool = True,
    stimulus_id: str | None = None,
) -> None:
    """Forget every task, then ``restart_workers`` on all workers.

    Raises:
        TimeoutError: as ``restart_workers``.
    """
    stimulus_id = stimulus_id or f"restart-{time.time()}"
    logger.info("Restarting workers and releasing all keys (stimulus_id=%r)", stimulus_id)
    for stream in list(server.driver.client_streams.values()):
        stream.drop_graphs()
    server.send_stimulus(ReleaseAll(reason=stimulus_id), stimulus_id=stimulus_id)
    await restart_workers(
        server,
        client=client,
        timeout=timeout,
        wait_for_workers=wait_for_workers,
        stimulus_id=stimulus_id,
    )


async def restart_workers(
    server: ServerApi,
    workers: Iterable[str] | None = None,
    *,
    client: str | None = None,
    timeout: float = RESTART_TIMEOUT_SECONDS,
    wait_for_workers: bool = True,
    on_error: str = "raise",
    stimulus_id: str | None = None,
) -> dict[str, str]:
    """Have nannies restart workers; workers without a nanny are told to close.

    Args:
        workers: addresses; None is all.
        timeout: seconds for the workers to shut down, and to come back.
        wait_for_workers: wait until as many workers are there as before.
        on_error: "raise" or "return" where a nanny or worker takes too long.

    Returns:
        worker address -> "OK", "removed" (it has no nanny) or "timed out".

    Raises:
        TimeoutError: where ``on_error`` is "raise".
    """
    deadline = time.monotonic() + timeout
    stimulus_id = stimulus_id or f"restart-workers-{time.time()}"
    state = server.state
    n_before = len(state.workers)
    old = _chosen(server, workers, stimulus_id)
    addresses = list(old)
    nannies = {a: ws.nanny for a, ws in old.items() if ws.nanny}
    alone = [a for a in old if a not in nannies]
    if alone:
        logger.warning(
            "Workers %s do not use a nanny and will be terminated without restarting them", alone
        )
        for address in alone:
            server.send_stimulus(WorkerRemoved(address), stimulus_id=stimulus_id)
    out = dict.fromkeys(alone, "removed")
    out |= await _kill(server, nannies, timeout, on_error, stimulus_id)
    pending = set(server.plugins.pending_remove_worker_hooks)
    if pending:  # what plugins do about a worker that left belongs to the restart, as in stock
        await asyncio.wait(pending)
    event: dict[str, Any] = {"action": "restart-workers", "workers": addresses}
    if client:
        server.send_stimulus(LogEventCommand([client], event))
    server.send_stimulus(LogEventCommand(["all"], {**event, "client": client}))
    if not wait_for_workers:
        logger.info(
            "Workers restart finished (did not wait for new workers) (stimulus_id=%r)", stimulus_id
        )
        return out

    def back() -> bool:
        gone = all(state.workers.get(a) is not ws for a, ws in old.items())
        return gone and len(state.workers) >= n_before

    if await server.wait_for(back, max(0.0, deadline - time.monotonic())):
        logger.info("Workers restart finished (stimulus_id=%r)", stimulus_id)
        return out
    message = _not_back(len(addresses), n_before - len(state.workers), timeout, len(alone))
    if on_error == "raise":
        raise TimeoutError(message)
    logger.error("%s (stimulus_id=%r)", message, stimulus_id)
    present = {ws.nanny for ws in state.workers.values() if ws.nanny}
    out.update({a: "timed out" for a, nanny in nannies.items() if nanny not in present})
    return out


def _chosen(
    server: ServerApi, workers: Iterable[str] | None, stimulus_id: str
) -> dict[str, WorkerState]:
    state = server.state
    if workers is None:
        logger.info("Restarting all workers (stimulus_id=%r)", stimulus_id)
        return dict(state.workers)
    chosen = {a: state.workers[a] for a in dict.fromkeys(workers) if a in state.workers}
    logger.info(
        "Restarting %d workers: %s (stimulus_id=%r)", len(chosen), list(chosen), stimulus_id
    )
    return chosen


async def _kill(
    server: ServerApi,
    nannies: dict[str, str],
    timeout: float,
    on_error: str,
    stimulus_id: str,
) -> dict[str, str]:
    """Have nannies kill their workers; those that fail to are removed. Worker -> "OK" or "timed out"."""
    request = nanny_rpc.NannyKill(reason=stimulus_id)
    outcomes = await asyncio.gather(
        *(server.rpc_call(nanny, request, timeout) for nanny in nannies.values()),
        return_exceptions=True,
    )
    out = {}
    for address, outcome in zip(nannies, outcomes):
        if isinstance(outcome, OSError | TimeoutError):
            out[address] = "timed out"
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            out[address] = "OK"
    bad = [address for address, result in out.items() if result != "OK"]
    if bad:
        logger.error("Workers %s did not shut down within %ss; force closing", bad, timeout)
        for address in bad:
            server.send_stimulus(WorkerRemoved(address), stimulus_id=stimulus_id)
        if on_error == "raise":
            raise TimeoutError(
                f"{len(bad)}/{len(nannies)} nanny worker(s) did not "
                f"shut down within {timeout}s: {set(bad)}"
            )
    return out


def _not_back(n_restarted: int, n_missing: int, timeout: float, n_alone: int) -> str:
    message = (
        f"Waited for {n_restarted} worker(s) to reconnect after restarting but, "
        f"after {timeout}s, {n_missing} have not returned. "
        "Consider a longer timeout, or `wait_for_workers=False`."
    )
    if n_alone:
        message += (
            f" The {n_alone} worker(s) not using Nannies were just shut "
            "down instead of restarted (restart is only possible with Nannies). If "
            "your deployment system does not automatically re-launch terminated "
            "processes, then those workers will never come back, and `Client.restart` "
            "will always time out. Do not use `Client.restart` in that case."
        )
    return message


async def handle_restart(server: ServerApi, request: r.RestartRpc, peer: PeerApi) -> None:
    """See ``restart``."""
    coroutine = restart(
        server,
        client=request.client,
        timeout=request.timeout,
        wait_for_workers=request.wait_for_workers,
        stimulus_id=request.stimulus_id,
    )
    await shielded(server, coroutine, "restart")


async def handle_restart_workers(
    server: ServerApi, request: r.RestartWorkers, peer: PeerApi
) -> dict[str, str]:
    """See ``restart_workers``."""
    coroutine = restart_workers(
        server,
        request.workers,
        client=request.client,
        timeout=request.timeout,
        wait_for_workers=request.wait_for_workers,
        on_error=request.on_error,
        stimulus_id=request.stimulus_id,
    )
    return await shielded(server, coroutine, "restart_workers")


HANDLERS: dict[type, Handler] = {
    r.RestartRpc: handle_restart,
    r.RestartWorkers: handle_restart_workers,
}
