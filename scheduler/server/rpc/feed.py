"""Feeds: see ``flows/feed.py``.

Must not know: what is fed.
"""

from __future__ import annotations

from paceline.protocol.messages import scheduler_rpc as r

from ..flows.feed import feed
from ..flows.ports import FlowHandler, FlowServer
from .base import NO_REPLY, NoReply, PeerPort


async def handle_feed(server: FlowServer, request: r.Feed, peer: PeerPort) -> NoReply:
    """Run a function every so often and send what it gives, until the peer goes."""
    await feed(server, request, peer)
    return NO_REPLY


HANDLERS: dict[type, FlowHandler] = {r.Feed: handle_feed}
