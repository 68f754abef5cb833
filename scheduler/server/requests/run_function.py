"""Functions that clients run in the scheduler: ``Client.run_on_scheduler`` and feeds.

These requests deserialize pickles of the client by design.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Set
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.server.peers.peer import Peer
from paceline.scheduler.server.server_api import NO_REPLY, Handler, NoReply, ServerApi
from paceline.workers_compat.config import config
from paceline.workers_compat.errors import error_message
from paceline.workers_compat.security.unpickling import (
    is_coroutine_function,
    serialize_result,
    unpickle,
)

from .handler_parts import calls

logger = logging.getLogger("distributed.scheduler")

#: Longest text of the arguments in a log line, in characters.
SHOWN_ARGUMENTS_MAX = 1000
#: Shortest interval of a feed, in seconds; a shorter one would block the event loop.
INTERVAL_MIN_SECONDS = 0.01


async def run_function(
    server: ServerApi,
    function: bytes,
    args: bytes | tuple[Any, ...] = (),
    kwargs: bytes | dict[str, Any] | None = None,
    wait: bool = True,
    serializers: list[str] | None = None,
) -> dict[str, Any]:
    """Call a function in this process.

    Return ``{"status": "OK", "result": payload}`` or stock's error reply. The result is serialized
    with one of `serializers`.

    See ``messages.RunFunction`` for the arguments. The parameters
    ``dask_scheduler`` and ``dask_worker`` of the function receive the ``Scheduler`` object.

    Raises:
        Exception: a pickle cannot be loaded.
        AssertionError: ``wait`` is False for a plain function, as in ``distributed.worker.run``.
    """
    server.log_event(["all"], {"action": "run-function", "function": function})
    call = unpickle(function, "a function to run in it")
    is_coroutine = is_coroutine_function(call)
    if not wait and not is_coroutine:
        raise AssertionError("Combination not supported")
    positional = unpickle(args) if isinstance(args, bytes) and args else args
    named = dict((unpickle(kwargs) if isinstance(kwargs, bytes) else kwargs) or {})
    with contextlib.suppress(TypeError, ValueError):  # a callable without a signature
        given = inspect.signature(call).parameters.keys() & {"dask_worker", "dask_scheduler"}
        named.update(dict.fromkeys(given, server.plugins.scheduler))
    name = getattr(call, "__name__", None) or repr(call)
    logger.info("Run out-of-band function %r", name)

    async def run() -> Any:
        known = set(server.plugins.by_name)
        try:
            result = call(*positional, **named)
            return await result if is_coroutine else result
        finally:
            _warn_of_plugins(server, name, known)

    try:
        result = None
        if wait:
            result = await run()
        else:
            server.spawn(run(), f"function {name}")
        return {"status": "OK", "result": serialize_result(result, serializers)}
    except Exception as error:
        logger.warning(
            "Run Failed\nFunction: %s\nargs:     %s\nkwargs:   %s\n",
            name[:SHOWN_ARGUMENTS_MAX],
            _shown(positional),
            _shown(named),
            exc_info=True,
        )
        return error_message(error)


def _shown(value: Any) -> str:
    try:
        return repr(value)[:SHOWN_ARGUMENTS_MAX]
    except Exception as error:
        return f"<repr failed: {type(error).__name__}>"


async def handle_feed(server: ServerApi, request: m.Feed, peer: Peer) -> NoReply:
    """Call the client's function at an interval and send each result, until the connection is lost.

    Stock's progress bars use feeds. The functions receive the ``Scheduler`` object.

    Raises:
        Exception: a function raised it, or its pickle cannot be loaded.
    """
    if not request.function:
        raise TypeError("a feed needs a function")
    what = "the functions of a feed"
    function = unpickle(request.function, what)
    setup = unpickle(request.setup, what) if request.setup else None
    teardown = unpickle(request.teardown, what) if request.teardown else None
    scheduler = server.plugins.scheduler
    interval = max(config.seconds(request.interval) or 1.0, INTERVAL_MIN_SECONDS)
    state: Any = setup(scheduler) if setup is not None else None
    if inspect.isawaitable(state):
        state = await state
    try:
        while not peer.closed:
            peer.send(function(scheduler) if state is None else function(scheduler, state))
            await peer.drained()
            await asyncio.sleep(interval)
    finally:
        if teardown is not None:
            teardown(scheduler, state)
    return NO_REPLY


def _warn_of_plugins(server: ServerApi, function: str, known: Set[str]) -> None:
    """Warn that a durable scheduler has no pickles of plugins that a function has added."""
    recorder = server.recorder
    added = server.plugins.by_name.keys() - known
    names = [name for name in sorted(added) if not recorder.is_continued("scheduler", name)]
    if names and recorder.is_durable:
        logger.warning(
            "Function %r has added the scheduler plugins %s, which are lost if the scheduler "
            "process dies; add them with Client.register_plugin instead",
            function,
            ", ".join(names),
        )


HANDLERS: dict[type, Handler] = {
    m.RunFunction: calls(run_function, shield=True),
    m.Feed: handle_feed,
}
