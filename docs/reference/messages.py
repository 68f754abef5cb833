"""Generate ``docs/protocol.md``: the narrative, then every message of the catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from classes import Field, described, words
from compatibility import TITLES, taken_by
from paceline.protocol.catalogue import RPC_DIRECTIONS, TABLES, Direction, Op
from paceline.protocol.messages import replies
from paceline.protocol.messages.base import Request
from paceline.protocol.reply_values import VALUES
from stock_places import PLACES_MAX, Places, places

HERE = Path(__file__).parent
VECTORS = HERE.parent / "vectors"
#: Longer examples are truncated, characters.
EXAMPLE_MAX = 700

#: direction -> its title, and what applies to all its messages.
TABLE_TEXTS: dict[Direction, tuple[str, str]] = {
    "worker_to_scheduler": (
        "Worker to scheduler",
        "In batches on the stream that `register-worker` opened (phase `worker-stream`). The "
        "stream identifies the worker, so messages do not name it. None has a reply. The "
        "scheduler logs and skips messages with an unknown operation or a field of a wrong "
        "type, and handles the rest of the batch.",
    ),
    "scheduler_to_worker": (
        "Scheduler to worker",
        "In batches on the same stream. A stock worker turns most of them into events of its "
        "state machine, in order. None has a reply; results arrive as messages of the other "
        "direction. A stock worker that receives an unknown operation or an extra field logs "
        "an error and closes: send only what is listed here.",
    ),
    "client_to_scheduler": (
        "Client to scheduler",
        "In batches on the stream that `register-client` opened (phase `client-stream`). None "
        "has a reply. If a graph fails, the client receives `task-erred` for each requested "
        "key.",
    ),
    "scheduler_to_client": (
        "Scheduler to client",
        "In batches on the same stream. The first one is `stream-start`.",
    ),
    "scheduler_rpc": (
        "Requests to the scheduler",
        "On a connection in phase `rpc`, one request at a time; the reply is the next "
        "message. Clients, workers, nannies and tools send them.",
    ),
    "worker_rpc": (
        "Requests to a worker",
        "On a connection to the worker's own address. The scheduler, clients with direct "
        "connections, and other workers send them.",
    ),
    "nanny_rpc": ("Requests to a nanny", "On a connection to the nanny's address."),
}


def protocol() -> str:
    """Return the page."""
    parts = [path.read_text().strip() for path in sorted((HERE / "narrative").glob("*.md"))]
    found = places(op for table in TABLES.values() for op in table)
    since: dict[str, str] = json.loads((HERE / "since.json").read_text())
    parts.append("## Every message\n\n" + _contents())
    for direction, table in TABLES.items():
        title, text = TABLE_TEXTS[direction]
        parts.append(f"## {title}\n\n{text}")
        if direction == "scheduler_rpc":
            parts.append(
                "Every request may have these additional fields:\n\n"
                + _table(described(Request).fields, since)
            )
        parts += [
            _op(op, found[op.name], since) for op in sorted(table.values(), key=lambda op: op.name)
        ]
    parts.append("## Structured replies\n\n" + _replies(since))
    return "\n\n".join(parts) + "\n"


def _contents() -> str:
    lines = []
    for direction, table in TABLES.items():
        names = ", ".join(f"[`{name}`](#{anchor(direction, name)})" for name in sorted(table))
        lines.append(f"- **{TABLE_TEXTS[direction][0]}** ({len(table)}): {names}")
    return "\n".join(lines)


def anchor(direction: str, op: str) -> str:
    """Return the anchor of an operation on the page."""
    return f"{direction}-{op}".replace("_", "-").lower()


def _op(op: Op, where: Places, since: dict[str, str]) -> str:
    about = described(op.cls)
    parts = [
        f'<a id="{anchor(op.direction, op.name)}"></a>\n\n### `{op.name}`' + _new(op.name, since),
        about.text,
    ]
    if about.fields:
        parts.append(_table(about.fields, since))
    elif op.direction not in RPC_DIRECTIONS:
        parts.append("No fields.")
    if op.direction in RPC_DIRECTIONS:
        parts.append(_reply(op, about.returns))
    parts.append(_stock(op, where))
    example = _example(op.direction, op.name, "message")
    if example:
        parts.append(example)
    answer = _example(op.direction, op.name, "reply")
    if answer:
        parts.append("Its reply:\n\n" + answer)
    return "\n\n".join(part for part in parts if part)


def _reply(op: Op, returns: str) -> str:
    if op.reply is not None:
        text = f"**Reply:** [{op.reply.__name__}](#{op.reply.__name__.lower()})."
        return f"{text} {returns}" if returns else text
    if op.cls not in VALUES:
        return f"**Reply:** {returns}" if returns else "**Reply:** none."
    kind = words(VALUES[op.cls])
    return (
        f"**Reply** (*{kind}*): {returns}" if returns and kind != "nil" else f"**Reply:** {kind}."
    )


def _stock(op: Op, where: Places) -> str:
    """Return a sentence on where stock sends and handles `op` in its direction."""
    server = {"scheduler_rpc": "scheduler", "worker_rpc": "worker", "nanny_rpc": "nanny"}.get(
        op.direction, ""
    )
    handled = list(where.handled)
    if server in ("worker", "nanny"):
        handled = [h for h in handled if h.startswith((server, "core", "shuffle"))]
    elif server:
        handled = [h for h in handled if not h.startswith(("worker.", "nanny.", "client."))]
    sent = ", ".join(f"`{name}`" for name in list(where.sent)[:PLACES_MAX])
    handlers = ", ".join(f"`{name}`" for name in handled[:PLACES_MAX])
    words = [f"sent by {sent}" if sent else "", f"handled by {handlers}" if handlers else ""]
    text = "; ".join(word for word in words if word)
    parts = [f"*Stock:* {text}." if text else ""]
    if op.direction in TITLES:
        parts.append(f"*paceline:* handled by {taken_by(op)}.")
    return " ".join(part for part in parts if part)


def _table(fields: tuple[Field, ...], since: dict[str, str]) -> str:
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in fields:
        absent = "**required**" if field.default is None else f"`{field.default}`"
        kind = field.type + (", offloaded" if field.place == "offloaded" else "")
        meaning = field.meaning.replace("|", "\\|") + _new(field.name, since)
        lines.append(f"| `{field.name}` | {kind} | {absent} | {meaning} |")
    return "\n".join(lines)


def _new(word: str, since: dict[str, str]) -> str:
    return f" *(since {since[word]})*" if word in since else ""


def _replies(since: dict[str, str]) -> str:
    parts = []
    for name, cls in sorted(vars(replies).items()):
        if isinstance(cls, type) and issubclass(cls, replies.Reply) and cls is not replies.Reply:
            about = described(cls)
            parts.append(
                f'<a id="{name.lower()}"></a>\n\n### {name}\n\n{about.text}\n\n'
                + _table(about.fields, since)
            )
    return "\n\n".join(parts)


def _example(direction: str, op: str, kind: str) -> str:
    """Return a captured message as JSON, shortened."""
    stem = op if kind == "message" else f"{op}.{kind}"
    path = VECTORS / direction / f"{stem}.json"
    if not path.exists() or (direction, stem) not in _captured():
        return ""
    text = json.dumps(
        _short(json.loads(path.read_text())), separators=(", ", ": "), ensure_ascii=False
    )
    if len(text) > EXAMPLE_MAX:
        text = text[:EXAMPLE_MAX] + " ..."
    return f"```json\n{text}\n```"


def _captured() -> set[tuple[str, str]]:
    index: dict[str, Any] = msgspec.json.decode((VECTORS / "index.json").read_bytes())
    return {tuple(e["vector"].split("/", 1)) for e in index["vectors"] if e["source"] == "captured"}


def _short(value: Any) -> Any:
    """Return `value` with long strings shortened."""
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_short(inner) for inner in value]
    if isinstance(value, str) and len(value) > 80:
        return f"{value[:40]}...({len(value)} characters)"
    return value
