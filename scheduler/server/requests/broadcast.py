"""Send one request to many workers or nannies and collect their replies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.messages import Message
from paceline.protocol.payload import Payload, payload_bytes, pickled_payload
from paceline.scheduler.server.server_api import Handler, RemoteError, ServerApi
from paceline.workers_compat.errors import known_to_peers, pickle_in_band

from .handler_parts import calls

logger = logging.getLogger("distributed.scheduler")

#: Error text of a worker that is closing but still connected (``distributed.core.ConnectionPool``).
CLOSING = "ConnectionPool is closed"


async def broadcast(
    server: ServerApi,
    msg: Message | dict[str, Any],
    *,
    workers: Collection[str] | None = None,
    hosts: Collection[str] | None = None,
    nanny: bool = False,
    on_error: str = "raise",
    timeout: float | None = None,
    serializers: list[str] | None = None,
) -> dict[str, Any]:
    """Send ``msg`` to workers or their nannies and return their replies by worker address.

    See ``messages.Broadcast`` for the arguments. `timeout` is for each reply;
    with "return_text" errors are returned as text. The replies to a client's message use its
    `serializers`.

    Raises:
        ValueError: ``on_error`` is invalid.
        KeyError: a worker is unknown and ``nanny`` is set.
        Exception: the error of a worker, or OSError, if ``on_error`` is "raise".
    """
    if on_error not in ("raise", "ignore", *ERROR_REPLIES):
        raise ValueError(
            f"on_error must be 'raise', 'return', 'return_pickle', or 'ignore'; got {on_error!r}"
        )
    if serializers is not None and isinstance(msg, dict):
        msg = {**msg, "serializers": serializers}
    targets = _targets(server, workers, hosts, nanny)
    outcomes = await call_each(server, targets, msg, timeout, expected=Exception)
    replies: dict[str, Any] = {}
    for worker, outcome in outcomes.items():
        if not isinstance(outcome, Exception):
            replies[worker] = outcome
            continue
        address = targets[worker]
        logger.error("broadcast to %s failed: %s: %s", address, type(outcome).__name__, outcome)
        if on_error == "raise":
            raise outcome
        if on_error in ERROR_REPLIES:
            replies[worker] = ERROR_REPLIES[on_error](outcome)
    return replies


async def proxy(
    server: ServerApi, msg: dict[str, Any], worker: str, serializers: list[str] | None = None
) -> Any:
    """Send ``msg`` to one worker and return its reply, which uses `serializers`."""
    replies = await broadcast(server, msg, workers=[worker], serializers=serializers)
    return replies[worker]


def _targets(
    server: ServerApi,
    workers: Collection[str] | None,
    hosts: Collection[str] | None,
    nanny: bool,
) -> dict[str, str]:
    """Return worker address -> address to send to."""
    state = server.state
    if workers is None:
        chosen = dict.fromkeys(state.workers if hosts is None else ())
    else:
        chosen = dict.fromkeys(workers)
    for host in hosts or ():
        info = state.host_info.get(host)
        if info is not None:
            chosen.update(dict.fromkeys(info["addresses"]))
    if not nanny:
        return {w: w for w in chosen}
    nannies = {w: state.workers[w].nanny for w in chosen}
    return {w: n for w, n in nannies.items() if n is not None}


async def call_each(
    server: ServerApi,
    targets: Mapping[str, str],
    request: Message | dict[str, Any],
    timeout: float | None = None,
    expected: type[Exception] | tuple[type[Exception], ...] = (OSError, RemoteError),
) -> dict[str, Any]:
    """Send `request` to each address of `targets`. Return its keys -> reply or expected error.

    Raises:
        BaseException: a call raised an error that is not one of `expected`.
    """
    pending = (server.rpc_call(address, request, timeout) for address in targets.values())
    outcomes = await asyncio.gather(*pending, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, expected):
            raise outcome
    return dict(zip(targets, outcomes))


def _serialized_error(error: Exception) -> Payload:
    """Return ``error`` as a payload; a worker's own error keeps the type with which it was raised.

    A P2P barrier distinguishes a worker that could not be reached from one that failed
    (distributed#8595). A worker that is closing counts as unreachable.
    """
    if isinstance(error, RemoteError) and CLOSING in (text := _error_text(error)):
        return pickled_payload(_pickled_error(OSError(f"the worker is closing: {text}")))
    raised = error.reply.get("exception") if isinstance(error, RemoteError) else None
    if isinstance(raised, Payload):
        with contextlib.suppress(RemoteProtocolError):
            return pickled_payload(payload_bytes(raised))
    return pickled_payload(_pickled_error(error))


def _pickled_error(error: Exception) -> bytes:
    """Return the pickle of ``error``; a worker's own error becomes a plain one, as in stock."""
    if isinstance(error, RemoteError):
        error = Exception(error.reply.get("exception_text"))
    return pickle_in_band(known_to_peers(error))


def _error_text(error: Exception) -> str:
    return str(error.reply.get("exception_text")) if isinstance(error, RemoteError) else repr(error)


#: ``on_error`` -> function that returns the reply for an error.
ERROR_REPLIES: dict[str, Callable[[Exception], Any]] = {
    "return": _serialized_error,
    "return_text": _error_text,
    "return_pickle": _pickled_error,
}

HANDLERS: dict[type, Handler] = {
    m.Broadcast: calls(broadcast),
    m.Proxy: calls(proxy),
    m.WorkerLogs: lambda server, request, peer: broadcast(
        server,
        m.WorkerGetLogs(n=request.n),
        workers=request.workers,
        nanny=request.nanny,
    ),
}
