"""Futures of the driver: for replies of the core, and for conditions of its state."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable
from typing import Any

from paceline.scheduler.core.extension import ExtensionErrorReply


class PendingReplies:
    """The futures of requests that the core has not replied to.

    Args:
        on_cancel: called with the number of a request whose future was cancelled.

    Attributes:
        futures: request_id -> future of the reply.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_cancel: Callable[[int], None]) -> None:
        self._loop = loop
        self._on_cancel = on_cancel
        self.futures: dict[int, asyncio.Future[Any]] = {}

    def add(self, request_id: int) -> asyncio.Future[Any]:
        """Return a future of the reply to a request."""

        def done(_: object) -> None:
            if self.futures.pop(request_id, None) is not None:
                self._on_cancel(request_id)

        future = self.futures[request_id] = self._loop.create_future()
        future.add_done_callback(done)
        return future

    def resolve(self, request_id: int, value: Any) -> None:
        """Set the result or exception of a request's future. Ignore requests without one."""
        if isinstance(value, ExtensionErrorReply):
            kind = getattr(builtins, value.kind, RuntimeError)
            self.fail(request_id, kind(value.text) if value.text else kind())
            return
        future = self.futures.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(value)

    def fail(self, request_id: int, error: Exception) -> None:
        """Set the exception of a request's future. Ignore requests without one."""
        future = self.futures.pop(request_id, None)
        if future is not None and not future.done():
            future.set_exception(error)


class StateConditions:
    """Predicates of the state that coroutines wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._predicates: dict[asyncio.Future[bool], Callable[[], bool]] = {}

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until ``predicate`` is true; it is called now and after each batch of turns.

        Return False if ``timeout`` seconds passed first. Raise what ``predicate`` raises.
        """
        if predicate():
            return True
        future: asyncio.Future[bool] = self._loop.create_future()
        self._predicates[future] = predicate
        try:
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:
            return False
        finally:
            del self._predicates[future]

    def check(self) -> None:
        """Call the predicates. Resume the coroutines whose predicate is true."""
        for future, predicate in list(self._predicates.items()):
            try:
                if not future.done() and predicate():
                    future.set_result(True)
            except Exception as error:  # fails this request only
                future.set_exception(error)

    def cancel(self) -> None:
        """Cancel all coroutines that wait."""
        for future in self._predicates:
            future.cancel()
