"""The part of the facade that sends messages and requests to workers, nannies and clients.

There is no ``async def``: what takes time is a future of the server's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.catalogue import TABLES
from paceline.workers_compat.security.unpickling import deserialize

from .server_port import FacadeServer
from .state_attributes import StateAttributes
from .stock_calls import StockCoroutine, stock_value
from .views import TaskView


class RemoteHandlers:
    """A worker or nanny, as in ``await scheduler.rpc(address).identity()``."""

    def __init__(self, address: str, server: FacadeServer) -> None:
        self.address = address
        self._server = server

    def __getattr__(self, op: str) -> Callable[..., StockCoroutine]:
        if op.startswith("__"):
            raise AttributeError(op)

        def request(**arguments: Any) -> StockCoroutine:
            call = self._server.rpc_call(self.address, dict(arguments, op=op, reply=True))
            task = self._server.spawn(call, f"a plugin's request to {self.address}")
            return StockCoroutine(task, lambda value: stock_value(deserialize(value)))

        return request

    def close_rpc(self) -> None:
        """Do nothing: connections belong to the server."""


class FacadeRpc(StateAttributes):
    """Methods of stock's ``Scheduler`` that send messages."""

    serve: Callable[..., Any]

    def rpc(self, addr: str | None = None, ip: str | None = None, port: int | None = None) -> Any:
        """Return an object for requests to the peer at an address."""
        return RemoteHandlers(addr if addr is not None else f"tcp://{ip}:{port}", self.server)

    def broadcast(
        self,
        *,
        msg: dict[str, Any],
        workers: Any = None,
        hosts: Any = None,
        nanny: bool = False,
        serializers: Any = None,
        on_error: str = "raise",
    ) -> StockCoroutine:
        """Send one request to many workers. Await the result for address -> reply."""
        replies = self.serve(
            m.Broadcast, msg=msg, workers=workers, hosts=hosts, nanny=nanny, on_error=on_error
        )
        return StockCoroutine(replies, _stock_replies)

    def gather_on_worker(
        self, worker_address: str, who_has: Mapping[Any, Iterable[str]]
    ) -> StockCoroutine:
        """Make a worker fetch keys from others. Await the keys that it could not fetch."""
        holders = {key: list(names) for key, names in who_has.items()}
        return StockCoroutine(self.server.gather_on_worker(worker_address, holders))

    def delete_worker_data(
        self, worker_address: str, keys: Iterable[Any], stimulus_id: str
    ) -> StockCoroutine:
        """Make a worker delete its copies of `keys`. Await the result."""
        deletion = self.server.delete_worker_data(worker_address, list(keys), stimulus_id)
        return StockCoroutine(deletion)

    # Messages

    def send_all(self, client_msgs: Mapping[str, Any], worker_msgs: Mapping[str, Any]) -> None:
        """Send messages (dicts in wire format) to clients by name and workers by address."""
        for name, messages in client_msgs.items():
            _send(self.client_comms, name, "scheduler_to_client", messages)
        for address, messages in worker_msgs.items():
            _send(self.stream_comms, address, "scheduler_to_worker", messages)

    def client_send(self, client: str, msg: dict[str, Any]) -> None:
        """Send one message to a client."""
        self.send_all({client: [msg]}, {})

    def worker_send(self, worker: str, msg: dict[str, Any]) -> None:
        """Send one message to a worker."""
        self.send_all({}, {worker: [msg]})

    def report(
        self, msg: dict[str, Any], ts: TaskView | None = None, client: str | None = None
    ) -> None:
        """Send a message to the clients that want its task, to one client, or to all clients."""
        key: Any = msg.get("key") if ts is None else ts.key
        core = self.state.tasks.get(key)
        if core is None:
            names = list(self.client_comms) if client is None else [client]
        else:
            names = [cs.client_key for cs in core.who_wants if cs.client_key != client]
            names += [] if client is None else [client]
        self.send_all({name: [msg] for name in names}, {})

    def report_on_key(self, key: Any = None, *, ts: Any = None, client: str | None = None) -> None:
        """Send the state of a key to a client, or to all clients that want it."""
        key = ts.key if ts is not None else key
        core = self.state.tasks.get(key)
        wanting = [] if core is None else [cs.client_key for cs in core.who_wants]
        for name in [client] if client else wanting:
            self.send_stimulus(m.ReportKey(key=key), name)


def _send(streams: Mapping[str, Any], name: str, direction: Any, messages: Any) -> None:
    stream = streams.get(name)
    if stream is not None:
        stream.send([build_message(direction, message) for message in messages])


def _stock_replies(replies: dict[str, Any]) -> dict[str, Any]:
    return {address: stock_value(deserialize(reply)) for address, reply in replies.items()}


def build_message(direction: Any, message: Any) -> Any:
    """Return a stream message from its dict. One with an unknown op remains a dict."""
    if not isinstance(message, dict):
        return message
    known = TABLES[direction].get(str(message.get("op")))
    if known is None:
        return message
    renamed: Any = dict(zip(known.cls.__struct_encode_fields__, known.cls.__struct_fields__))
    fields = {renamed.get(name, str(name)): message[name] for name in message if name != "op"}
    return known.cls(**fields)
