"""``handlers`` and ``stream_handlers`` of the facade: op -> function, as in stock's ``Scheduler``.

Functions that plugins add handle the messages of their op, including ops that the core handles
otherwise. Built-in handlers can be called with the arguments of a message, also by the functions
that replace them.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any

import msgspec
from paceline.protocol.catalogue import TABLES, Direction
from paceline.protocol.messages.base import REQUEST_FIELDS
from paceline.workers_compat.security.unpickling import deserialize

from .hook_arguments import as_arguments
from .server_port import FacadeServer
from .stock_calls import request_signature
from .stream_views import RequestComm

#: Ops handled by a method of the facade that does more than the request -> the method.
FACADE_METHODS = MappingProxyType(
    {"broadcast": "broadcast", "unregister": "remove_worker", "update_data": "update_data"}
)
#: Direction of messages -> the argument with the sender.
ROLES: tuple[tuple[Direction, str], ...] = (
    ("worker_to_scheduler", "worker"),
    ("client_to_scheduler", "client"),
)


class HandlerTable(MutableMapping[str, Callable[..., Any]]):
    """Op -> function: functions added by plugins, then built-in handlers."""

    def __init__(self) -> None:
        self._added: dict[str, Callable[..., Any]] = {}

    def __getitem__(self, op: str) -> Callable[..., Any]:
        return self._added.get(op) or self.built_in(op)

    def __setitem__(self, op: str, function: Callable[..., Any]) -> None:
        self._added[op] = function
        self.route(op)

    def __delitem__(self, op: str) -> None:
        del self._added[op]
        self.route(op)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.built_in_ops(), *self._added)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def is_added(self, op: str) -> bool:
        return op in self._added

    @abstractmethod
    def built_in(self, op: str) -> Callable[..., Any]:
        """Return the built-in handler of `op`. Raises KeyError."""

    @abstractmethod
    def built_in_ops(self) -> Iterable[str]: ...

    @abstractmethod
    def route(self, op: str) -> None:
        """Pass messages of `op` to the function that was added, or to the built-in handler."""


class RequestHandlers(HandlerTable):
    """The facade's ``handlers``: ops of requests."""

    def __init__(self, facade: Any, server: FacadeServer) -> None:
        super().__init__()
        self._facade = facade
        self._server = server
        self._replaced: dict[type, Callable[..., Any] | None] = {}

    def built_in(self, op: str) -> Callable[..., Any]:
        """Return a function that handles the request as one from within this process."""
        message_type: Any = TABLES["scheduler_rpc"][op].cls
        if not self._facade.serves(message_type):
            raise KeyError(op)
        if op in FACADE_METHODS:
            return getattr(self._facade, FACADE_METHODS[op])  # type: ignore[no-any-return]

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._facade.request(message_type, *args, **kwargs)

        call.__name__ = op
        call.__signature__ = request_signature(message_type)  # type: ignore[attr-defined]
        return call

    def built_in_ops(self) -> Iterable[str]:
        table = TABLES["scheduler_rpc"].items()
        return [op for op, entry in table if self._facade.serves(entry.cls)]

    def route(self, op: str) -> None:
        """Route requests of a known op to the added function."""
        known = TABLES["scheduler_rpc"].get(op)
        if known is None:
            return
        original = self.server_handler(known.cls)
        if self.is_added(op):
            self._replaced[known.cls] = original
            self._server.handlers[known.cls] = lambda server, message, peer: self.handle(
                op, as_arguments(message), peer
            )
        else:
            del self._replaced[known.cls], self._server.handlers[known.cls]
            if original is not None:
                self._server.handlers[known.cls] = original

    def server_handler(self, message_type: type) -> Callable[..., Any] | None:
        """Return the server's own handler of a request; None if the core handles it."""
        handlers = self._server.handlers
        return self._replaced.get(message_type, handlers.get(message_type))

    def handle(self, op: str, raw: Mapping[str, Any], peer: Any) -> Any:
        """Call the added function with the arguments of a request. Raise KeyError without one.

        A function with a parameter for the connection can write to `peer`, and pass it to the
        built-in handler.
        """
        function = self._added[op]
        omitted = ("op", *REQUEST_FIELDS)
        arguments = {name: deserialize(x) for name, x in raw.items() if name not in omitted}
        comm = [RequestComm(peer)] if _expects_comm(function) else []
        return function(*comm, **arguments)


class StreamHandlers(HandlerTable):
    """The facade's ``stream_handlers``: ops of messages on streams other than graphs and data.

    ``replaced`` are the message classes of the core that an added function handles now.
    """

    def __init__(self, server: FacadeServer) -> None:
        super().__init__()
        self._server = server
        self._core_types = frozenset(server.core.handlers)
        self.replaced: frozenset[type] = frozenset()

    def __setitem__(self, op: str, function: Callable[..., Any]) -> None:
        """Add a function. Raise ValueError if it would get no messages of this op."""
        is_known = any(op in TABLES[direction] for direction, _ in ROLES)
        if is_known and self._core_type(op) is None:
            raise ValueError(f"the handler of {op!r} cannot be replaced")
        super().__setitem__(op, function)

    def built_in(self, op: str) -> Callable[..., Any]:
        """Return a function that feeds the message to the core; the sender is an argument."""
        if (found := self._core_type(op)) is None:
            raise KeyError(op)
        cls, role = found

        def call(**arguments: Any) -> None:
            sender = arguments.pop(role)
            stimulus_id = arguments.get("stimulus_id")
            self._server.send_stimulus(msgspec.convert(arguments, cls), sender, stimulus_id)

        call.__name__ = op
        return call

    def built_in_ops(self) -> Iterable[str]:
        return [op for direction, _ in ROLES for op in TABLES[direction] if self._core_type(op)]

    def route(self, op: str) -> None:
        """Route replaced classes past the core. The path of all others does not change."""
        found = [self._core_type(each) for each in self._added]
        self.replaced = frozenset(entry[0] for entry in found if entry is not None)
        self._server.route_streams(self._core_types - self.replaced)

    def _core_type(self, op: str) -> tuple[type, str] | None:
        """Return the message class of an op that the core handles, and the sender's argument."""
        for direction, role in ROLES:
            entry = TABLES[direction].get(op)
            if entry is not None and entry.cls in self._core_types:
                return entry.cls, role
        return None


def _expects_comm(function: Callable[..., Any]) -> bool:
    """Return whether the name of the first parameter is that of a connection, as stock decides."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0] in ("comm", "stream")
