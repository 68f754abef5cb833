"""Requests about plugins and functions that run elsewhere than at their sender's.

Must not know: how (``flows/``).
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.messages import scheduler_rpc as r

from ..flows import plugins, run_function
from ..flows.ports import FlowHandler, FlowServer, TalkingPeer
from .base import NO_REPLY, NoReply, PeerPort
from .lasting import lasting


async def handle_register_worker_plugin(
    server: FlowServer, request: r.RegisterWorkerPlugin, peer: PeerPort
) -> Any:
    """For all present and future workers."""
    flow = plugins.register_worker_plugin(
        server, request.plugin, request.name, bool(request.idempotent)
    )
    return await lasting(server, flow, "register_worker_plugin")


async def handle_unregister_worker_plugin(
    server: FlowServer, request: r.UnregisterWorkerPlugin, peer: PeerPort
) -> Any:
    """The reverse."""
    flow = plugins.unregister_worker_plugin(server, request.name)
    return await lasting(server, flow, "unregister_worker_plugin")


async def handle_register_nanny_plugin(
    server: FlowServer, request: r.RegisterNannyPlugin, peer: PeerPort
) -> Any:
    """For all present and future nannies."""
    flow = plugins.register_nanny_plugin(
        server, request.plugin, request.name, bool(request.idempotent)
    )
    return await lasting(server, flow, "register_nanny_plugin")


async def handle_unregister_nanny_plugin(
    server: FlowServer, request: r.UnregisterNannyPlugin, peer: PeerPort
) -> Any:
    """The reverse."""
    flow = plugins.unregister_nanny_plugin(server, request.name)
    return await lasting(server, flow, "unregister_nanny_plugin")


async def handle_register_nanny(
    server: FlowServer, request: r.RegisterNanny, peer: TalkingPeer
) -> NoReply:
    """A nanny starts."""
    await plugins.register_nanny(server, request.address, peer)
    return NO_REPLY


async def handle_register_scheduler_plugin(
    server: FlowServer, request: r.RegisterSchedulerPlugin, peer: PeerPort
) -> None:
    """For the scheduler itself."""
    await plugins.register_scheduler_plugin(
        server, request.plugin, request.name, bool(request.idempotent)
    )


def handle_unregister_scheduler_plugin(
    server: FlowServer, request: r.UnregisterSchedulerPlugin, peer: PeerPort
) -> None:
    """The reverse."""
    plugins.unregister_scheduler_plugin(server, request.name)


async def handle_run_function(server: FlowServer, request: r.RunFunction, peer: PeerPort) -> Any:
    """Run a client's function here."""
    return await run_function.run_function(
        server, request.function, request.args, request.kwargs, request.wait
    )


HANDLERS: dict[type, FlowHandler] = {
    r.RegisterWorkerPlugin: handle_register_worker_plugin,
    r.UnregisterWorkerPlugin: handle_unregister_worker_plugin,
    r.RegisterNannyPlugin: handle_register_nanny_plugin,
    r.UnregisterNannyPlugin: handle_unregister_nanny_plugin,
    r.RegisterNanny: handle_register_nanny,
    r.RegisterSchedulerPlugin: handle_register_scheduler_plugin,
    r.UnregisterSchedulerPlugin: handle_unregister_scheduler_plugin,
    r.RunFunction: handle_run_function,
}
