"""Calls of stock's ``Scheduler`` methods by plugins: arguments to requests, results to stock's.

Such a call differs from a request in three ways: some methods take the connection (``comm``) as
their first argument, arguments may be positional, and a coroutine method returns a coroutine.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import MappingProxyType
from typing import Any

import msgspec
from paceline.protocol.messages.base import REQUEST_FIELDS, Request
from paceline.protocol.payload import Payload

from .views import serialized

#: Ops whose method in stock takes the connection as its first argument.
COMM_OPS = frozenset(
    (
        "connection_stream",
        "feed",
        "register-client",
        "register-worker",
        "register_nanny",
        "register_nanny_plugin",
        "register_worker_plugin",
        "run_function",
        "subscribe_worker_status",
        "unregister_nanny_plugin",
        "unregister_worker_plugin",
    )
)
#: Ops whose method is a coroutine in stock, and whose handler here returns a plain value.
COROUTINE_OPS = frozenset(
    (
        "connection_stream",
        "get_story",
        "register-client",
        "register-worker",
        "shuffle_barrier",
        "terminate",
        "unregister_scheduler_plugin",
    )
)
#: Names of stock's methods -> the op that each serves, if the names differ.
METHODS = MappingProxyType(
    {"get_call_stack": "call_stack", "get_profile": "profile", "get_worker_logs": "worker_logs"}
)


class CallingPeer:
    """The peer of a request from within this process.

    `comm` is the connection that the caller passes to methods that write to one, such as ``feed``.
    """

    number = 0
    address = "inproc://scheduler"

    def __init__(self, comm: Any = None) -> None:
        self._comm = comm
        self._writing: asyncio.Future[Any] | None = None

    @property
    def closed(self) -> bool:
        """Return whether the caller's connection is closed, or there is none."""
        return self._comm is None or bool(self._comm.closed())

    def send(self, value: Any) -> None:
        """Write `value` to the caller's connection. A write that fails closes the connection."""
        if not self.closed:
            self._writing = asyncio.ensure_future(self._comm.write(value))
            self._writing.add_done_callback(self._written)

    def drained(self) -> asyncio.Future[Any]:
        """Return a future that is done when the last reply was written, or has failed."""
        writing = [] if self._writing is None else [asyncio.shield(self._writing)]
        return asyncio.gather(*writing, return_exceptions=True)

    def _written(self, writing: asyncio.Future[Any]) -> None:
        if writing.cancelled() or writing.exception() is not None:
            self._comm.abort()


@Coroutine.register
class StockCoroutine:
    """A coroutine for ``convert(result)``, where `result` is a value or an awaitable of one."""

    def __init__(self, result: Any, convert: Callable[[Any], Any] | None = None) -> None:
        self._steps = _await_value(result, stock_value if convert is None else convert)
        self.send, self.throw, self.close = self._steps.send, self._steps.throw, self._steps.close

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._steps


def _await_value(result: Any, convert: Callable[[Any], Any]) -> Generator[Any, Any, Any]:
    if isinstance(result, Awaitable):
        result = yield from result.__await__()
    return convert(result)


def stock_value(value: Any) -> Any:
    """Return `value` with distributed's ``Serialized`` in place of payloads, also within dicts."""
    if isinstance(value, Payload):
        return serialized(value)
    if isinstance(value, dict):
        return {key: stock_value(each) for key, each in value.items()}
    return value


def request_signature(message_type: type[Request]) -> inspect.Signature:
    """Return the signature of stock's method for a request, with the names on the wire."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = []
    if message_type.op() in COMM_OPS:
        parameters.append(inspect.Parameter("comm", kind))
    for field in msgspec.structs.fields(message_type):
        if field.name not in REQUEST_FIELDS and field.name != message_type.EXTRA_FIELD:
            default = inspect.Parameter.empty if field.required else field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            parameters.append(inspect.Parameter(field.encode_name, kind, default=default))
    parameters.append(inspect.Parameter("serializers", kind, default=None))
    if message_type.EXTRA_FIELD is not None:
        extra = inspect.Parameter(message_type.EXTRA_FIELD, inspect.Parameter.VAR_KEYWORD)
        parameters.append(extra)
    return inspect.Signature(parameters)


def build_request(message_type: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the request for a call. Raise TypeError if it does not take these arguments."""
    try:
        given = request_signature(message_type).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"{message_type.op()}(): {error}") from None
    encoded = zip(
        message_type.__struct_encode_fields__, message_type.__struct_fields__, strict=True
    )
    return message_type(**{name: given[wire] for wire, name in encoded if wire in given})


def comm_of(message_type: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the connection that a call passes, or None if its method takes none."""
    if message_type.op() not in COMM_OPS:
        return None
    return args[0] if args else kwargs.get("comm")
