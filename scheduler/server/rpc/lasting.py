"""Flows that go on when who asked for them has gone: half of a restart is worse than one nobody waits for.

Must not know: which flows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from .base import ServerPort

T = TypeVar("T")


async def lasting(server: ServerPort, flow: Coroutine[Any, Any, T], name: str) -> T:
    """Run a flow to its end, whoever still waits for it. Raises what it raises."""
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            result = await flow
        except asyncio.CancelledError:
            outcome.cancel()
            raise
        except Exception as error:
            if outcome.cancelled():  # nobody hears of it but the log
                raise
            outcome.set_exception(error)
        else:
            if not outcome.cancelled():
                outcome.set_result(result)

    server.spawn(run(), name)
    return await outcome
