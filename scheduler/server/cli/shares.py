"""``paceline shares`` and ``paceline usage``: share groups, their settings, and what they use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from paceline.protocol.messages import SharesRequest
from paceline.scheduler.core.config import NO_CAP, check_group_settings
from paceline.scheduler.core.inspection.share_report import SHARES_OFF, caps_text
from paceline.scheduler.core.text import format_nbytes

from .options import json_option, scheduler_address, timeout_option
from .rpc_client import RpcError, call_paceline, printable

#: Characters of the name of a group or client in a table; longer ones are cut.
NAME_WIDTH_MAX: Final = 50


@click.command("shares")
@click.argument("group", required=False)
@scheduler_address()
@click.option("--weight", type=float, help="Part of the cluster's time, relative to other groups")
@click.option("--class", "priority_class", type=int, help="Priority class; higher ones go first")
@click.option("--threads", help='Threads that the group may occupy, or "none"')
@click.option("--tasks", help='Tasks that the group may have on workers, or "none"')
@click.option("--memory", help='Size of results, as "10 GiB", or "none"')
@json_option
@timeout_option(30.0)
def shares_command(
    group: str | None, address: str, as_json: bool, timeout: float, **options: Any
) -> None:
    """Show the share groups; with GROUP and options, change its settings."""
    settings = read_settings(options)
    if settings and group is None:
        raise click.UsageError("Name the GROUP whose settings to change.")
    if group is not None:
        try:
            check_group_settings(group, settings)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    found = _request(
        address, SharesRequest(group=group if settings else None, settings=settings), timeout
    )
    if group is not None:
        found["groups"] = [each for each in found["groups"] if each["name"] == group]
        if not found["groups"]:
            raise RpcError(f"There is no share group {group!r}; `paceline shares` lists all")
    _print(found, as_json, share_lines)


@click.command("usage")
@scheduler_address()
@json_option
@timeout_option(30.0)
def usage_command(address: str, as_json: bool, timeout: float) -> None:
    """Show what each share group and client has used since the scheduler started."""
    _print(_request(address, SharesRequest(), timeout), as_json, usage_lines)


def read_settings(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the settings that the options name; "none" removes a cap."""
    out: dict[str, float] = {}
    if options["weight"] is not None:
        out["weight"] = options["weight"]
    if options["priority_class"] is not None:
        out["class"] = options["priority_class"]
    for name in ("threads", "tasks", "memory"):
        text = options[name]
        if text == "none":
            out[name] = NO_CAP
        elif text is not None:
            try:
                out[name] = float(_nbytes(text) if name == "memory" else int(text))
            except (ValueError, OverflowError):  # not a number, or an infinite one
                kind = 'a size, as "10 GiB",' if name == "memory" else "a whole number"
                problem = f'--{name} takes {kind} or "none", not {text!r}'
                raise click.UsageError(problem) from None
    return out


def _nbytes(text: str) -> int:
    from paceline.workers_compat.config import config

    return config.nbytes(text) or 0


def _request(address: str, request: SharesRequest, timeout: float) -> dict[str, Any]:
    found = call_paceline(address, request, timeout)
    return {**found, "groups": list(found["groups"])}


def _print(found: dict[str, Any], as_json: bool, lines: Any) -> None:
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))


def share_lines(found: Mapping[str, Any]) -> list[str]:
    """Return a table of the groups: settings, recent usage, tasks, and what they wait for."""
    if not found["enabled"]:
        return [SHARES_OFF]
    rows = [("group", "weight", "class", "usage", "on workers", "queued", "waits for", "caps")]
    for each in found["groups"]:
        settings = each["settings"]
        rows.append(
            (
                _short(each["name"]),
                f"{settings['weight']:g}",
                f"{settings['class']:g}",
                f"{each['usage']:.1f} s",
                str(each["processing"] + each["extra_runs"]),
                str(each["queued"]),
                each["waits_for"],
                caps_text(settings),
            )
        )
    return table(rows)


def usage_lines(found: Mapping[str, Any]) -> list[str]:
    """Return a table of the groups and their clients: tasks, time, data."""
    rows: list[tuple[str, ...]] = [
        ("group / client", "tasks done", "thread time", "memory", "memory x time", "moved")
    ]
    for each in found["groups"]:
        rows.append((_short(each["name"]), *_sums(each)))
        rows += [(f"  {_short(client['client'])}", *_sums(client)) for client in each["clients"]]
    return table(rows)


def _sums(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(each["finished"]),
        f"{each['thread_seconds']:.1f} s",
        format_nbytes(int(each["nbytes"])),
        f"{format_nbytes(int(each['byte_seconds']))} s",
        format_nbytes(int(each["moved_nbytes"])),
    )


def _short(name: str) -> str:
    """Return `name` cut to NAME_WIDTH_MAX characters."""
    name = printable(name)
    return name if len(name) <= NAME_WIDTH_MAX else f"{name[: NAME_WIDTH_MAX - 1]}…"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return `rows` as lines with aligned columns."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
