"""The page of share groups and their clients. Importing this module imports bokeh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paceline.scheduler.core.inspection.share_report import SHARES_OFF, caps_text

from .tables import (
    COUNT,
    GIB_SECONDS,
    NBYTES,
    NUMBER,
    PERCENT,
    SECONDS,
    TEXT,
    Columns,
    Tables,
)

#: The sums that groups and clients have.
SUMS: Columns = {
    "tasks": ("tasks", COUNT),
    "finished": ("finished", COUNT),
    "thread_seconds": ("thread time [s]", SECONDS),
    "nbytes": ("memory", NBYTES),
    "gib_seconds": ("memory x time [GiB s]", GIB_SECONDS),
    "moved_nbytes": ("moved", NBYTES),
}
GROUP_COLUMNS: Columns = {
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
CLIENT_COLUMNS: Columns = {
    "group": ("group", TEXT),
    "client": ("client", TEXT),
    **SUMS,
}


class ShareTables(Tables):
    """A table of the share groups and a table of their clients."""

    columns = (GROUP_COLUMNS, CLIENT_COLUMNS)

    def update(self) -> None:
        """Show the current share report of the scheduler."""
        report = self.scheduler.share_report
        groups = report.get("groups", ())
        self.show(heading(report), group_rows(groups), client_rows(groups))


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
            "recent_seconds": each["usage"],
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
