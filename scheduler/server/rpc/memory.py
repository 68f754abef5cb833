"""Requests about the cluster's memory over time.

Must not know: how samples are taken (``flows/memory_sampler.py``).
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.messages import extension_rpc as x

from ..flows import memory_sampler
from ..flows.ports import FlowHandler, FlowServer
from .base import PeerPort


def handle_memory_sampler_start(
    server: FlowServer, request: x.MemorySamplerStart, peer: PeerPort
) -> str:
    """Take samples. The sampler's key."""
    return memory_sampler.start(server, request.client, request.measure, request.interval)


def handle_memory_sampler_stop(
    server: FlowServer, request: x.MemorySamplerStop, peer: PeerPort
) -> list[Any]:
    """The samples."""
    return memory_sampler.stop(server, request.key)


HANDLERS: dict[type, FlowHandler] = {
    x.MemorySamplerStart: handle_memory_sampler_start,
    x.MemorySamplerStop: handle_memory_sampler_stop,
}
