"""One request to many workers or nannies, and all their answers.

Must not know: what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection
from typing import Any

from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.messages import Message
from paceline.protocol.payload import Payload, payload_bytes, pickled_payload
from paceline.workers_compat.errors import joined_pickle

from ..rpc.base import RemoteError
from .ports import FlowServer

logger = logging.getLogger("distributed.scheduler")

CLOSING = "ConnectionPool is closed"
"""What a worker that closes, and is not gone yet, says of its connections (``distributed.core.ConnectionPool``)."""

#: What may become of a peer that fails to answer.
ON_ERROR = ("raise", "return", "return_pickle", "return_text", "ignore")


async def broadcast(
    server: FlowServer,
    msg: Message | dict[str, Any],
    *,
    workers: Collection[str] | None = None,
    hosts: Collection[str] | None = None,
    nanny: bool = False,
    on_error: str = "raise",
    timeout: float | None = None,
) -> dict[str, Any]:
    """Address of worker -> its (or its nanny's) reply, raw.

    Args:
        msg: the request; a dict goes out as it came.
        workers: addresses; None is all workers, unless ``hosts`` are given.
        hosts: further workers: all of these hosts.
        nanny: ask the workers' nannies; workers without one are left out.
        on_error: "raise" the first error, "return", "return_pickle" or "return_text" it in the
            reply's place, or "ignore" that worker.
        timeout: seconds for each, None is no limit.

    Raises:
        ValueError: no such ``on_error``.
        KeyError: with ``nanny``, a worker is unknown.
        Exception: what a worker answered with, or OSError, where ``on_error`` is "raise".
    """
    if on_error not in ON_ERROR:
        raise ValueError(
            f"on_error must be 'raise', 'return', 'return_pickle', or 'ignore'; got {on_error!r}"
        )
    targets = _targets(server, workers, hosts, nanny)
    outcomes = await asyncio.gather(
        *(_ask(server, to, msg, timeout) for to in targets.values()), return_exceptions=True
    )
    replies: dict[str, Any] = {}
    for (worker, address), outcome in zip(targets.items(), outcomes):
        if not isinstance(outcome, BaseException):
            replies[worker] = outcome
            continue
        if not isinstance(outcome, Exception):  # cancelled
            raise outcome
        logger.error("broadcast to %s failed: %s: %s", address, type(outcome).__name__, outcome)
        if on_error == "raise":
            raise outcome
        if on_error == "return":
            replies[worker] = _closed(outcome)
        elif on_error == "return_text":
            replies[worker] = _text(outcome)
        elif on_error == "return_pickle":
            replies[worker] = _pickled(outcome)
    return replies


async def proxy(server: FlowServer, msg: dict[str, Any], worker: str) -> Any:
    """One worker's answer to a request."""
    replies = await broadcast(server, msg, workers=[worker])
    return replies[worker]


def _targets(
    server: FlowServer,
    workers: Collection[str] | None,
    hosts: Collection[str] | None,
    nanny: bool,
) -> dict[str, str]:
    """Worker -> whom to ask."""
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


async def _ask(
    server: FlowServer, address: str, msg: Message | dict[str, Any], timeout: float | None
) -> Any:
    return await server.rpc_call(address, msg, timeout)


def _closed(error: Exception) -> Payload:
    """The error as a value; a worker's own is what it raised, of its own type.

    So a P2P barrier, which asks for errors in the replies' place, can tell a worker that could not
    be reached from one that failed (distributed#8595). One that is closing is as good as out of reach.
    """
    if isinstance(error, RemoteError) and CLOSING in (said := _text(error)):
        return pickled_payload(_pickled(OSError(f"the worker is closing: {said}")))
    raised = error.reply.get("exception") if isinstance(error, RemoteError) else None
    if isinstance(raised, Payload):
        with contextlib.suppress(RemoteProtocolError):
            return pickled_payload(payload_bytes(raised))
    return pickled_payload(_pickled(error))


def _pickled(error: Exception) -> bytes:
    """The error's pickle, as ``Client.run`` asks for it: a worker's own is a plain Exception, as in
    stock's ``send_recv`` where nothing is opened."""
    return joined_pickle(_plain(error))


def _text(error: Exception) -> str:
    """The error in words."""
    text = error.reply.get("exception_text") if isinstance(error, RemoteError) else None
    return text if isinstance(text, str) else repr(_plain(error))


def _plain(error: Exception) -> Exception:
    """An error that a stock client can open: none of our own classes."""
    if isinstance(error, RemoteError):
        return Exception(error.reply.get("exception_text"))
    return error
