"""The interface of the server for connections and request handlers.

A handler is ``handler(server, request, peer) -> value``. The value is sent as the reply without
further conversion. A coroutine or future is awaited first; ``NO_REPLY`` sends nothing. An exception
becomes stock's ``uncaught-error`` reply, and the connection stays open; if the request is cancelled
instead, the connection is closed. Handlers read ``server.state`` and change it only through stimuli
(``server.send_stimulus``, ``server.request``).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from paceline.protocol import messages as m
from paceline.scheduler.core.stimuli import LogEventCommand

if TYPE_CHECKING:
    from paceline.protocol.framing import Allocator
    from paceline.protocol.messages import Message
    from paceline.scheduler.core.core import SchedulerCore
    from paceline.scheduler.core.state.scheduler_state import SchedulerState
    from paceline.scheduler.server.comm.transport import Transport
    from paceline.scheduler.server.compilers.pool import GraphCompilers
    from paceline.scheduler.server.durable.log.recorder import Recorder
    from paceline.scheduler.server.runtime.measures import Measures
    from paceline.workers_compat.facade.plugins import Plugins
    from paceline.workers_compat.security.shared_secret import Secret

    from .driver import Driver
    from .requests.state import RequestState

logger = logging.getLogger("distributed.scheduler")

#: ``handler(server, request, peer)``; each handler annotates the request that it serves.
Handler = Callable[[Any, Any, Any], Any]
#: Return the message to send after a reply, before the connection is reused; None for no message.
Acknowledge = Callable[[Any], Any]


class NoReply:
    """The type of ``NO_REPLY``."""


#: Returned by a handler whose reply is sent later, or never.
NO_REPLY: Final = NoReply()


class RemoteError(Exception):
    """A peer answered a request with an error, the message `reply`."""

    def __init__(self, address: str, op: str, reply: dict[str, Any]) -> None:
        super().__init__(f"{address} failed to {op}: {reply.get('exception_text')}")
        self.reply = reply


class OwningScheduler(Protocol):
    """The ``Scheduler`` object that owns the server."""

    id: str
    jupyter: bool

    @property
    def address(self) -> str: ...

    @property
    def status(self) -> Any: ...

    def identity(self, n_workers: int = -1) -> dict[str, Any]: ...

    async def close(self, timeout: float | None = None, reason: str = "unknown") -> None: ...


class ServerApi(ABC):
    """The interface of the server for request handlers and connections; base of ``server.Server``.

    Attributes:
        request_state: what handlers keep between requests. The reply to ``register-worker`` carries
            its ``worker_plugins``; the scheduler's ``close`` calls its ``close``.
        handlers: message class -> handler of an RPC request.
        rpc_counts: message class -> number of requests.
        recorder: records what a successor needs, if the scheduler is durable.
        core_types: message classes that the core or an extension handles.
        secret: the secret that peers must know, or None.
    """

    core: SchedulerCore
    state: SchedulerState
    driver: Driver
    scheduler: OwningScheduler
    request_state: RequestState
    plugins: Plugins
    transport: Transport
    graph_compilers: GraphCompilers
    measures: Measures
    secret: Secret | None
    handlers: dict[type, Handler]
    rpc_counts: defaultdict[type[Any], int]
    core_types: frozenset[type]
    recorder: Recorder
    graph_ids: Iterator[int]

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self.driver.clock()

    def send_stimulus(self, message: Any, source: str = "", stimulus_id: str | None = None) -> None:
        """Feed a stimulus to the core."""
        self.driver.feed(message, source, stimulus_id)

    def log_event(self, topics: list[str], event: dict[str, Any]) -> None:
        """Log an event."""
        self.send_stimulus(LogEventCommand(topics, event))

    def request(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> asyncio.Future[Any]:
        """See ``Driver.request``."""
        return self.driver.request(message, source, stimulus_id)

    @abstractmethod
    async def rpc_call(
        self,
        address: str,
        request: Message | dict[str, Any],
        timeout: float | None = None,
        *,
        acknowledge: Acknowledge | None = None,
        allocate: Allocator | None = None,
    ) -> Any:
        """Send one request over a pooled connection and return the reply, with payloads serialized.

        Args:
            address: of the worker or nanny.
            request: a message, or a dict that is sent unchanged on behalf of a client.
            timeout: seconds, including connecting.
            acknowledge: see ``Acknowledge``. The sender of ``get_data`` waits for an "OK".
            allocate: provides the memory for large frames of the reply.

        Raises:
            OSError: the connection could not be made, or broke before the reply arrived.
            TimeoutError: no reply within ``timeout``.
            RemoteError: the peer answered with an ``uncaught-error``.
        """

    @abstractmethod
    def remove_connections(self, address: str) -> None:
        """Close the outgoing connections to a removed worker."""

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """See ``StateConditions.wait_for``."""
        return await self.driver.conditions.wait_for(predicate, timeout)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine until shutdown at most. Log its error under ``name``."""
        task = self.loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_done)
        return task

    def _spawned_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("Error in %s", task.get_name(), exc_info=task.exception())


def op_name(message: Any) -> str:
    """Return the op of ``message`` for a log line."""
    if isinstance(message, m.InvalidMessage | m.UnknownMessage):
        return message.op
    return str(message.get("op") if isinstance(message, dict) else message.op())
