"""``paceline explain``: request the facts from a running scheduler and print them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import click
from paceline.protocol.messages import Explain
from paceline.scheduler.core.inspection.dump import jsonable
from paceline.scheduler.core.text import count, format_duration, format_key, join_names

from .options import json_option, read_key, read_number_or_bytes, scheduler_address, timeout_option
from .rpc_client import call_paceline, printable


@click.command("explain")
@click.argument("key", required=False)
@scheduler_address()
@json_option
@timeout_option(30.0)
def command(key: str | None, address: str, as_json: bool, timeout: float) -> None:
    """Report why the task KEY does not run; without KEY, report what delays the cluster."""
    found = call_paceline(address, Explain(key=read_key(key)), timeout)
    if key is not None and found["state"] is None:
        other = read_number_or_bytes(key)
        if other is not None:
            second = call_paceline(address, Explain(key=other), timeout)
            found = second if second["state"] or second["story"] else found
    if as_json:
        click.echo(json.dumps(jsonable(found), indent=2))
    else:
        lines = cluster_lines(found) if key is None else task_lines(found)
        click.echo("\n".join(map(printable, lines)))


def task_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the lines for a task: its state and since when, the cause, details, and its story."""
    key = found["key"] if isinstance(found["key"], str) else repr(found["key"])
    state = found["state"] or "unknown"
    since = found.get("since")
    out = [f"{key}: {state}{'' if since is None else f' since {clock(since)}'}", ""]
    first, *rest = found["words"]
    out += [first, *(f"  {line}" for line in rest)]
    if found["story"]:
        out += ["", "Story:"]
    for each, start, finish, recommended, cause, seconds in found["story"]:
        more = f", then {len(recommended)} more" if recommended else ""
        name = "" if each == found["key"] else f"{each!r}: "
        out.append(f"  {clock(seconds)}  {name}{start} -> {finish}{more}  ({cause})")
    return out


def cluster_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the lines for the cluster: workers, tasks, and what delays them."""
    cluster = found["cluster"]
    statuses = ", ".join(f"{n} {status}" for status, n in cluster["statuses"].items())
    out = [
        f"Workers: {cluster['workers']} ({statuses or 'none'}), "
        f"{count(cluster['threads'], 'thread')}"
    ]
    tasks = ", ".join(f"{n} {state}" for state, n in found["states"].items())
    out.append(f"Tasks:   {tasks or 'none'}")
    if cluster["graphs"]:
        out.append(f"Graphs being compiled: {cluster['graphs']}")
    for each in cluster["silent"]:
        out.append(f"{each['worker']} has not sent a heartbeat for {each['seconds']:.0f} s.")
    for address in cluster["backpressured"]:
        out.append(f"{address} does not read from its connection.")
    for address, keys in cluster["given_up"].items():
        out.append(
            f"{address} still executes {count(len(keys), 'run')} that the scheduler has "
            f"given up: {join_names(map(format_key, keys))}."
        )
    for each in cluster["ends"]:
        if each["seconds"]:
            out.append(f"{each['worker']} ends in {format_duration(each['seconds'])}.")
        else:
            out.append(f"The end of {each['worker']} has passed.")
    more = cluster["n_ends"] - len(cluster["ends"])
    if more:
        out.append(f"{count(more, 'further worker')} reported an end.")
    out.append("")
    if not found["suspects"]:
        other = "other " if cluster["given_up"] else ""
        out.append(f"No {other}task is running, and no task is held up.")
    for each in found["suspects"]:
        out.append(f"- {each['summary']}")
    return out


def clock(seconds: float) -> str:
    """Format a time as local date and time with milliseconds."""
    whole = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}"
