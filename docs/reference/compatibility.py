"""Generate `docs/compatibility.md`: where both schedulers handle each operation."""

from __future__ import annotations

from classes import described
from paceline.protocol.catalogue import TABLES, Direction, Op
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import HANDLERS
from paceline.scheduler.extensions import default_extensions
from paceline.scheduler.server.requests import build_handlers
from stock_places import Places, places

HEAD = """# Operations in the stock scheduler and in paceline

The operations that peers may send to a scheduler, and what handles each in the stock scheduler
(distributed 2026.8.0) and in paceline. The page is generated from the tables of handlers.
[protocol.md](protocol.md) describes the operations.
"""
#: Operations of streams handled outside the core, and those of distributed's shuffle plugin.
ELSEWHERE = {
    "update-graph": "the graph compiler, then the core",
    "update-data": "the server",
    **dict.fromkeys(
        ("shuffle_get_or_create", "shuffle_get", "shuffle_barrier", "shuffle_restrict_task"),
        "distributed's shuffle plugin",
    ),
}
TITLES: dict[Direction, str] = {
    "worker_to_scheduler": "Messages of workers",
    "client_to_scheduler": "Messages of clients",
    "scheduler_rpc": "Requests",
}


def compatibility() -> str:
    """Return the page."""
    found = places(op for table in TABLES.values() for op in table)
    parts = [HEAD.strip()]
    for direction, title in TITLES.items():
        rows = [
            _row(op, found[op.name])
            for op in sorted(TABLES[direction].values(), key=lambda op: op.name)
        ]
        parts.append(
            f"## {title}\n\n| operation | purpose | stock | paceline |\n|---|---|---|---|\n"
            + "\n".join(rows)
        )
    parts.append("## Messages that paceline sends\n\n" + _sent())
    return "\n\n".join(parts) + "\n"


def _row(op: Op, where: Places) -> str:
    summary = described(op.cls).text.split("\n\n")[0]
    text = summary.split(". ")[0].rstrip(".").replace("|", "\\|")
    stock = next(
        (h for h in where.handled if not h.startswith(("worker.", "nanny.", "client."))), ""
    )
    return f"| `{op.name}` | {text} | {f'`{stock}`' if stock else '-'} | {taken_by(op)} |"


def taken_by(op: Op) -> str:
    """Return what handles `op` in paceline."""
    if op.is_connection:
        return "the connection"
    if op.name in ELSEWHERE:
        return ELSEWHERE[op.name]
    extensions = [e.name for e in default_extensions(SchedulerConfig()) if op.cls in e.handlers()]
    if extensions:
        return f"extension `{extensions[0]}`"
    if op.cls in build_handlers():  # before the core, in which some of its handlers send a stimulus
        return "the server"
    return "the core" if op.cls in HANDLERS else "**not supported:** an error"


def _sent() -> str:
    lines = ["The same messages as the stock scheduler:", ""]
    for direction in ("scheduler_to_worker", "scheduler_to_client"):
        names = ", ".join(f"`{name}`" for name in sorted(TABLES[direction]))  # type: ignore[index]
        lines.append(f"- {direction.replace('_', ' ')}: {names}")
    return "\n".join(lines)
