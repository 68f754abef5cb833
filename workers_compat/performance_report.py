"""The page of ``distributed.performance_report``, drawn with distributed's components.

Drawing takes seconds of processor time, so it runs in a process of its own: ``python -m
paceline.workers_compat.performance_report`` reads pickled ``ReportFacts`` and writes HTML. The tabs
are those of stock's ``Scheduler.performance_report``.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TITLE = "Dask Performance Report"
SIZING: Any = "stretch_both"


@dataclass
class ReportFacts:
    """What the page shows, as plain values.

    Attributes:
        start, stop: seconds since the epoch.
        code: source of the client.
        mode: of bokeh's files: "cdn", "inline", ...; None for bokeh's configuration.
        compute, administrative, scheduler: profile trees of tasks, of the workers' event loops, and
            of the scheduler.
        task_stream: records of finished tasks.
        bandwidth: bytes per second between workers.
        bandwidth_workers, bandwidth_types: the same by pair of workers and by type.
        worker_names: address -> name.
        monitor: quantity -> values over time, of the scheduler's process.
        monitor_facts: further attributes of the monitor that its plots read.
        logs: (seconds since the epoch, level, line) of the scheduler's log.
        memory: bytes of all workers.
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
    worker_names: dict[str, Any] = field(default_factory=dict)
    monitor: dict[str, list[Any]] = field(default_factory=dict)
    monitor_facts: dict[str, Any] = field(default_factory=dict)
    logs: list[tuple[Any, ...]] = field(default_factory=list)
    address: str = ""
    nworkers: int = 0
    nthreads: int = 0
    memory: int = 0


class PastMonitor:
    """distributed's ``SystemMonitor`` as its plots read it, with recorded values."""

    def __init__(self, values: dict[str, list[Any]], facts: dict[str, Any]) -> None:
        self.quantities = values
        self.count = max(map(len, values.values()), default=0)
        vars(self).update(facts)

    def range_query(self, start: int) -> dict[str, list[Any]]:
        # copies, because the plots change them
        return {name: values[start:] for name, values in self.quantities.items()}

    def update(self) -> None:
        """Do nothing: the values are recorded."""


def draw(facts: ReportFacts) -> str:
    """Return the page as HTML. Raises ImportError without bokeh."""
    from bokeh.models import Div, TabPanel, Tabs  # type: ignore[attr-defined]
    from distributed.dashboard.components import scheduler as parts
    from distributed.dashboard.components.scheduler import _STYLES
    from distributed.dashboard.components.shared import SystemMonitor

    scheduler = SimpleNamespace(
        monitor=PastMonitor(facts.monitor, facts.monitor_facts),
        bandwidth=facts.bandwidth,
        bandwidth_workers=facts.bandwidth_workers,
        bandwidth_types=facts.bandwidth_types,
        workers={
            a: SimpleNamespace(address=a, name=name) for a, name in facts.worker_names.items()
        },
        get_logs=lambda **_: facts.logs,
    )
    by_workers = parts.BandwidthWorkers(scheduler, sizing_mode=SIZING)
    by_workers.update()
    by_types = parts.BandwidthTypes(scheduler, sizing_mode=SIZING)
    by_types.update()
    system = SystemMonitor(scheduler, last_count=0, sizing_mode=SIZING)
    system.update()
    tabs = {
        "Summary": Div(text=summary(facts), styles=_STYLES),
        "Task Stream": _task_stream(facts),
        "System": system.root,
        "Scheduler Logs": parts.SchedulerLogs(scheduler, start=facts.start).root,
        "Worker Profile (compute)": _profile(facts.compute),
        "Worker Profile (administrative)": _profile(facts.administrative),
        "Scheduler Profile (administrative)": _profile(facts.scheduler),
        "Bandwidth (Workers)": by_workers.root,
        "Bandwidth (Types)": by_types.root,
    }
    panels = [TabPanel(child=child, title=title) for title, child in tabs.items()]
    return _page(Tabs(tabs=panels, sizing_mode=SIZING), facts.mode)


def summary(facts: ReportFacts) -> str:
    """Return the HTML of the first tab: tasks, cluster, and the client's source."""
    import dask
    import distributed
    from dask.utils import format_bytes, format_time

    spent: defaultdict[str, float] = defaultdict(float)
    for record in facts.task_stream:
        for each in record["startstops"]:
            spent[each["action"]] += each["stop"] - each["start"]
    tasks = [f"number of tasks: {len(facts.task_stream)}"]
    tasks += [f"{action} time: {format_time(spent[action])}" for action in sorted(spent)]
    cluster = [
        f"Address: {facts.address}",
        f"Workers: {facts.nworkers}",
        f"Threads: {facts.nthreads}",
        f"Memory: {format_bytes(facts.memory)}",
        f"Dask Version: {dask.__version__}",
        f"Dask.Distributed Version: {distributed.__version__}",
    ]
    return "\n".join(
        (
            f"<h1> {TITLE} </h1>",
            "<i> Select different tabs on the top for additional information </i>",
            f"<h2> Duration: {format_time(facts.stop - facts.start)} </h2>",
            f"<h2> Tasks Information </h2>\n{_listed(tasks)}",
            f"<h2> Scheduler Information </h2>\n{_listed(cluster)}",
            f"<h2> Calling Code </h2>\n<pre>\n{escape(facts.code)}\n</pre>",
        )
    )


def _listed(lines: list[str]) -> str:
    items = "\n".join(f" <li> {escape(line)} </li>" for line in lines)
    return f"<ul>\n{items}\n</ul>"


def _profile(tree: dict[str, Any]) -> Any:
    from distributed import profile

    figure, _ = profile.plot_figure(profile.plot_data(tree), sizing_mode=SIZING)
    return figure


def _task_stream(facts: ReportFacts) -> Any:
    from distributed.dashboard.components.scheduler import task_stream_figure
    from distributed.diagnostics.task_stream import rectangles

    source, figure = task_stream_figure(sizing_mode=SIZING)
    source.data.update(rectangles(facts.task_stream))
    return figure


def _page(tabs: Any, mode: Any) -> str:
    """Return the tabs as a self-contained HTML page in distributed's template."""
    import distributed
    from bokeh.core.templates import get_env
    from bokeh.plotting import output_file, save

    templates = Path(distributed.__file__).parent / "dashboard" / "templates"
    environment: Any = get_env()
    environment.loader.searchpath.append(str(templates))
    template = environment.get_template("performance_report.html")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.html")
        output_file(filename=path, title=TITLE, mode=mode)
        save(tabs, filename=path, template=template)
        return Path(path).read_text()


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
