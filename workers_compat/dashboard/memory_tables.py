"""The page of what tasks are expected to take in memory. Importing this module imports bokeh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bokeh.layouts import column
from bokeh.models import ColumnDataSource
from bokeh.models.widgets.markups import Div
from distributed.dashboard.components import DashboardComponent
from paceline.scheduler.core.inspection.memory_report import ADMISSION_OFF

from .tables import COUNT, NBYTES, PERCENT, TEXT, column_data, make_table

#: Field -> (title, format) of the columns of the table of prefixes.
PREFIX_COLUMNS: dict[str, tuple[str, str]] = {
    "name": ("prefix", TEXT),
    "task_nbytes": ("expected of a task", NBYTES),
    "result_nbytes": ("mean result", NBYTES),
    "peak_nbytes": ("while running", NBYTES),
    "queued": ("queued", COUNT),
    "processing": ("processing", COUNT),
    "memory": ("in memory", COUNT),
}
#: The same for the columns of the table of workers.
WORKER_COLUMNS: dict[str, tuple[str, str]] = {
    "name": ("worker", TEXT),
    "status": ("status", TEXT),
    "used": ("expected of limit", PERCENT),
    "limit_nbytes": ("limit", NBYTES),
    "expected_nbytes": ("expected", NBYTES),
    "idle_nbytes": ("idle process", NBYTES),
    "results_nbytes": ("results", NBYTES),
    "tasks_nbytes": ("tasks it was sent", NBYTES),
    "free_nbytes": ("left", NBYTES),
    "processing": ("processing", COUNT),
}


class MemoryTables(DashboardComponent):
    """Tables of what tasks of each prefix take and of what workers are expected to use."""

    def __init__(self, scheduler: Any, **options: Any) -> None:
        self.scheduler = scheduler
        self.heading = Div(text="", width_policy="max")
        self.source = ColumnDataSource({name: [] for name in PREFIX_COLUMNS})
        self.worker_source = ColumnDataSource({name: [] for name in WORKER_COLUMNS})
        tables = [
            make_table(self.source, PREFIX_COLUMNS),
            make_table(self.worker_source, WORKER_COLUMNS),
        ]
        self.root = column(self.heading, *tables, **options)

    def update(self) -> None:
        """Show the current memory report of the scheduler."""
        report = self.scheduler.memory_report
        workers = [
            {**each, "used": each["expected_nbytes"] / max(1, each["limit_nbytes"])}
            for each in report.get("workers", ())
        ]
        self.heading.text = heading(report)
        self.source.data = column_data(PREFIX_COLUMNS, report.get("prefixes", []))
        self.worker_source.data = column_data(WORKER_COLUMNS, workers)


def heading(report: Mapping[str, Any]) -> str:
    """Return a line about the memory report `report`; "" before the first one."""
    if not report:
        return ""
    if not report["share"]:
        return ADMISSION_OFF
    if not report["is_short"]:
        text = "No worker is short of memory."
    elif report["waiting"]:
        text = f"{report['waiting']} queued tasks wait for memory of workers."
    else:
        text = "Workers may run short of memory: tasks are sent only where they fit."
    text += (
        f" Workers are sent tasks up to {report['share']:.0%} of their memory limit; "
        f"{report['recalled']} were asked back."
    )
    for name in ("prefixes", "workers"):
        if len(report[name]) < report[f"n_{name}"]:
            text += f" {len(report[name])} of {report[f'n_{name}']} {name} are shown."
    return text
