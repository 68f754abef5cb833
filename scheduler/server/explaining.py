"""The command ``paceline explain``: asks a running scheduler and prints what it says.

Must not know: how it is found out (``core/explain.py``), how it is worded (``core/explain_words.py``).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from paceline.protocol.messages import Explain

from .asking import AskError, ask_scheduler

#: The exit code where no scheduler answered.
EXIT_NO_ANSWER: Final = 1
#: Where to ask when nobody says: what stock clients read too.
ADDRESS_VARIABLE: Final = "DASK_SCHEDULER_ADDRESS"
DEFAULT_ADDRESS: Final = "tcp://127.0.0.1:8786"


def report(
    key: Any, address: str | None, scheduler_file: str | None, as_json: bool, timeout: float
) -> str:
    """The text to print.

    Raises:
        ValueError: there is no answer; says why.
    """
    where = find_address(address, scheduler_file)
    try:
        found = ask_scheduler(where, Explain(key=key), timeout)
    except AskError as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{where} is no scheduler that explains: it answered {found!r}")
    if as_json:
        return json.dumps(_jsonable(found), indent=2)
    return "\n".join(all_lines(found) if key is None else task_lines(found))


def find_address(address: str | None, scheduler_file: str | None) -> str:
    """Where the scheduler is.

    Raises:
        ValueError: the file does not say.
    """
    if address:
        return address
    if scheduler_file:
        try:
            with open(scheduler_file) as file:
                return str(json.load(file)["address"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{scheduler_file} names no address") from error
    return os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


def task_lines(found: Mapping[str, Any]) -> list[str]:
    """A task: its state, since when, the cause, the rest, and its story."""
    key = found["key"] if isinstance(found["key"], str) else repr(found["key"])
    state = found["state"] or "unknown"
    since = found.get("since")
    out = [f"{key}: {state}{'' if since is None else f' since {clock(since)}'}", ""]
    first, *rest = found["words"]
    out += [first, *(f"  {line}" for line in rest)]
    if found["story"]:
        out += ["", "Its story:"]
    for each, start, finish, recommended, cause, seconds in found["story"]:
        more = f", then {len(recommended)} more" if recommended else ""
        name = "" if each == found["key"] else f"{each!r}: "
        out.append(f"  {clock(seconds)}  {name}{start} -> {finish}{more}  ({cause})")
    return out


def all_lines(found: Mapping[str, Any]) -> list[str]:
    """The cluster: its workers, its tasks, and whom to suspect."""
    cluster = found["cluster"]
    statuses = ", ".join(f"{n} {status}" for status, n in cluster["statuses"].items())
    out = [f"Workers: {cluster['workers']} ({statuses or 'none'}), {cluster['threads']} threads"]
    tasks = ", ".join(f"{n} {state}" for state, n in found["states"].items())
    out.append(f"Tasks:   {tasks or 'none'}")
    if cluster["graphs"]:
        out.append(f"Graphs being taken in: {cluster['graphs']}")
    for each in cluster["silent"]:
        out.append(f"{each['worker']} has not been heard of for {each['seconds']:.0f} s.")
    for address in cluster["clogged"]:
        out.append(f"{address} reads nothing from its connection.")
    out.append("")
    if not found["suspects"]:
        out.append("Nothing is running, and nothing is held up.")
    for each in found["suspects"]:
        out.append(f"- {each['summary']}")
    return out


def clock(seconds: float) -> str:
    """A time of day, local."""
    whole = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}"


def _jsonable(value: Any) -> Any:
    """Keys that are tuples become their ``repr`` where JSON needs text."""
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else repr(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(each) for each in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)
