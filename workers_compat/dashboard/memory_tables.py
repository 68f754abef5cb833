"""The page of what tasks are expected to take in memory. Importing this module imports bokeh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.scheduler.core.inspection.memory_report import ADMISSION_OFF

from .tables import COUNT, NBYTES, PERCENT, TEXT, Columns, Tables

PREFIX_COLUMNS: Columns = {
    "name": ("prefix or group", TEXT),
    "task_nbytes": ("expected of a task", NBYTES),
    "result_nbytes": ("mean result", NBYTES),
    "peak_nbytes": ("while running", NBYTES),
    "queued": ("queued", COUNT),
    "processing": ("processing", COUNT),
    "memory": ("in memory", COUNT),
}
WORKER_COLUMNS: Columns = {
    "name": ("worker", TEXT),
    "status": ("status", TEXT),
    "used": ("expected of allowed", PERCENT),
    "limit_nbytes": ("limit", NBYTES),
    "allowed_nbytes": ("allowed", NBYTES),
    "expected_nbytes": ("expected", NBYTES),
    "idle_nbytes": ("idle process", NBYTES),
    "results_nbytes": ("results", NBYTES),
    "tasks_nbytes": ("tasks it was sent", NBYTES),
    "free_nbytes": ("left", NBYTES),
    "processing": ("processing", COUNT),
}


class MemoryTables(Tables):
    """Tables of what tasks of each prefix take and of what workers are expected to use."""

    columns = (PREFIX_COLUMNS, WORKER_COLUMNS)

    def update(self) -> None:
        """Show the current memory report of the scheduler."""
        report = self.scheduler.memory_report
        workers = [
            {**each, "used": each["expected_nbytes"] / max(1, each["allowed_nbytes"])}
            for each in report.get("workers", ())
        ]
        self.show(heading(report), report.get("prefixes", []), workers)


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
