"""How plugins reach peers through the facade: stock's ``rpc``, ``report``, subscriptions, digests.

A part of ``facade.SchedulerFacade``, in a file of its own. No ``async def``: what takes time is a future of the server's loop.

Must not know: sockets; what is said.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core import stimuli

from .views import TaskView, opened

#: Digests that plugins may make; further names are not kept.
DIGESTS_MAX = 1_000


class RemoteHandlers:
    """A worker or nanny, for requests: ``await scheduler.rpc(address).identity()``. Stock: ``ConnectionPool.__call__``.

    Args:
        call: (address, request) -> awaitable of the reply.
    """

    def __init__(self, address: str, call: Callable[[str, dict[str, Any]], Any]) -> None:
        self.address = address
        self._call = call

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if op.startswith("__"):
            raise AttributeError(op)

        def ask(**arguments: Any) -> Any:
            return self._call(self.address, dict(arguments, op=op, reply=True))

        return ask

    def close_rpc(self) -> None:
        """Nothing to do: connections are the server's."""


class Reach:
    """See above. Needs ``_server``, ``_port``, ``client_comms``, ``send_all`` of the facade.

    Attributes:
        digests_total: name -> sum of what plugins measured.
        digests_max: name -> the greatest of them.
    """

    def __init__(self) -> None:
        self.digests_total: defaultdict[str, float] = defaultdict(float)
        self.digests_max: defaultdict[str, float] = defaultdict(float)

    def rpc(self, addr: str | None = None, ip: str | None = None, port: int | None = None) -> Any:
        """Requests to a peer at an address."""
        address = addr if addr is not None else f"tcp://{ip}:{port}"
        return RemoteHandlers(address, self._call_peer)

    def _call_peer(self, address: str, request: dict[str, Any]) -> asyncio.Future[Any]:
        server = self._server
        found = server.loop.create_future()

        def done(asked: asyncio.Future[Any]) -> None:
            if found.done():
                asked.cancelled() or asked.exception()
            elif asked.cancelled():
                found.cancel()
            elif (error := asked.exception()) is not None:
                found.set_exception(error)
            else:
                found.set_result(opened(asked.result()))

        asked = server.spawn(server.rpc_call(address, request), f"a plugin's request to {address}")
        asked.add_done_callback(done)
        return found

    def report(
        self, msg: dict[str, Any], ts: TaskView | None = None, client: str | None = None
    ) -> None:
        """A message to the clients that want a task, or to one, or to all. Stock: ``Scheduler.report``."""
        core = self._server.state.tasks.get(msg.get("key") if ts is None else ts.key)
        if core is None:
            names = list(self.client_comms) if client is None else [client]
        else:
            names = [cs.client_key for cs in core.who_wants if cs.client_key != client]
            names += [] if client is None else [client]
        self.send_all({name: [msg] for name in names}, {})

    def subscribe_topic(self, topic: str, client: str) -> None:
        """A client hears of a topic's events from now on."""
        self._port.tell(m.SubscribeTopic(topic=topic, client=client), client)

    def unsubscribe_topic(self, topic: str, client: str) -> None:
        """The opposite."""
        self._port.tell(m.UnsubscribeTopic(topic=topic, client=client), client)

    def remove_client(self, client: str, stimulus_id: str | None = None) -> None:
        """Let go of what a client holds, as if it had gone."""
        self._port.tell(stimuli.ClientGone(client), stimulus_id=stimulus_id)

    def digest_metric(self, name: str, value: float) -> None:
        """Add to what is measured under a name."""
        name = str(name)
        if name in self.digests_total or len(self.digests_total) < DIGESTS_MAX:
            self.digests_total[name] += value
            self.digests_max[name] = max(self.digests_max[name], value)

    @property
    def blocked_handlers(self) -> list[str]:
        """Ops that the configuration forbids."""
        return sorted(self._server.scheduler._blocked_handlers)
