"""Requests about the whole cluster: target size, idleness, shutdown, changes of its workers."""

from __future__ import annotations

from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.state.model import WorkerState
from paceline.scheduler.server.peers.peer import Peer
from paceline.scheduler.server.server_api import NO_REPLY, Handler, NoReply, ServerApi
from paceline.workers_compat.config import config

#: Default of ``distributed.adaptive.target-duration``, seconds.
TARGET_DURATION_SECONDS = 5.0


def target_duration_seconds(wanted: Any = None) -> float:
    """Return the `wanted` duration of the present work, or the configured one."""
    if wanted is None:
        wanted = config.get("distributed.adaptive.target-duration")
    return config.seconds(wanted) or TARGET_DURATION_SECONDS


def handle_adaptive_target(server: ServerApi, request: m.AdaptiveTarget, peer: Peer) -> int:
    """Return the recommended number of workers.

    Plugins (dask-gateway) and ``/api/v1/adaptive_target`` (Kubernetes operator) call it, too.
    """
    seconds = target_duration_seconds(request.target_duration)
    server.send_stimulus(stimuli.SizeCluster(seconds))
    return server.state.scaling.asked


def handle_check_idle(server: ServerApi, request: m.CheckIdle, peer: Peer) -> float | None:
    """Check now whether the scheduler is idle.

    Return since when, in seconds since the epoch, or None if it is busy or was busy at the previous
    check.
    """
    server.send_stimulus(stimuli.IdleCheck(server.driver.is_active()))
    return server.state.idle_since


def handle_terminate(server: ServerApi, request: m.Terminate, peer: Peer) -> NoReply:
    """Shut the scheduler down. There is no reply: the client sees its connection close."""
    reason = request.reason or "terminate"
    server.spawn(server.scheduler.close(reason=reason), "terminate")
    return NO_REPLY


def handle_subscribe_worker_status(
    server: ServerApi, request: m.SubscribeWorkerStatus, peer: Peer
) -> dict[str, Any]:
    """Return the identity of the scheduler and send changes of its workers from now on."""
    identity = server.scheduler.identity()
    workers = {a: _constant_fields(facts) for a, facts in identity["workers"].items()}
    seen = dict(server.state.workers)
    server.spawn(watch_workers(server, peer, seen), "watch workers")
    return {**identity, "workers": workers}


def _constant_fields(facts: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in facts.items() if k not in ("metrics", "last_seen")}


async def watch_workers(server: ServerApi, peer: Peer, seen: dict[str, WorkerState]) -> None:
    """Send ``peer`` batches of ["add", ...] and ["remove", address] until its connection is lost.

    It knows the workers in `seen` already.
    """
    state = server.state

    def count() -> int:
        return state.worker_added_count + state.worker_removed_count

    while not peer.closed:
        gone = [a for a, ws in seen.items() if state.workers.get(a) is not ws]
        messages: list[Any] = [["remove", address] for address in gone]
        for address, ws in state.workers.items():
            if seen.get(address) is not ws:
                facts = _constant_fields(queries.worker_identity(ws))
                messages.append(["add", {"workers": {address: facts}}])
        seen = dict(state.workers)
        if messages:
            peer.send(messages)
            await peer.drained()
        at = count()
        await server.wait_for(lambda at=at: peer.closed or count() != at)  # type: ignore[misc]


HANDLERS: dict[type, Handler] = {
    m.AdaptiveTarget: handle_adaptive_target,
    m.CheckIdle: handle_check_idle,
    m.Terminate: handle_terminate,
    m.SubscribeWorkerStatus: handle_subscribe_worker_status,
}
