"""Functions that clients run in the scheduler (``Client.run_on_scheduler``). Opening their pickles is the point.

Must not know: what they do.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

from paceline.scheduler.core.stimuli import LogEventCommand
from paceline.workers_compat.errors import error_message
from paceline.workers_compat.unpickling import closed_result, is_coroutine_function, unpickle

from .ports import FlowServer

logger = logging.getLogger("distributed.scheduler")

#: Arguments are shown in the log up to this length, in characters.
SHOWN_ARGUMENTS_MAX = 1000


async def run_function(
    server: FlowServer,
    function: bytes,
    args: bytes | tuple[Any, ...] = (),
    kwargs: bytes | dict[str, Any] | None = None,
    wait: bool = True,
) -> dict[str, Any]:
    """Call a function in this process.

    Args:
        function, args, kwargs: pickled. Parameters ``dask_scheduler`` and ``dask_worker`` get the ``Scheduler`` object.
        wait: False runs a coroutine function in the background.

    Returns:
        ``{"status": "OK", "result": payload}``, or stock's error reply.

    Raises:
        Exception: what makes the pickles fail to open. AssertionError: ``wait`` is False for a plain function
        (``distributed.worker.run``: it is what clients of stock meet).
    """
    server.tell(LogEventCommand(["all"], {"action": "run-function", "function": function}))
    call = unpickle(function, "a function to run in it")
    is_coroutine = is_coroutine_function(call)
    if not wait and not is_coroutine:
        raise AssertionError("Combination not supported")
    positional = unpickle(args) if isinstance(args, bytes) and args else args
    named = dict((unpickle(kwargs) if isinstance(kwargs, bytes) else kwargs) or {})
    for parameter in ("dask_worker", "dask_scheduler"):
        if _has_parameter(call, parameter):
            named[parameter] = server.plugins.scheduler
    name = getattr(call, "__name__", None) or repr(call)
    logger.info("Run out-of-band function %r", name)
    try:
        if not wait:
            server.spawn(call(*positional, **named), f"function {name}")
            result = None
        else:
            result = call(*positional, **named)
            if is_coroutine:
                result = await result
        return {"status": "OK", "result": closed_result(result)}
    except Exception as error:
        logger.warning(
            "Run Failed\nFunction: %s\nargs:     %s\nkwargs:   %s\n",
            name[:SHOWN_ARGUMENTS_MAX],
            _shown(positional),
            _shown(named),
            exc_info=True,
        )
        return error_message(error)


def _has_parameter(function: Any, name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters


def _shown(value: Any) -> str:
    try:
        return repr(value)[:SHOWN_ARGUMENTS_MAX]
    except Exception as error:
        return f"<repr failed: {type(error).__name__}>"
