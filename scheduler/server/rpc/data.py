"""Requests that move data: gather, scatter, replicate, rebalance.

Must not know: how (``flows/``).
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.messages import scheduler_rpc as r

from ..flows import gather, rebalance, replicate, scatter
from ..flows.ports import FlowHandler, FlowServer, StreamingPeer
from ..flows.streamed_gather import streamed_gather
from .base import NO_REPLY, PeerPort
from .lasting import lasting


async def handle_gather(server: FlowServer, request: r.Gather, peer: StreamingPeer) -> Any:
    """Results of keys, closed."""
    if await streamed_gather(server, peer, request.keys, request.serializers):
        return NO_REPLY
    return await gather.gather(server, request.keys, request.serializers)


async def handle_scatter(server: FlowServer, request: r.Scatter, peer: PeerPort) -> Any:
    """Values go to workers. The keys."""
    flow = scatter.scatter(
        server,
        request.data,
        request.workers,
        request.client,
        broadcast=request.broadcast,
        timeout=request.timeout,
    )
    return await lasting(server, flow, "scatter")


def handle_update_data(server: FlowServer, request: r.UpdateDataRpc, peer: PeerPort) -> Any:
    """A client put data on workers itself."""
    return scatter.update_data(server, request.who_has, request.nbytes, request.client)


async def handle_replicate(server: FlowServer, request: r.Replicate, peer: PeerPort) -> Any:
    """Copies of data are made or deleted."""
    flow = replicate.replicate(
        server,
        request.keys,
        n=request.n,
        workers=request.workers,
        branching_factor=request.branching_factor,
        delete=request.delete,
        stimulus_id=request.stimulus_id,
    )
    return await lasting(server, flow, "replicate")


async def handle_rebalance(server: FlowServer, request: r.Rebalance, peer: PeerPort) -> Any:
    """Data moves until each worker uses about as much memory."""
    flow = rebalance.rebalance(server, request.keys, request.workers, request.stimulus_id)
    return await lasting(server, flow, "rebalance")


HANDLERS: dict[type, FlowHandler] = {
    r.Gather: handle_gather,
    r.Scatter: handle_scatter,
    r.UpdateDataRpc: handle_update_data,
    r.Replicate: handle_replicate,
    r.Rebalance: handle_rebalance,
}
