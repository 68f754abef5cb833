"""What flows ask of the server beyond ``rpc/base.py``.

Must not know: who implements it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from paceline.protocol.framing import Allocator, Frames
from paceline.protocol.messages import Message

from ..outlet import Outlet
from ..rpc.base import PeerPort, ServerPort
from .registry import FlowState

#: Given a reply, what is to be written to the peer before the connection goes back to the pool; None for nothing.
Acknowledge = Callable[[Any], Any]


#: A handler of a request, as in ``rpc/base.py``, that asks more of the server.
FlowHandler = Callable[[Any, Any, Any], Any]


class FlowServer(ServerPort, Protocol):
    """The server, as flows see it.

    Attributes:
        flows: what flows keep between requests; the reply to ``register-worker`` carries
            ``flows.worker_plugins``, and the scheduler's ``close`` calls ``flows.close()``.
        plugins: scheduler plugins, and the facade.
        transport: the connections, for what is passed on while it comes in.
    """

    flows: FlowState
    plugins: PluginHost

    @property
    def transport(self) -> ConnectionsPort:
        """The connections."""

    async def rpc_call(
        self,
        address: str,
        request: Message | dict[str, Any],
        timeout: float | None = None,
        *,
        acknowledge: Acknowledge | None = None,
        allocate: Allocator | None = None,
        on_connection: Callable[[int], None] | None = None,
    ) -> Any:
        """One request over a pooled connection, and its reply, raw.

        A dict is a request that a client wants relayed as it stands. ``acknowledge`` serves ``get_data``,
        whose sender waits for an "OK". ``allocate`` is where large frames of the reply are received to;
        ``on_connection`` is told the connection's number first.

        Raises:
            OSError, TimeoutError, RemoteError: as ``ServerPort.rpc_call``.
        """


class ConnectionsPort(Protocol):
    """Connections by their numbers: what passing on needs of ``transport.py``."""

    def coming(self, number: int) -> tuple[tuple[int, ...], Frames] | None:
        """See ``transport.Transport.coming``."""

    def pause_reading(self, number: int) -> None:
        """See ``transport.Transport.pause_reading``."""

    def resume_reading(self, number: int) -> None:
        """See ``transport.Transport.resume_reading``."""


class StreamingPeer(PeerPort, Protocol):
    """A peer whose reply may go out while parts of it are still to come.

    Attributes:
        can_reply_in_parts: its connection is of a kind that can.
    """

    @property
    def can_reply_in_parts(self) -> bool:
        """See ``peers.Peer.can_reply_in_parts``."""

    def reply_in_parts(self, value: Any, lengths: Mapping[int, int]) -> Outlet | None:
        """See ``peers.Peer.reply_in_parts``."""

    def abort(self, reason: str) -> None:
        """Close now."""


class TalkingPeer(PeerPort, Protocol):
    """A peer that says more after its request, on the same connection (``register_nanny``)."""

    async def read(self) -> Any:
        """The next message, as it stands.

        Raises:
            OSError: the connection is gone.
        """


class PluginHost(Protocol):
    """Where scheduler plugins live (``workers_compat``), and what they and functions receive as the scheduler.

    Attributes:
        scheduler: the ``dask_scheduler`` of plugins and of ``Client.run_on_scheduler``.
        facade: what it looks like to code that was written for stock's.
        partings: tasks in which plugins still do something about workers that left.
    """

    scheduler: Any
    facade: Any
    partings: set[asyncio.Task[Any]]

    def __contains__(self, name: object) -> bool:
        """Whether there is a plugin of this name."""

    def add(self, plugin: Any, name: str, idempotent: bool = False) -> None:
        """Call its hooks from now on; replaces one of the same name, with a warning."""

    def remove(self, name: str) -> None:
        """Call its hooks no more.

        Raises:
            ValueError: there is none.
        """

    def valid_workers_downscaling(self, workers: list[Any]) -> list[Any]:
        """Of these workers (as the facade shows them) those that plugins let go."""

    def each(self) -> list[Any]:
        """The plugins, in order."""
