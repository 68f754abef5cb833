"""The page of share groups and their clients. Importing this module imports bokeh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bokeh.layouts import column
from bokeh.models import ColumnDataSource
from bokeh.models.widgets.markups import Div
from distributed.dashboard.components import DashboardComponent
from paceline.scheduler.core.inspection.share_report import SHARES_OFF, caps_text

from .tables import (
    COUNT,
    GIB_SECONDS,
    NBYTES,
    NUMBER,
    PERCENT,
    SECONDS,
    TEXT,
    column_data,
    make_table,
)

#: Field -> (title, format) of the sums that groups and clients have.
SUMS: dict[str, tuple[str, str]] = {
    "tasks": ("tasks", COUNT),
    "finished": ("finished", COUNT),
    "thread_seconds": ("thread time [s]", SECONDS),
    "nbytes": ("memory", NBYTES),
    "gib_seconds": ("memory x time [GiB s]", GIB_SECONDS),
    "moved_nbytes": ("moved", NBYTES),
}
#: The same for the columns of the table of groups.
GROUP_COLUMNS: dict[str, tuple[str, str]] = {
    "group": ("group", TEXT),
    "weight": ("weight", NUMBER),
    "class": ("class", COUNT),
    "caps": ("caps", TEXT),
    "share": ("share of use", PERCENT),
    "recent_seconds": ("recent use [s]", SECONDS),
    "processing": ("processing", COUNT),
    "queued": ("queued", COUNT),
    "waits_for": ("waits for", TEXT),
    **SUMS,
}
#: The same for the columns of the table of clients.
CLIENT_COLUMNS: dict[str, tuple[str, str]] = {
    "group": ("group", TEXT),
    "client": ("client", TEXT),
    **SUMS,
}


class ShareTables(DashboardComponent):
    """A table of the share groups and a table of their clients."""

    def __init__(self, scheduler: Any, **options: Any) -> None:
        self.scheduler = scheduler
        self.heading = Div(text="", width_policy="max")
        self.source = ColumnDataSource({name: [] for name in GROUP_COLUMNS})
        self.client_source = ColumnDataSource({name: [] for name in CLIENT_COLUMNS})
        tables = [
            make_table(self.source, GROUP_COLUMNS),
            make_table(self.client_source, CLIENT_COLUMNS),
        ]
        self.root = column(self.heading, *tables, **options)

    def update(self) -> None:
        """Show the current share report of the scheduler."""
        report = self.scheduler.share_report
        groups = report.get("groups", ())
        self.heading.text = heading(report)
        self.source.data = column_data(GROUP_COLUMNS, group_rows(groups))
        self.client_source.data = column_data(CLIENT_COLUMNS, client_rows(groups))


def heading(report: Mapping[str, Any]) -> str:
    """Return a line about all groups of the share report `report`; "" before the first one."""
    if not report:
        return ""
    if not report["enabled"]:
        return SHARES_OFF
    groups = report["groups"]
    n_waiting = sum(bool(each["waits_for"]) for each in groups)
    shown = f", {len(groups)} of them shown" if len(groups) < report["n_groups"] else ""
    return (
        f"{report['n_groups']} groups{shown}, {n_waiting} with queued tasks. "
        f"Recent use halves every {report['half_life_seconds']:g} s."
    )


def group_rows(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return field -> value for each of `groups`, as ``GROUP_COLUMNS`` names them.

    "share" is the part of the recent thread-seconds of all groups.
    """
    rows = [
        {
            "group": each["name"],
            "weight": each["settings"]["weight"],
            "class": each["settings"]["class"],
            "caps": caps_text(each["settings"]),
            "recent_seconds": each["usage"] * each["settings"]["weight"],
            "processing": each["processing"],
            "queued": each["queued"],
            "waits_for": each["waits_for"],
            **_sums(each),
        }
        for each in groups
    ]
    total = sum(row["recent_seconds"] for row in rows)
    for row in rows:
        row["share"] = row["recent_seconds"] / total if total else 0.0
    return rows


def client_rows(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return field -> value for each client of `groups`, as ``CLIENT_COLUMNS`` names them."""
    return [
        {"group": each["name"], "client": client["client"], **_sums(client)}
        for each in groups
        for client in each["clients"]
    ]


def _sums(each: Mapping[str, Any]) -> dict[str, Any]:
    names = ("tasks", "finished", "thread_seconds", "nbytes", "moved_nbytes")
    return {"gib_seconds": each["byte_seconds"] / 2**30, **{name: each[name] for name in names}}
