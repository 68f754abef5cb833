"""``docs/compatibility.md``: every op, what the stock scheduler does and what paceline does, from the tables that run.

It must not know: what the ops mean.
"""

from __future__ import annotations

from classes import described
from paceline.protocol.catalogue import OPS, TABLES, Direction, Op
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import HANDLERS
from paceline.scheduler.extensions import default_extensions
from paceline.scheduler.server.rpc import build_handlers
from stock_places import Places, places

HEAD = """# Every op, in stock and here

What peers may send to a scheduler, who takes it in the stock scheduler (distributed 2026.8.0), and who takes it in paceline. Generated
from the tables that run: an op that nobody takes cannot be listed as served. What each op means is in [protocol.md](protocol.md).
"""
#: Ops of streams that go by way of the driver's children and flows, and those of stock's own shuffle plugin on the facade.
ELSEWHERE = {
    "update-graph": "the graph compiler, then the core",
    "update-data": "a flow",
    **dict.fromkeys(
        ("shuffle_get_or_create", "shuffle_get", "shuffle_barrier", "shuffle_restrict_task"),
        "stock's scheduler plugin, over the facade",
    ),
}
TITLES: dict[Direction, str] = {
    "worker_to_scheduler": "From workers, on their stream",
    "client_to_scheduler": "From clients, on their stream",
    "scheduler_rpc": "Requests",
}


def compatibility() -> str:
    """The page."""
    found = places(OPS)
    parts = [HEAD.strip()]
    for direction, title in TITLES.items():
        rows = [_row(op, found[op.name]) for op in sorted(TABLES[direction].values(), key=lambda op: op.name)]
        parts.append(f"## {title}\n\n| op | what it asks | stock | paceline |\n|---|---|---|---|\n" + "\n".join(rows))
    parts.append("## What paceline sends\n\n" + _sent())
    return "\n\n".join(parts) + "\n"


def _row(op: Op, where: Places) -> str:
    text = described(op.cls).text.split(". ")[0].rstrip(".").replace("|", "\\|").replace("\n", " ")
    stock = next((h for h in where.handled if not h.startswith(("worker.", "nanny.", "client."))), "")
    return f"| `{op.name}` | {text} | {f'`{stock}`' if stock else '-'} | {taken_by(op)} |"


def taken_by(op: Op) -> str:
    """Who takes an op here, by the tables that run."""
    if op.handler == "connection":
        return "the connection"
    if op.name in ELSEWHERE:
        return ELSEWHERE[op.name]
    machines = [m.name for m in default_extensions(SchedulerConfig()) if op.cls in m.handlers()]
    if machines:
        return f"the machine `{machines[0]}`"
    if op.cls in HANDLERS:
        return "the core"
    served = build_handlers()
    return "the server" if op.cls in served else "**not served:** an error that names the op"


def _sent() -> str:
    lines = ["Both send these, in the same forms:", ""]
    for direction in ("scheduler_to_worker", "scheduler_to_client"):
        names = ", ".join(f"`{name}`" for name in sorted(TABLES[direction]))  # type: ignore[index]
        lines.append(f"- {direction.replace('_', ' ')}: {names}")
    return "\n".join(lines)
