"""Workers and clients register, live, and say goodbye."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from paceline.protocol import messages as m
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.server.comm import addresses
from paceline.scheduler.server.peers.client_stream import ClientStream
from paceline.scheduler.server.peers.streams import WorkerStream
from paceline.scheduler.server.peers.unregistered_stream import UnregisteredStream
from paceline.workers_compat.config import versions

from .api import NO_REPLY, Handler, NoReply, PeerApi

if TYPE_CHECKING:
    from paceline.scheduler.server.peers.peer import Peer, PeerServer

logger = logging.getLogger("distributed.scheduler")


def handle_register_worker(server: PeerServer, request: m.RegisterWorker, peer: Peer) -> NoReply:
    """A worker registers: its connection becomes a stream."""
    state = server.state
    address = worker_address(server, request.address, request.resolve_address)
    now = server.now()
    try:
        problem = queries.registration_error(state, address, request.name, request.nthreads)
    except ValueError as error:
        logger.error("%s", error)
        problem = str(error)
    else:
        if problem:
            logger.warning("Worker tried to connect with a duplicate name: %s", request.name)
    if problem:
        peer.send({"status": "error", "message": problem, "time": now})
        return NO_REPLY
    told = {a: ws.versions for a, ws in state.workers.items()}
    told[address] = request.versions
    warning = versions.version_warning(told, request.versions, str(request.server_id))
    logger.info("Register worker addr: %s name: %s", address, request.name)
    reply: dict[str, Any] = {
        "status": "OK",
        "time": now,
        "heartbeat-interval": queries.heartbeat_interval(len(state.workers) + 1),
        "worker-plugins": dict(server.request_state.worker_plugins),
    }
    peer.send({**reply, **warning})
    peer.connection.become_stream("worker")
    peer.handler = WorkerStream(peer, address)
    joined = stimuli.WorkerJoined(address, addresses.address_host(address), request)
    server.send_stimulus(joined, address, request.stimulus_id)
    return NO_REPLY


def handle_register_client(server: PeerServer, request: m.RegisterClient, peer: Peer) -> NoReply:
    """A client registers: its connection becomes a stream."""
    logger.info("Receive client connection: %s", request.client)
    told = {a: ws.versions for a, ws in server.state.workers.items()}
    warning = versions.version_warning(told, request.versions)
    peer.connection.become_stream("client")
    peer.send([m.StreamStart(**warning)])
    peer.handler = ClientStream(peer, request.client)
    server.send_stimulus(stimuli.ClientJoined(request.client, request.versions), request.client)
    return NO_REPLY


def handle_connection_stream(
    server: PeerServer, request: m.ConnectionStream, peer: Peer
) -> NoReply:
    """From now on the connection is a stream of somebody who did not register."""
    peer.handler = UnregisteredStream(peer, request.extra or {})
    return NO_REPLY


def handle_heartbeat_worker(
    server: PeerServer, request: m.HeartbeatWorker, peer: PeerApi
) -> dict[str, Any]:
    """A worker is alive, and how it is."""
    address = worker_address(server, request.address, request.resolve_address)
    if address not in server.state.workers:
        logger.warning("Received heartbeat from unregistered worker %r.", address)
        return {"status": "missing"}
    host = addresses.address_host(address)
    server.send_stimulus(stimuli.WorkerHeartbeat(address, host, request), address)
    if request.extensions:
        server.plugins.facade.heartbeat(address, request.extensions)
    return {
        "status": "OK",
        "time": server.now(),
        "heartbeat-interval": queries.heartbeat_interval(len(server.state.workers)),
    }


def handle_unregister(server: PeerServer, request: m.Unregister, peer: PeerApi) -> str:
    """A worker, or somebody for it, says that it leaves."""
    address = worker_address(server, request.address)
    if address not in server.state.workers:
        return "already-removed"
    gone = stimuli.WorkerRemoved(address, expected=request.expected)
    server.send_stimulus(gone, address, request.stimulus_id)
    return "OK"


def worker_address(server: PeerServer, address: Any, resolve: bool = True) -> str:
    """The address that a worker is known by."""
    address = queries.coerce_address(server.state, address)
    return addresses.resolve(address) if resolve else addresses.normalize(address)


HANDLERS: dict[type, Handler] = {
    m.RegisterWorker: handle_register_worker,
    m.RegisterClient: handle_register_client,
    m.ConnectionStream: handle_connection_stream,
    m.HeartbeatWorker: handle_heartbeat_worker,
    m.Unregister: handle_unregister,
}
