"""Functions that make handlers, and others that several handlers call."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from paceline.protocol import messages as m
from paceline.scheduler.core.state.addresses import coerce_address
from paceline.scheduler.server.comm import addresses
from paceline.scheduler.server.server_api import op_name
from paceline.workers_compat import addressing

if TYPE_CHECKING:
    from paceline.protocol.messages import Message
    from paceline.protocol.messages.base import Request
    from paceline.scheduler.server.server_api import Handler, ServerApi

logger = logging.getLogger("distributed.scheduler")

T = TypeVar("T")


def reads(query: Callable[..., Any]) -> Handler:
    """Return a handler that calls ``query(server.state, field=value, ...)``."""
    return lambda server, request, peer: query(server.state, **arguments(request))


def calls(function: Callable[..., Any], *, shield: bool = False) -> Handler:
    """Return a handler that calls ``function(server, field=value, ...)``.

    A function with the parameter ``serializers`` receives this field too. With ``shield`` its
    coroutine runs to its end: see ``shielded``.
    """
    takes_serializers = "serializers" in inspect.signature(function).parameters

    def handle(server: ServerApi, request: Request, peer: object) -> Any:
        named = arguments(request)
        if takes_serializers:
            named["serializers"] = request.serializers
        result = function(server, **named)
        return shielded(server, result, function.__name__) if shield else result

    return handle


def arguments(request: Request) -> dict[str, Any]:
    """Return the fields of ``request`` except those that all requests have."""
    names = [n for n in request.__struct_fields__ if n not in m.REQUEST_FIELDS]
    return {name: getattr(request, name) for name in names}


async def shielded(server: ServerApi, coroutine: Coroutine[Any, Any, T], name: str) -> T:
    """Run ``coroutine`` to its end even if the caller is cancelled, and return its result.

    Requests that change several workers, such as a restart, and functions of clients must not stop
    half-way because their client disconnected. An error after that is logged under ``name``.
    """
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            result = await coroutine
        except asyncio.CancelledError:
            outcome.cancel()
            raise
        except BaseException as error:
            if outcome.cancelled():
                raise
            outcome.set_exception(error)
        else:
            if not outcome.cancelled():
                outcome.set_result(result)

    server.spawn(run(), name)
    return await outcome


def worker_address(server: ServerApi, worker: Any, resolve: bool = True) -> str:
    """Return the address by which a worker is registered.

    ``worker`` is an address, an alias, ``(host, port)`` or, with `resolve`, an address with a host
    name.

    Raises:
        TypeError: ``worker`` is none of these.
        OSError: the host name is unknown.
    """
    address = coerce_address(server.state, worker)
    if address in server.state.workers:
        return address
    return addresses.resolve(address) if resolve else addressing.normalize(address)


def checked_reply(address: str, request: Message, reply: Any, **kinds: type) -> dict[str, Any]:
    """Return the `reply` of `address` to `request`.

    Raises:
        OSError: it is no dict with fields of these `kinds`.
    """
    if isinstance(reply, dict) and all(isinstance(reply.get(n), k) for n, k in kinds.items()):
        return reply
    text = f"{address} sent an invalid reply to {op_name(request)}: {reply!r:.200}"
    logger.warning(text)
    raise OSError(text)
