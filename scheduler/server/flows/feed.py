"""Feeds: a function of the client's that runs here every so often, its answers sent as they come.

Stock's progress bars are made so. The function gets the ``Scheduler`` object; opening its pickle is the point.

Must not know: what the function does; how its answers are written.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from paceline.protocol.messages import scheduler_rpc as r
from paceline.workers_compat.config import seconds
from paceline.workers_compat.unpickling import unpickle

from ..rpc.base import PeerPort
from .ports import FlowServer

#: A feed that asks for less would keep the loop from everything else.
INTERVAL_MIN_SECONDS = 0.01


async def feed(server: FlowServer, request: r.Feed, peer: PeerPort) -> None:
    """Answer until the peer has gone; that is how stock's feeds end.

    Raises:
        Exception: whatever the functions raise, or opening them does.
    """
    if not request.function:
        raise TypeError("a feed needs a function")
    what = "the functions of a feed"
    function = unpickle(request.function, what)
    setup = unpickle(request.setup, what) if request.setup else None
    teardown = unpickle(request.teardown, what) if request.teardown else None
    scheduler = server.plugins.scheduler
    interval = max(seconds(request.interval) or 1.0, INTERVAL_MIN_SECONDS)
    state: Any = setup(scheduler) if setup is not None else None
    if inspect.isawaitable(state):
        state = await state
    try:
        while not peer.closed:
            peer.reply(function(scheduler) if state is None else function(scheduler, state))
            await asyncio.sleep(interval)
    finally:
        if teardown is not None:
            teardown(scheduler, state)
