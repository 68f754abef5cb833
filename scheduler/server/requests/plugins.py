"""Register and remove plugins of workers and nannies, which stay pickled, and of the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.server.peers.peer import Peer
from paceline.scheduler.server.server_api import NO_REPLY, Handler, NoReply, ServerApi
from paceline.workers_compat.config.config import worker_plugins
from paceline.workers_compat.security.unpickling import plugin_name, unpickle_plugin

from . import diagnostics, memory_sampler, restart
from .broadcast import broadcast
from .handler_parts import calls

logger = logging.getLogger("distributed.scheduler")

#: Time within which a plugin of the scheduler must start again, seconds. The peers wait for it.
START_SECONDS = 30.0

#: Recorded instead of a worker plugin of the configuration that was removed. A successor would
#: otherwise add it again.
REMOVED = b""

#: Kind of an activity for a client that another process of the scheduler has begun -> function that
#: continues it, from its name and what was recorded of it.
ACTIVITIES: dict[str, Callable[[ServerApi, str, bytes], Any]] = {
    diagnostics.TASK_STREAM: diagnostics.task_stream,
    diagnostics.TASK_METADATA: diagnostics.start_task_metadata,
    memory_sampler.KIND: memory_sampler.start_again,
    restart.KIND: restart.restart_again,
}


async def register_worker_plugin(
    server: ServerApi, plugin: bytes, name: str, idempotent: bool | None = False
) -> dict[str, Any]:
    """Send a plugin to all present and future workers. Return address -> reply."""
    logger.info("Registering Worker plugin %s", name)
    plugins = server.request_state.worker_plugins
    if name in plugins and idempotent:
        return {}
    with _adding(server, "worker", plugins, name, plugin):
        return await broadcast(server, m.PluginAdd(plugin=plugin, name=name))


async def register_nanny_plugin(
    server: ServerApi, plugin: bytes, name: str, idempotent: bool | None = False
) -> dict[str, Any]:
    """Send a plugin to all present and future nannies, after those that are starting."""
    logger.info("Registering Nanny plugin %s", name)
    state = server.request_state
    if name in state.nanny_plugins and idempotent:
        return {}
    with _adding(server, "nanny", state.nanny_plugins, name, plugin):
        async with state.nannies_changed:
            if state.starting_nannies:
                logger.info("Waiting for Nannies to start %s", state.starting_nannies)
            await state.nannies_changed.wait_for(lambda: not state.starting_nannies)
        return await broadcast(server, m.NannyPluginAdd(plugin=plugin, name=name), nanny=True)


@contextlib.contextmanager
def _adding(
    server: ServerApi, kind: str, plugins: dict[str, bytes], name: str, plugin: bytes
) -> Iterator[None]:
    """Store a plugin for new workers or nannies, and record it after the present ones have it.

    Until then a successor repeats the request, which ignores an idempotent plugin that is recorded.
    """
    plugins[name] = plugin
    try:
        yield
    finally:
        if plugins.get(name) is plugin:
            server.recorder.continued(kind, name, plugin)


async def unregister_worker_plugin(server: ServerApi, name: str) -> dict[str, Any]:
    """Remove a plugin from all workers. Return address -> reply. Raise ValueError if unknown."""
    if server.request_state.worker_plugins.pop(name, None) is None:
        raise ValueError(f"The worker plugin {name} does not exist")
    server.recorder.continued("worker", name, REMOVED if name in worker_plugins() else None)
    return await broadcast(server, m.PluginRemove(name=name))


async def unregister_nanny_plugin(server: ServerApi, name: str) -> dict[str, Any]:
    """Remove a plugin from all nannies. Return address -> reply. Raise ValueError if unknown."""
    if server.request_state.nanny_plugins.pop(name, None) is None:
        raise ValueError(f"The nanny plugin {name} does not exist")
    server.recorder.continued("nanny", name, None)
    return await broadcast(server, m.NannyPluginRemove(name=name), nanny=True)


async def handle_register_nanny(server: ServerApi, request: m.RegisterNanny, peer: Peer) -> NoReply:
    """Send the plugins to a starting nanny, and wait until its worker is up or has failed.

    Until then the registration of a nanny plugin waits, so that this nanny receives it, too.
    """
    address = request.address
    state = server.request_state
    peer.send({"status": "OK", "nanny-plugins": dict(state.nanny_plugins)})
    return await nanny_started(server, address, peer)


def nanny_started(server: ServerApi, address: str, peer: Peer) -> Coroutine[Any, Any, NoReply]:
    """Return a coroutine that waits until the worker of a nanny is up or has failed.

    The nanny is among ``starting_nannies`` at once. A plugin whose registration a successor repeats
    waits for it.
    """
    server.request_state.starting_nannies.add(address)
    return _wait_for_nanny(server, address, peer)


async def _wait_for_nanny(server: ServerApi, address: str, peer: Peer) -> NoReply:
    state = server.request_state
    try:
        await peer.read()
    except OSError as error:
        logger.info("Lost connection to nanny %s while it started: %s", address, error)
    finally:
        async with state.nannies_changed:
            state.starting_nannies.discard(address)
            state.nannies_changed.notify_all()
    return NO_REPLY


async def register_scheduler_plugin(
    server: ServerApi,
    plugin: Any,
    name: str | None = None,
    idempotent: bool | None = False,
) -> None:
    """Unpickle a plugin, start it, and run it in the scheduler.

    Functions and preloads may pass a plugin that is not pickled. It is not recorded.

    Raises:
        TypeError: it is not a scheduler plugin.
        Exception: its ``start`` failed.
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
    host.add(instance, name, bool(idempotent))
    if isinstance(plugin, bytes):
        server.recorder.continued("scheduler", name, plugin)


def unregister_scheduler_plugin(server: ServerApi, name: str) -> None:
    """Remove a plugin from the scheduler. Raise ValueError if it is unknown."""
    server.plugins.remove(name)
    server.recorder.continued("scheduler", name, None)


async def restore_plugins_and_activities(
    server: ServerApi, recorded: Mapping[tuple[str, str], bytes]
) -> None:
    """Start the plugins and ``ACTIVITIES`` of another process of the scheduler again.

    Log errors of the scheduler's plugins, and go on without those that do not start within
    ``START_SECONDS``. ``recorded`` is (kind, name) -> value, see ``Recorder.continued``.
    """
    state = server.request_state
    for (kind, name), plugin in recorded.items():
        if kind in ACTIVITIES:
            ACTIVITIES[kind](server, name, plugin)
        elif kind == "scheduler":
            try:
                start = register_scheduler_plugin(server, plugin, name)
                await asyncio.wait_for(start, START_SECONDS)
            except TimeoutError:
                logger.error(
                    "The scheduler plugin %s did not start within %g s; going on without it",
                    name,
                    START_SECONDS,
                )
            except Exception:
                logger.exception("The scheduler plugin %s cannot be started again", name)
        else:
            pickled = state.worker_plugins if kind == "worker" else state.nanny_plugins
            if plugin == REMOVED:
                pickled.pop(name, None)
            else:
                pickled[name] = plugin
            server.recorder.continued(kind, name, plugin)  # for the successor of this process


HANDLERS: dict[type, Handler] = {
    m.RegisterWorkerPlugin: calls(register_worker_plugin, shield=True),
    m.UnregisterWorkerPlugin: calls(unregister_worker_plugin, shield=True),
    m.RegisterNannyPlugin: calls(register_nanny_plugin, shield=True),
    m.UnregisterNannyPlugin: calls(unregister_nanny_plugin, shield=True),
    m.RegisterNanny: handle_register_nanny,
    m.RegisterSchedulerPlugin: calls(register_scheduler_plugin, shield=True),
    m.UnregisterSchedulerPlugin: calls(unregister_scheduler_plugin),
}
