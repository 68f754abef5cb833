"""The page of ``distributed.performance_report``, drawn by stock's method from recorded facts.

Drawing takes seconds of processor time, so it runs in a process of its own: ``python -m
paceline.workers_compat.performance_report`` reads pickled ``ReportFacts`` and writes HTML.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import time
from dataclasses import dataclass, field
from html import escape
from types import SimpleNamespace
from typing import Any

from .dashboard.proxy_parts import MonitorProxy
from .facade.stock_calls import StockCoroutine


@dataclass
class ReportFacts:
    """The content of the page, as plain values.

    Attributes:
        start, stop: seconds since the epoch.
        mode: of bokeh's files: "cdn", "inline", ...; None for bokeh's configuration.
        compute, administrative, scheduler: profile trees of tasks, of the workers' event loops, and
            of the scheduler.
        workers: address -> name, nthreads and memory_limit.
        monitor, monitor_facts: quantity -> values over time, and other attributes that plots read.
        logs: (seconds since the epoch, level, line).
    """

    start: float
    stop: float
    code: str = ""
    mode: str | None = None
    compute: dict[str, Any] = field(default_factory=dict)
    administrative: dict[str, Any] = field(default_factory=dict)
    scheduler: dict[str, Any] = field(default_factory=dict)
    task_stream: list[dict[str, Any]] = field(default_factory=list)
    bandwidth: float = 0.0
    bandwidth_workers: dict[Any, float] = field(default_factory=dict)
    bandwidth_types: dict[str, float] = field(default_factory=dict)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    monitor: dict[str, list[Any]] = field(default_factory=dict)
    monitor_facts: dict[str, Any] = field(default_factory=dict)
    logs: list[tuple[Any, ...]] = field(default_factory=list)
    address: str = ""


class PastMonitor(MonitorProxy):
    """A monitor with recorded values."""

    def __init__(self, values: dict[str, list[Any]], facts: dict[str, Any]) -> None:
        super().__init__(read=lambda: None)
        count = max(map(len, values.values()), default=0)
        self.apply({"values": values, "facts": facts, "count": count})


def draw(facts: ReportFacts) -> str:
    """Return the page as HTML. Raises ImportError without bokeh."""
    from distributed.scheduler import Scheduler

    def get_profile(scheduler: bool = False, server: bool = False, **_: Any) -> StockCoroutine:
        profile = facts.administrative if server else facts.compute
        return StockCoroutine(facts.scheduler if scheduler else profile)

    recorded = SimpleNamespace(
        address=facts.address,
        workers={a: SimpleNamespace(address=a, **facts.workers[a]) for a in facts.workers},
        bandwidth=facts.bandwidth,
        bandwidth_workers=facts.bandwidth_workers,
        bandwidth_types=facts.bandwidth_types,
        monitor=PastMonitor(facts.monitor, facts.monitor_facts),
        get_profile=get_profile,
        get_task_stream=lambda **_: facts.task_stream,
        get_logs=lambda **_: facts.logs,
    )
    with asyncio.Runner() as runner:
        runner.get_loop()  # started before the time is read
        start = time.time() - (facts.stop - facts.start)  # the page shows the time since then
        report = Scheduler.performance_report(recorded, start, 0, escape(facts.code), facts.mode)
        return str(runner.run(report))


def main() -> int:
    """Read ``ReportFacts`` from standard input, and write HTML to standard output."""
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    facts = pickle.load(sys.stdin.buffer)
    html = draw(facts)
    with os.fdopen(out, "wb") as file:
        file.write(html.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
