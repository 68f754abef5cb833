"""The page of ``distributed.performance_report``, which a child process draws."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any, Final

from paceline.protocol import messages as m
from paceline.scheduler.server.runtime import child_process
from paceline.scheduler.server.server_api import Handler, ServerApi
from paceline.workers_compat.dashboard.state_deltas import monitor_facts

from .diagnostics import profile, task_stream
from .handler_parts import calls

#: The module that draws.
CHILD: Final = "paceline.workers_compat.performance_report"
#: Time limit for drawing, seconds. A million tasks take about a minute.
DRAW_SECONDS: Final = 300.0
#: Characters of the child's errors that are sent to the client.
ERROR_TEXT_MAX: Final = 4000


async def performance_report(
    server: ServerApi, start: float, last_count: int = 0, code: str = "", mode: str | None = None
) -> str:
    """Return the HTML page.

    See ``messages.PerformanceReport`` for the arguments.

    Raises:
        RuntimeError: drawing failed, for example because bokeh is not installed.
        TimeoutError: drawing took too long.
    """
    stop = server.now()
    compute, own, administrative = await asyncio.gather(
        profile(server, start=start),
        profile(server, scheduler=True, start=start),
        profile(server, server_threads=True, start=start),
    )
    state = server.state
    monitor = server.plugins.facade.monitor
    # plots need a value, however short the time was, even if another process counted `last_count`
    monitor.update()
    facts = {
        "start": start,
        "stop": stop,
        "code": code,
        "mode": mode,
        "compute": compute,
        "administrative": administrative,
        "scheduler": own,
        "task_stream": list(task_stream(server).collect(start=start)),
        "bandwidth": state.bandwidth,
        "bandwidth_workers": dict(state.bandwidth_workers),
        "bandwidth_types": dict(state.bandwidth_types),
        "workers": {
            ws.address: {"name": ws.name, "nthreads": ws.nthreads, "memory_limit": ws.memory_limit}
            for ws in state.workers.values()
        },
        "monitor": monitor.range_query(start=min(last_count, monitor.count - 1)),
        "monitor_facts": monitor_facts(monitor),
        "logs": server.request_state.log.lines(start, timestamps=True),
        "address": server.scheduler.address,
    }
    async with server.request_state.drawing:
        return await draw(facts)


async def draw(facts: dict[str, Any]) -> str:
    """Return the page for the fields of ``ReportFacts``. Raises as ``performance_report``."""
    from paceline.workers_compat.performance_report import ReportFacts

    data = await asyncio.to_thread(pickle.dumps, ReportFacts(**facts), pickle.HIGHEST_PROTOCOL)
    code, html, errors = await child_process.run(CHILD, data, DRAW_SECONDS)
    if code:
        text = errors.decode(errors="replace")[-ERROR_TEXT_MAX:]
        raise RuntimeError(f"the performance report could not be drawn:\n{text}")
    return html.decode()


HANDLERS: dict[type, Handler] = {m.PerformanceReport: calls(performance_report)}
