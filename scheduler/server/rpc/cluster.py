"""Requests to and about workers as a whole: broadcast, restart, retire, scale, shut down.

Must not know: how (``flows/``).
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.messages import scheduler_rpc as r
from paceline.scheduler.core import scaling, stimuli
from paceline.scheduler.core.handlers.timers import is_busy
from paceline.workers_compat import config
from paceline.workers_compat.unpickling import unpickle

from ..flows import broadcast, diagnostics, restart, retire
from ..flows.ports import FlowHandler, FlowServer
from .base import NO_REPLY, NoReply, PeerPort
from .lasting import lasting


async def handle_broadcast(server: FlowServer, request: r.Broadcast, peer: PeerPort) -> Any:
    """One request to many workers."""
    return await broadcast.broadcast(
        server,
        request.msg,
        workers=request.workers,
        hosts=request.hosts,
        nanny=request.nanny,
        on_error=request.on_error,
    )


async def handle_proxy(server: FlowServer, request: r.Proxy, peer: PeerPort) -> Any:
    """One request to one worker."""
    return await broadcast.proxy(server, request.msg, request.worker)


async def handle_restart(server: FlowServer, request: r.RestartRpc, peer: PeerPort) -> None:
    """Forget everything, restart workers."""
    flow = restart.restart(
        server,
        client=request.client,
        timeout=request.timeout,
        wait_for_workers=request.wait_for_workers,
        stimulus_id=request.stimulus_id,
    )
    await lasting(server, flow, "restart")


async def handle_restart_workers(
    server: FlowServer, request: r.RestartWorkers, peer: PeerPort
) -> dict[str, str]:
    """Restart some workers."""
    flow = restart.restart_workers(
        server,
        request.workers,
        client=request.client,
        timeout=request.timeout,
        wait_for_workers=request.wait_for_workers,
        on_error=request.on_error,
        stimulus_id=request.stimulus_id,
    )
    return await lasting(server, flow, "restart_workers")


async def handle_retire_workers(
    server: FlowServer, request: r.RetireWorkers, peer: PeerPort
) -> dict[str, Any]:
    """Workers hand over their data and go."""
    flow = retire.retire_workers(
        server,
        request.workers,
        names=request.names,
        close_workers=request.close_workers,
        remove=request.remove,
        stimulus_id=request.stimulus_id,
        **_opened_key(request.extra_arguments),
    )
    return await lasting(server, flow, "retire_workers")


def handle_workers_to_close(
    server: FlowServer, request: r.WorkersToClose, peer: PeerPort
) -> list[Any]:
    """Workers that could go."""
    names = ("memory_ratio", "n", "key", "minimum", "target", "attribute")
    options = {name: getattr(request, name) for name in names}
    return retire.workers_to_close(server, **_opened_key(options))


def _opened_key(options: dict[str, Any]) -> dict[str, Any]:
    """Options of ``workers_to_close``; their ``key`` is a pickled function of the sender's."""
    if isinstance(options.get("key"), bytes):
        return {
            **options,
            "key": unpickle(options["key"], "the function `key` of workers_to_close"),
        }
    return options


def handle_adaptive_target(server: FlowServer, request: r.AdaptiveTarget, peer: PeerPort) -> int:
    """How many workers there should be."""
    wanted = request.target_duration
    if wanted is None:
        wanted = config.get("distributed.adaptive.target-duration")
    seconds = config.seconds(wanted) or scaling.TARGET_DURATION_SECONDS
    return scaling.adaptive_target(server.state, seconds)


def handle_check_idle(server: FlowServer, request: r.CheckIdle, peer: PeerPort) -> float | None:
    """Look now. Since when there is nothing to do, seconds since the epoch; None where there is, or was at the last look."""
    server.tell(stimuli.CheckIdle())
    return None if is_busy(server.state) else server.state.idle_since


def handle_terminate(server: FlowServer, request: r.Terminate, peer: PeerPort) -> NoReply:
    """Shut the scheduler down. The asker sees its connection close."""
    reason = request.reason or "terminate"
    server.spawn(server.scheduler.close(reason=reason), "terminate")
    return NO_REPLY


def handle_subscribe_worker_status(
    server: FlowServer, request: r.SubscribeWorkerStatus, peer: PeerPort
) -> dict[str, Any]:
    """Tell of workers that come and go from now on; first of those that are there."""
    identity = diagnostics.watched_identity(server.scheduler.identity())
    server.spawn(
        diagnostics.watch_workers(server, peer, list(identity["workers"])), "watch workers"
    )
    return identity


HANDLERS: dict[type, FlowHandler] = {
    r.Broadcast: handle_broadcast,
    r.Proxy: handle_proxy,
    r.RestartRpc: handle_restart,
    r.RestartWorkers: handle_restart_workers,
    r.RetireWorkers: handle_retire_workers,
    r.WorkersToClose: handle_workers_to_close,
    r.AdaptiveTarget: handle_adaptive_target,
    r.CheckIdle: handle_check_idle,
    r.Terminate: handle_terminate,
    r.SubscribeWorkerStatus: handle_subscribe_worker_status,
}
