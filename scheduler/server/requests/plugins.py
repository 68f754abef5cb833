"""Plugins that clients register: for workers and nannies (they travel closed), and for the scheduler."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from paceline.protocol import messages as r
from paceline.protocol.messages import nanny_rpc, worker_rpc
from paceline.workers_compat.security.unpickling import plugin_name, unpickle_plugin

from .api import NO_REPLY, Handler, NoReply, PeerApi, ServerApi, shielded
from .broadcast import broadcast

logger = logging.getLogger("distributed.scheduler")


async def register_worker_plugin(
    server: ServerApi, plugin: bytes, name: str, idempotent: bool = False
) -> dict[str, Any]:
    """Give a plugin to all present and future workers. Address -> what the worker said of it."""
    logger.info("Registering Worker plugin %s", name)
    plugins = server.request_state.worker_plugins
    if name in plugins and idempotent:
        return {}
    plugins[name] = plugin
    return await broadcast(server, worker_rpc.PluginAdd(plugin=plugin, name=name))


async def unregister_worker_plugin(server: ServerApi, name: str) -> dict[str, Any]:
    """Take a plugin from all workers.

    Raises:
        ValueError: there is none of this name.
    """
    if server.request_state.worker_plugins.pop(name, None) is None:
        raise ValueError(f"The worker plugin {name} does not exist")
    return await broadcast(server, worker_rpc.PluginRemove(name=name))


async def register_nanny_plugin(
    server: ServerApi, plugin: bytes, name: str, idempotent: bool = False
) -> dict[str, Any]:
    """Give a plugin to all present and future nannies; waits for those that are starting."""
    logger.info("Registering Nanny plugin %s", name)
    state = server.request_state
    if name in state.nanny_plugins and idempotent:
        return {}
    state.nanny_plugins[name] = plugin
    async with state.nannies_changed:
        if state.starting_nannies:
            logger.info("Waiting for Nannies to start %s", state.starting_nannies)
        await state.nannies_changed.wait_for(lambda: not state.starting_nannies)
    return await broadcast(server, nanny_rpc.NannyPluginAdd(plugin=plugin, name=name), nanny=True)


async def unregister_nanny_plugin(server: ServerApi, name: str) -> dict[str, Any]:
    """Take a plugin from all nannies.

    Raises:
        ValueError: there is none of this name.
    """
    if server.request_state.nanny_plugins.pop(name, None) is None:
        raise ValueError(f"The nanny plugin {name} does not exist")
    return await broadcast(server, nanny_rpc.NannyPluginRemove(name=name), nanny=True)


async def handle_register_nanny(
    server: ServerApi, request: r.RegisterNanny, peer: PeerApi
) -> NoReply:
    """A nanny starts: it gets the plugins there are, and says when its worker is up (or that it failed).

    Between the two a nanny plugin that is registered waits, so that no nanny misses it.
    """
    address = request.address
    state = server.request_state
    async with state.nannies_changed:
        state.starting_nannies.add(address)
    try:
        peer.reply({"status": "OK", "nanny-plugins": dict(state.nanny_plugins)})
        await peer.read()
    except OSError as error:
        logger.info("Lost connection to nanny %s while it started: %s", address, error)
    finally:
        async with state.nannies_changed:
            state.starting_nannies.discard(address)
            state.nannies_changed.notify_all()
    return NO_REPLY


async def register_scheduler_plugin(
    server: ServerApi, plugin: bytes, name: str | None = None, idempotent: bool = False
) -> None:
    """Run a plugin in the scheduler; this opens a pickle, as its sender asks.

    Raises:
        TypeError: it is no scheduler plugin. Whatever its ``start`` raises.
    """
    instance = unpickle_plugin(plugin)
    name = name or plugin_name(instance)
    host = server.plugins
    if name in host and idempotent:
        return
    start = getattr(instance, "start", None)
    if start is not None:
        result = start(host.scheduler)
        if inspect.isawaitable(result):
            await result
    host.add(instance, name, idempotent)


def unregister_scheduler_plugin(server: ServerApi, name: str) -> None:
    """Run a plugin no more.

    Raises:
        ValueError: there is none of this name.
    """
    server.plugins.remove(name)


HANDLERS: dict[type, Handler] = {
    r.RegisterWorkerPlugin: lambda server, request, peer: shielded(
        server,
        register_worker_plugin(server, request.plugin, request.name, bool(request.idempotent)),
        "register_worker_plugin",
    ),
    r.UnregisterWorkerPlugin: lambda server, request, peer: shielded(
        server, unregister_worker_plugin(server, request.name), "unregister_worker_plugin"
    ),
    r.RegisterNannyPlugin: lambda server, request, peer: shielded(
        server,
        register_nanny_plugin(server, request.plugin, request.name, bool(request.idempotent)),
        "register_nanny_plugin",
    ),
    r.UnregisterNannyPlugin: lambda server, request, peer: shielded(
        server, unregister_nanny_plugin(server, request.name), "unregister_nanny_plugin"
    ),
    r.RegisterNanny: handle_register_nanny,
    r.RegisterSchedulerPlugin: lambda server, request, peer: register_scheduler_plugin(
        server, request.plugin, request.name, bool(request.idempotent)
    ),
    r.UnregisterSchedulerPlugin: lambda server, request, peer: unregister_scheduler_plugin(
        server, request.name
    ),
}
