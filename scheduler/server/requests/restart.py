"""Restart: release all tasks, and let nannies restart their workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.state.model import WorkerState
from paceline.scheduler.core.stimuli import ReleaseAll, WorkerRemoved
from paceline.scheduler.server.server_api import Handler, RemoteError, ServerApi

from .broadcast import call_each
from .handler_parts import calls
from .retire import retire_workers

logger = logging.getLogger("distributed.scheduler")

#: Kind of restarts, for the recorder.
KIND = "restart"
#: Default time limit of a restart, seconds.
RESTART_TIMEOUT_SECONDS = 30.0


async def restart(server: ServerApi, *, stimulus_id: str | None = None, **options: Any) -> None:
    """Release all tasks, then restart all workers. For `options` see ``restart_workers``."""
    stimulus_id = stimulus_id or f"restart-{time.time()}"
    logger.info("Restarting workers and releasing all keys (stimulus_id=%r)", stimulus_id)
    for stream in list(server.driver.client_streams.values()):
        stream.drop_graphs()
    server.send_stimulus(ReleaseAll(), stimulus_id=stimulus_id)
    await restart_workers(server, stimulus_id=stimulus_id, **options)


async def restart_workers(
    server: ServerApi,
    workers: Iterable[str] | None = None,
    *,
    client: str | None = None,
    timeout: float | None = RESTART_TIMEOUT_SECONDS,
    wait_for_workers: bool = True,
    on_error: str = "raise",
    stimulus_id: str | None = None,
) -> dict[str, str]:
    """Let nannies restart workers. Workers without a nanny are closed.

    See ``messages.RestartWorkers`` for the arguments.

    Returns:
        worker address -> "OK", "removed" (it has no nanny) or "timed out".
    """
    timeout = math.inf if timeout is None else timeout
    deadline = time.monotonic() + timeout
    stimulus_id = stimulus_id or f"restart-workers-{time.time()}"
    state = server.state
    if workers is None:
        old = dict(state.workers)
    else:
        old = {a: state.workers[a] for a in dict.fromkeys(workers) if a in state.workers}
    logger.info("Restarting %d workers: %s (stimulus_id=%r)", len(old), list(old), stimulus_id)
    with _recorded(server, stimulus_id) as n_before:
        out = await _stop(server, old, timeout, on_error, stimulus_id)
        pending = set(server.plugins.pending_hooks["remove_worker"])
        if pending:  # the restart includes the plugins' hooks for removed workers, as in stock
            await asyncio.wait(pending)
        event: dict[str, Any] = {"action": "restart-workers", "workers": list(old)}
        if client:
            server.log_event([client], event)
        server.log_event(["all"], {**event, "client": client})
        if not wait_for_workers:
            logger.info("Workers restarted, not waiting for new ones (stimulus_id=%r)", stimulus_id)
            return out

        def back() -> bool:
            gone = all(state.workers.get(a) is not ws for a, ws in old.items())
            return gone and len(state.workers) >= n_before

        if await server.wait_for(back, max(0.0, deadline - time.monotonic())):
            logger.info("Workers restart finished (stimulus_id=%r)", stimulus_id)
            return out
        n_alone = sum(result == "removed" for result in out.values())
        message = _not_back(len(old), n_before - len(state.workers), timeout, n_alone)
        if on_error == "raise":
            raise TimeoutError(message)
        logger.error("%s (stimulus_id=%r)", message, stimulus_id)
        present = {ws.nanny for ws in state.workers.values() if ws.nanny}
        missing = [a for a, ws in old.items() if ws.nanny and ws.nanny not in present]
        return {**out, **dict.fromkeys(missing, "timed out")}


@contextlib.contextmanager
def _recorded(server: ServerApi, stimulus_id: str) -> Iterator[int]:
    """Record a restart until it ends. Yield the number of workers before it.

    The number is recorded because the workers may be gone when another process repeats the request.
    """
    n_workers = server.request_state.restarts.pop(stimulus_id, len(server.state.workers))
    server.recorder.continued(KIND, stimulus_id, b"%d" % n_workers)
    try:
        yield n_workers
    finally:
        server.recorder.continued(KIND, stimulus_id, None)


def restart_again(server: ServerApi, stimulus_id: str, n_workers: bytes) -> None:
    """Store how many workers there were before a restart that another process has begun.

    Its request is repeated, with the same `stimulus_id`.
    """
    server.recorder.continued(KIND, stimulus_id, n_workers)
    server.request_state.restarts[stimulus_id] = int(n_workers)


async def restart_stuck_worker(server: ServerApi, address: str) -> None:
    """Move the data of a worker, wait for the tasks that it runs, and let its nanny restart it.

    The worker is not restarted if its data cannot be moved.
    """
    stimulus_id = f"restart-stuck-worker-{time.time()}"
    ws = server.state.workers.get(address)
    logger.warning("Restarting worker %s, which runs a task that was given up", address)
    retired = await retire_workers(server, [address], remove=False, stimulus_id=stimulus_id)
    if retired and server.state.workers.get(address) is ws:
        await restart_workers(
            server,
            [address],
            wait_for_workers=False,
            on_error="return",
            stimulus_id=stimulus_id,
        )


async def _stop(
    server: ServerApi,
    workers: dict[str, WorkerState],
    timeout: float,
    on_error: str,
    stimulus_id: str,
) -> dict[str, str]:
    """Remove workers without a nanny, and let nannies kill theirs.

    Workers that do not shut down in time, or whose nanny reports an error, are removed.

    Returns:
        worker address -> "OK", "removed" or "timed out".
    """
    nannies = {a: ws.nanny for a, ws in workers.items() if ws.nanny}
    alone = [a for a in workers if a not in nannies]
    if alone:
        logger.warning(
            "Workers %s do not use a nanny and will be terminated without restarting them", alone
        )
        for address in alone:
            server.send_stimulus(WorkerRemoved(address), stimulus_id=stimulus_id)
    request = m.NannyKill(reason=stimulus_id)
    outcomes = await call_each(server, nannies, request, timeout)
    errors = [o for o in outcomes.values() if isinstance(o, RemoteError)]
    out = dict.fromkeys(alone, "removed")
    out |= {a: "timed out" if isinstance(o, Exception) else "OK" for a, o in outcomes.items()}
    bad = [address for address, result in out.items() if result == "timed out"]
    if bad:
        logger.error("Workers %s did not shut down within %ss; force closing", bad, timeout)
        for error in errors:
            logger.error("%s", error)
        for address in bad:
            # another worker may have the address now
            if server.state.workers.get(address) is workers[address]:
                server.send_stimulus(WorkerRemoved(address), stimulus_id=stimulus_id)
        if on_error == "raise":
            if errors:
                raise errors[0]
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


HANDLERS: dict[type, Handler] = {
    m.RestartRpc: calls(restart, shield=True),
    m.RestartWorkers: calls(restart_workers, shield=True),
}
