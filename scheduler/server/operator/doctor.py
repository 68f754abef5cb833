"""``paceline doctor``: looks for what makes clusters fail or crawl, and says it in plain words.

Versions that do not fit, too few open files, clocks that differ, settings that hurt.

Must not know: how a scheduler works; it asks one as anybody could.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from paceline.protocol import messages as m
from paceline.protocol.messages import worker_rpc
from paceline.workers_compat import config, versions

from ..asking import AskError, ask_scheduler

#: Files that a connection of a worker costs a scheduler, about: its stream, its heartbeats, one for requests.
FILES_PER_WORKER: Final = 3
#: Fewer open files than this are trouble for a cluster of any size.
FILES_MIN: Final = 4_096
#: Clocks that differ by more make times in the task stream and in profiles wrong, seconds.
SKEW_SECONDS: Final = 1.0
#: Packages of which all must have the same release, or nearly: what travels between processes is theirs.
SHARED: Final = ("python", "dask", "distributed", "cloudpickle", "msgpack", "numpy", "pandas", "pyarrow")
#: Of these, different releases fail; of the others they may.
STRICT: Final = ("dask", "distributed")

GOOD, NOTE, BAD = "ok", "note", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at.

    Attributes:
        grade: "ok", "note" or "problem".
        text: what it is, and what to do.
    """

    grade: str
    text: str


def examine(address: str | None, timeout: float) -> list[Finding]:
    """All findings: about this machine and its configuration, and with an address about a cluster."""
    found = [*own_versions(), *open_files(0), *settings(config.get)]
    if address is None:
        return found
    try:
        identity = ask_scheduler(address, m.Identity(n_workers=-1), timeout)
    except AskError as error:
        return [*found, Finding(BAD, f"No scheduler answers: {error}")]
    workers = identity["workers"]
    found.append(Finding(GOOD, f"The scheduler at {address} answers; it has {len(workers)} workers."))
    found += open_files(len(workers))
    found += clocks(workers)
    try:
        found += peer_versions(address, timeout)
    except AskError as error:
        found.append(Finding(NOTE, f"Versions of the peers are unknown: {error}"))
    return found


def own_versions() -> list[Finding]:
    """What is installed here."""
    packages = versions.get_versions()["packages"]
    release = str(packages.get("distributed"))
    about = ", ".join(f"{name} {packages[name]}" for name in ("python", "dask", "distributed") if name in packages)
    if versions.spoken(release):
        return [Finding(GOOD, f"Installed here: {about}.")]
    low, high = (".".join(map(str, v)) for v in (versions.OLDEST_SPOKEN, versions.NEWEST_TESTED))
    text = f"Installed here: {about}. paceline is tried with distributed {low} to {high}."
    return [Finding(BAD, text + " Install one of these.")]


def open_files(n_workers: int) -> list[Finding]:
    """How many files a process may open here, against what a scheduler of so many workers needs."""
    if sys.platform == "win32":
        return []
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = hard // 2 if hard != resource.RLIM_INFINITY else None
    if usable is None:
        return [Finding(GOOD, "Open files are not limited.")] if not n_workers else []
    needed = max(FILES_MIN if not n_workers else 0, n_workers * FILES_PER_WORKER)
    if usable >= needed:
        return [] if n_workers else [Finding(GOOD, f"A scheduler started here may open {usable:,} files.")]
    enough = f"{n_workers} workers need about {needed:,}" if n_workers else f"{needed:,} are good to have"
    return [
        Finding(
            BAD,
            f"A scheduler started here may open {usable:,} files; {enough}. Raise the hard limit: "
            "`ulimit -Hn 65536`, or LimitNOFILE= of its service.",
        )
    ]


def clocks(workers: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Whether workers' clocks agree with the scheduler's, as their last heartbeats show."""
    off = {}
    for address, worker in workers.items():
        told = worker.get("metrics", {}).get("time")
        if told is not None and worker.get("last_seen"):
            skew = float(told) - float(worker["last_seen"])
            if abs(skew) > SKEW_SECONDS:
                off[address] = skew
    if not workers:
        return []
    if not off:
        return [Finding(GOOD, "The workers' clocks agree with the scheduler's.")]
    worst = max(off, key=lambda address: abs(off[address]))
    return [
        Finding(
            BAD,
            f"The clocks of {len(off)} of {len(workers)} workers differ from the scheduler's, that of {worst} by "
            f"{off[worst]:+.1f} s (or it is too busy to tell in time). Set them with NTP: the task stream and "
            "profiles show wrong times.",
        )
    ]


def peer_versions(address: str, timeout: float) -> list[Finding]:
    """Whether the scheduler, its workers and this machine have the same releases."""
    scheduler = ask_scheduler(address, m.Versions(), timeout)
    question = msgspec.to_builtins(worker_rpc.WorkerVersions())
    request = m.Broadcast(msg=question, on_error="return")
    told = {"this machine": versions.get_versions(), "the scheduler": scheduler}
    told.update(ask_scheduler(address, request, timeout))
    releases: dict[str, dict[str, list[str]]] = {name: {} for name in SHARED}
    for who, all_of in told.items():
        if not isinstance(all_of, Mapping) or "packages" not in all_of:
            continue
        for name in SHARED:
            release = str(all_of["packages"].get(name))
            releases[name].setdefault(release, []).append(who)
    found = [mixed(name, by_release) for name, by_release in releases.items() if len(by_release) > 1]
    return found or [Finding(GOOD, f"All {len(told)} of them have the same versions.")]


def mixed(name: str, by_release: Mapping[str, list[str]]) -> Finding:
    """A package of which not all have the same release."""
    parts = [
        f"{'not installed' if release == 'None' else release} on {who[0]}"
        + (f" and {len(who) - 1} more" if len(who) > 1 else "")
        for release, who in by_release.items()
    ]
    grade = BAD if name in STRICT or (name == "python" and len(_minors(by_release)) > 1) else NOTE
    text = f"{name} is {'; '.join(parts)}."
    return Finding(grade, text + (" Install the same everywhere." if grade == BAD else ""))


def _minors(by_release: Mapping[str, Any]) -> set[str]:
    return {".".join(release.split(".")[:2]) for release in by_release}


# ------------------------------------------------------------------ configuration

Check = tuple[str, Callable[[Any], bool], str]


def _below(seconds: float) -> Callable[[Any], bool]:
    return lambda value: (config.seconds(value) or seconds) < seconds


#: (key, whether its value hurts, what it does then).
SETTINGS: Final[tuple[Check, ...]] = (
    ("distributed.scheduler.validate", bool, "checks everything after each step: many times slower, for tests only"),
    ("distributed.scheduler.work-stealing", lambda v: v is False, "leaves tasks where they are when other workers are idle"),
    (
        "distributed.scheduler.worker-saturation",
        lambda v: str(v) in ("inf", ".inf") or float(v) > 2,
        "sends all tasks to workers at once: more memory is used where many tasks read data",
    ),
    ("distributed.scheduler.allowed-failures", lambda v: v is not None and int(v) < 1, "gives tasks up after the first death of their worker"),
    ("distributed.scheduler.worker-ttl", _below(60), "removes workers, and their data, that are silent for so short a time; tasks that hold the GIL do that"),
    ("distributed.comm.timeouts.connect", _below(10), "gives connections up soon: busy machines need longer"),
    ("distributed.comm.timeouts.tcp", _below(20), "hangs up on peers that are silent for so short a time"),
    ("distributed.worker.memory.terminate", lambda v: v is False, "lets workers fill their machine's memory until the system kills somebody"),
    ("distributed.worker.memory.pause", lambda v: v is False, "gives more tasks to workers whose memory is full"),
    ("distributed.scheduler.idle-timeout", _below(60), "ends the scheduler soon after the last task"),
    ("distributed.scheduler.blocked-handlers", bool, "refuses some requests of clients"),
)


def settings(get: Callable[[str], Any]) -> list[Finding]:
    """Values of dask's configuration that hurt, and keys that nobody knows."""
    found = []
    for key, hurts, what in SETTINGS:
        value = get(key)
        try:
            hurt = value is not None and hurts(value)
        except (KeyError, TypeError, ValueError):
            found.append(Finding(BAD, f"`{key}` cannot be {value!r}."))
            continue
        if hurt:
            found.append(Finding(NOTE, f"`{key}: {value}` {what}."))
    for variable in unknown_variables(os.environ):
        found.append(Finding(NOTE, f"The variable {variable} is no setting that dask knows; is it spelled right?"))
    return found or [Finding(GOOD, "No setting of dask's configuration hurts.")]


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like settings of distributed's and are none."""
    known = config.default_keys()
    out = []
    for name in sorted(environment):
        if not name.startswith("DASK_DISTRIBUTED__"):
            continue
        key = name.removeprefix("DASK_").lower().replace("__", ".").replace("_", "-")
        if not any(key == each or key.startswith(each + ".") or each.startswith(key + ".") for each in known):
            out.append(name)
    return out


MARKS: Final = {GOOD: "✓", NOTE: "!", BAD: "✗"}


def text(found: list[Finding]) -> str:
    """What to print: a line each, problems last."""
    order = {GOOD: 0, NOTE: 1, BAD: 2}
    lines = [f"{MARKS[each.grade]} {each.text}" for each in sorted(found, key=lambda f: order[f.grade])]
    n = sum(each.grade == BAD for each in found)
    lines.append("")
    lines.append("No problems found." if not n else f"{n} problem{'s' if n > 1 else ''} found.")
    return "\n".join(lines)
