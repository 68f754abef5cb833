"""What a handler of an RPC request is, and what it may ask of the server: the port between ``rpc/``, ``flows/`` and the rest.

A handler is ``handler(server, request, peer) -> value``. The value goes out raw as the reply; an awaitable
is awaited first; ``NO_REPLY`` sends nothing. An exception becomes stock's ``uncaught-error`` reply, and the
connection stays. What changes the state of the cluster is a stimulus (``server.tell``, ``server.ask``);
nothing here writes to ``server.state``.

Must not know: sockets, frames, how stimuli are handled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import asyncio

    from paceline.protocol.messages import Message
    from paceline.scheduler.core.core import SchedulerCore
    from paceline.scheduler.core.state import SchedulerState


class NoReply:
    """The type of ``NO_REPLY``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_REPLY"


#: A handler's answer that sends nothing: the reply comes later (an outbox), or never.
NO_REPLY: Final = NoReply()


class PeerPort(Protocol):
    """The connection a request came on.

    Attributes:
        number: the connection's number at the seam; never used again in a server's life.
        address: ``tcp://host:port`` of the other end of the socket.
        closed: nothing will be written any more.
    """

    number: int
    address: str
    closed: bool

    def reply(self, value: Any) -> None:
        """Write a further message now, out of a handler that answers in several steps."""


class ServerPort(Protocol):
    """What handlers and flows may use of the server.

    Attributes:
        core: the scheduler core. Read it; never write.
        state: ``core.state``.
        driver: who feeds the core, and holds the streams of workers and clients.
        scheduler: the ``Scheduler`` object that owns this server (``address``, ``close``, ``id``, ...).
    """

    core: SchedulerCore
    state: SchedulerState
    driver: Any
    scheduler: Any

    def now(self) -> float:
        """Seconds since the epoch."""

    def tell(self, message: Any, source: str = "", stimulus_id: str | None = None) -> None:
        """Feed a stimulus whose outcome nobody waits for."""

    def ask(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> asyncio.Future[Any]:
        """Feed a stimulus that the core or an extension answers with ``turn.reply``, now or turns later.

        Cancelling the future feeds ``RequestGone``.
        """

    async def rpc_call(self, address: str, request: Message, timeout: float | None = None) -> Any:
        """One request to a worker or nanny over a pooled connection, and its reply, raw: payloads stay closed.

        Raises:
            OSError: the connection could not be made, or broke before the reply came.
            TimeoutError: no reply within ``timeout`` seconds (connecting included).
            RemoteError: the peer answered with an ``uncaught-error``; ``.reply`` holds its reply.
        """

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until ``predicate`` is true; it is tried now and after each batch of turns.

        Returns False when ``timeout`` seconds passed first.
        """

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a flow in the background; its error is logged under ``name``; cancelled at shutdown."""


class RemoteError(Exception):
    """A peer answered a request with an error of its own.

    Attributes:
        reply: the whole reply: status, exception, traceback (closed), exception_text, traceback_text.
    """

    def __init__(self, address: str, op: str, reply: dict[str, Any]) -> None:
        super().__init__(f"{address} failed to {op}: {reply.get('exception_text')}")
        self.reply = reply


#: ``handler(server, request, peer)``; a module's handlers say for themselves how much of either they need.
Handler = Callable[[Any, Any, Any], Any]
AsyncHandler = Callable[[ServerPort, Any, PeerPort], Awaitable[Any]]
