"""Workers and clients register, live, and say goodbye.

Must not know: frames; how the core takes it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from paceline.protocol import messages as m
from paceline.protocol.messages import scheduler_rpc as r
from paceline.scheduler.core import queries, stimuli
from paceline.workers_compat import versions

from .. import addresses
from ..loose_stream import LooseStream
from ..streams import ClientStream, WorkerStream
from .base import NO_REPLY, Handler, NoReply, PeerPort

if TYPE_CHECKING:
    from ..peers import Peer
    from ..server import Server

logger = logging.getLogger("distributed.scheduler")


def handle_register_worker(server: Server, request: r.RegisterWorker, peer: Peer) -> NoReply:
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
        "worker-plugins": dict(server.flows.worker_plugins),
    }
    peer.send({**reply, **warning})
    peer.connection.become_stream("worker")
    peer.mode = WorkerStream(peer, address)
    joined = stimuli.WorkerJoined(address, addresses.address_host(address), request)
    server.tell(joined, address, request.stimulus_id)
    return NO_REPLY


def handle_register_client(server: Server, request: r.RegisterClient, peer: Peer) -> NoReply:
    """A client registers: its connection becomes a stream."""
    logger.info("Receive client connection: %s", request.client)
    told = {a: ws.versions for a, ws in server.state.workers.items()}
    warning = versions.version_warning(told, request.versions)
    peer.connection.become_stream("client")
    peer.send([m.StreamStart(**warning)])
    peer.mode = ClientStream(peer, request.client)
    server.tell(stimuli.ClientJoined(request.client, request.versions), request.client)
    return NO_REPLY


def handle_connection_stream(server: Server, request: r.ConnectionStream, peer: Peer) -> NoReply:
    """From now on the connection is a stream of somebody who did not register."""
    peer.mode = LooseStream(peer, request.extra or {})
    return NO_REPLY


def handle_heartbeat_worker(
    server: Server, request: r.HeartbeatWorker, peer: PeerPort
) -> dict[str, Any]:
    """A worker is alive, and how it is."""
    address = worker_address(server, request.address, request.resolve_address)
    if address not in server.state.workers:
        logger.warning("Received heartbeat from unregistered worker %r.", address)
        return {"status": "missing"}
    host = addresses.address_host(address)
    server.tell(stimuli.WorkerBeat(address, host, request), address)
    if request.extensions:
        server.plugins.facade.heartbeat(address, request.extensions)
    return {
        "status": "OK",
        "time": server.now(),
        "heartbeat-interval": queries.heartbeat_interval(len(server.state.workers)),
    }


def handle_unregister(server: Server, request: r.Unregister, peer: PeerPort) -> str:
    """A worker, or somebody for it, says that it leaves."""
    address = worker_address(server, request.address)
    if address not in server.state.workers:
        return "already-removed"
    gone = stimuli.WorkerGone(address, expected=request.expected)
    server.tell(gone, address, request.stimulus_id)
    return "OK"


def worker_address(server: Server, address: Any, resolve: bool = True) -> str:
    """The address that a worker is known by."""
    address = queries.coerce_address(server.state, address)
    return addresses.resolve(address) if resolve else addresses.normalize(address)


HANDLERS: dict[type, Handler] = {
    r.RegisterWorker: handle_register_worker,
    r.RegisterClient: handle_register_client,
    r.ConnectionStream: handle_connection_stream,
    r.HeartbeatWorker: handle_heartbeat_worker,
    r.Unregister: handle_unregister,
}
