"""Generate `docs/configuration.md`: the keys of Dask's configuration that a scheduler accepts."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from itertools import groupby
from typing import Any

import dask.config
import distributed  # noqa: F401  (its defaults join dask's configuration when it is imported)
from dask.utils import format_bytes
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.server.durable.channel.progress import HANG_SECONDS
from paceline.scheduler.server.durable.durability import STANDBY_TURNS
from paceline.scheduler.server.http.start import JUPYTER_BODY_NBYTES
from paceline.scheduler.server.peers.slow_peers import UNREAD_SECONDS
from paceline.scheduler.server.requests.dump import DUMP_SECONDS
from paceline.workers_compat.config.config import GRAPH_COMPILER_TIMEOUT
from paceline.workers_compat.config.schema import PACELINE, STOCK, WITHOUT_EFFECT
from paceline.workers_compat.config.value_types import ValueType
from paceline.workers_compat.security.http_connections import HttpLimits

HEAD = """# Configuration

The keys of [Dask's configuration](https://docs.dask.org/en/stable/configuration.html) that a
scheduler reads. Set them in YAML files, with `dask.config.set`, or as environment variables:
`paceline.scheduler.retire-running` is `DASK_PACELINE__SCHEDULER__RETIRE_RUNNING`. They are read
when the scheduler starts. An invalid value stops the start, with an error that names the key, the
origin of the value and what is accepted. An unknown key of `paceline`, `distributed.scheduler` or
`distributed.comm` causes a warning.

A duration is a text such as `5 minutes` or `500ms`, or a number of seconds; for some keys of
distributed it is a number of milliseconds, as with stock. A size is a text such as `10 MiB`, or a
number of bytes. An empty value means the default. The page is generated from the schema
(`make reference`).

## Keys of paceline
"""
STOCK_HEAD = """## Keys of distributed

These have the same meaning as with the stock scheduler, but `distributed.comm.timeouts.tcp` applies
only to keepalive probes ([differences](differences.md)). The defaults are those of distributed
2026.8.0. The scheduler also reads `temporary-directory`, `scheduler-address` (its commands) and the
options of the dashboard (`distributed.scheduler.dashboard`).
"""
WITHOUT_HEAD = """## Keys without effect

The scheduler accepts these keys of distributed, but does not use them. Workers and clients use some
of them. Schemes that other packages register use distributed's code, which reads those of
`distributed.comm`.
"""


def configuration() -> str:
    """Return the page."""
    defaults = _defaults()
    parts = [HEAD.strip()]
    for section, keys in groupby(sorted(PACELINE), _section):
        rows = [
            f"| `{key}` | {_accepted(PACELINE[key][0])} | {defaults.get(key, '-')} | "
            f"{PACELINE[key][1]} |"
            for key in keys
        ]
        head = "| key | value | default | meaning |\n|---|---|---|---|\n"
        parts.append(f"### {section}\n\n{head}" + "\n".join(rows))
    stock = dask.config.merge(*dask.config.defaults)
    rows = [
        f"| `{key}` | {_accepted(STOCK[key])} | {_plain(dask.config.get(key, None, stock))} |"
        for key in sorted(STOCK.keys() - WITHOUT_EFFECT)
    ]
    parts.append(f"{STOCK_HEAD}\n| key | value | default |\n|---|---|---|\n" + "\n".join(rows))
    parts.append(f"{WITHOUT_HEAD}\n" + "\n".join(f"- `{key}`" for key in sorted(WITHOUT_EFFECT)))
    return "\n\n".join(parts) + "\n"


def _section(key: str) -> str:
    parts = key.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else "Others"


def _accepted(value_type: ValueType) -> str:
    """Return the description of a type without its examples."""
    return value_type.description.split(", as ")[0]


def _defaults() -> dict[str, str]:
    """Return the default of each key of paceline that has one, as text."""
    limits = HttpLimits()
    found = {
        "paceline.graph-compiler.accelerators": "true",
        "paceline.graph-compiler.memory-limit": "half of the memory of the machine or container",
        "paceline.graph-compiler.timeout": GRAPH_COMPILER_TIMEOUT,
        "paceline.http.body-size": f"{_size(limits.body_nbytes)}; "
        f"{_size(JUPYTER_BODY_NBYTES)} with `--jupyter`",
        "paceline.http.connections": f"{limits.connections:,}",
        "paceline.http.idle-timeout": _duration(limits.idle_seconds),
        "paceline.scheduler.dump-timeout": _duration(DUMP_SECONDS),
        "paceline.scheduler.hang-timeout": _duration(HANG_SECONDS),
        "paceline.scheduler.standby-turns": f"{STANDBY_TURNS:,}",
        "paceline.scheduler.task-peaks": "false",
        "paceline.scheduler.unread-timeout": _duration(UNREAD_SECONDS),
        "paceline.scheduler.worker-ends": "true",
        "paceline.security.unpickle": "true",
    }
    for setting in fields(SchedulerConfig):
        key = setting.metadata.get("dask")
        if key in PACELINE and setting.default is not MISSING:
            unit = setting.name.rpartition("_")[2]
            to_text = {"seconds": _duration, "nbytes": _size}.get(unit, json.dumps)
            found[key] = to_text(setting.default)
    return found


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    if minutes == 0 or rest:
        return f"{seconds:g} s"
    return f"{minutes:g} minute{'s' * (minutes != 1)}"


def _size(nbytes: int) -> str:
    return format_bytes(nbytes).replace(".00 ", " ")


def _plain(value: Any) -> str:
    """Return a default of distributed as text."""
    if value is None or value in ([], {}):
        return "-"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
