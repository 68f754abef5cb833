"""Registration, heartbeats and removal of workers; registration of clients."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.config import heartbeat_interval
from paceline.scheduler.core.policy.admission import heartbeat_seconds
from paceline.scheduler.core.state.addresses import registration_error
from paceline.scheduler.server.comm import addresses
from paceline.scheduler.server.peers.client_stream import ClientStream
from paceline.scheduler.server.peers.peer import Peer
from paceline.scheduler.server.peers.streams import WorkerStream
from paceline.scheduler.server.peers.unregistered_stream import UnregisteredStream
from paceline.scheduler.server.server_api import NO_REPLY, Handler, NoReply, ServerApi
from paceline.workers_compat.config import versions

from .handler_parts import worker_address

logger = logging.getLogger("distributed.scheduler")


def handle_register_worker(server: ServerApi, request: m.RegisterWorker, peer: Peer) -> NoReply:
    """Register a worker and make its connection a stream, or send why it is refused."""
    state = server.state
    address = worker_address(server, request.address, request.resolve_address)
    now = server.now()
    try:
        problem = registration_error(state, address, request.name, request.nthreads)
    except ValueError as error:
        logger.error("%s", error)
        problem = str(error)
    else:
        if problem:
            logger.warning("Worker tried to connect with a duplicate name: %s", request.name)
    if problem:
        peer.send({"status": "error", "message": problem, "time": now})
        return NO_REPLY
    known = {a: ws.versions for a, ws in state.workers.items()}
    known[address] = request.versions
    warning = versions.version_warning(known, request.versions, str(request.server_id))
    logger.info("Register worker addr: %s name: %s", address, request.name)
    reply: dict[str, Any] = {
        "status": "OK",
        "time": now,
        "heartbeat-interval": heartbeat_interval(len(state.workers) + 1),
        "worker-plugins": dict(server.request_state.worker_plugins),
    }
    peer.send({**reply, **warning})
    logger.info("Starting worker compute stream, %s", address)
    peer.become_stream("worker", address)
    peer.handler = WorkerStream(peer, address)
    joined = stimuli.WorkerJoined(address, addresses.address_host(address), request)
    hooks = server.plugins.hooks_started_by(
        lambda: server.send_stimulus(joined, address, request.stimulus_id), "add_worker"
    )
    if hooks:
        peer.pause_reading("add_worker hooks")
        server.spawn(_read_after(hooks, peer), f"add_worker hooks for {address}")
    return NO_REPLY


async def _read_after(hooks: set[Any], peer: Peer) -> None:
    """Resume reading from a worker after `hooks` end. Before, it cannot report that it runs."""
    await asyncio.wait(hooks)
    peer.resume_reading("add_worker hooks")


def handle_register_client(server: ServerApi, request: m.RegisterClient, peer: Peer) -> NoReply:
    """Register a client and make its connection a stream."""
    logger.info("Receive client connection: %s", request.client)
    known = {a: ws.versions for a, ws in server.state.workers.items()}
    warning = versions.version_warning(known, request.versions)
    peer.become_stream("client", request.client)
    peer.send([m.StreamStart(**warning)])
    peer.handler = ClientStream(peer, request.client)
    server.send_stimulus(stimuli.ClientJoined(request.client, request.versions), request.client)
    return NO_REPLY


def handle_connection_stream(server: ServerApi, request: m.ConnectionStream, peer: Peer) -> NoReply:
    """Make the connection a stream without a registration."""
    peer.handler = UnregisteredStream(peer, request.extra or {})
    server.recorder.stream(peer.comm.number, "unregistered", "")
    return NO_REPLY


def handle_heartbeat_worker(
    server: ServerApi, request: m.HeartbeatWorker, peer: Peer
) -> dict[str, Any]:
    """Process the heartbeat of a worker. Return when to send the next one."""
    address = worker_address(server, request.address, request.resolve_address)
    if address not in server.state.workers:
        logger.warning("Received heartbeat from unregistered worker %r.", address)
        return {"status": "missing"}
    server.send_stimulus(stimuli.WorkerHeartbeat(address, request), address)
    if request.extensions:
        server.plugins.facade.heartbeat(address, request.extensions)
    return {
        "status": "OK",
        "time": server.now(),
        "heartbeat-interval": heartbeat_seconds(server.state, address),
    }


def handle_unregister(server: ServerApi, request: m.Unregister, peer: Peer) -> str:
    """Remove a worker."""
    address = worker_address(server, request.address)
    if address not in server.state.workers:
        return "already-removed"
    removed = stimuli.WorkerRemoved(address, expected=request.expected)
    server.send_stimulus(removed, address, request.stimulus_id)
    return "OK"


HANDLERS: dict[type, Handler] = {
    m.RegisterWorker: handle_register_worker,
    m.RegisterClient: handle_register_client,
    m.ConnectionStream: handle_connection_stream,
    m.HeartbeatWorker: handle_heartbeat_worker,
    m.Unregister: handle_unregister,
}
