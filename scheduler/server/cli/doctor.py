"""``paceline doctor``: checks for likely problems of a cluster.

Versions that do not match, too few open files, clocks that differ, harmful settings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click
import msgspec
from paceline.protocol import messages as m
from paceline.scheduler.core.text import count, join_names

from .options import scheduler_address, timeout_option
from .rpc_client import RpcError, call_scheduler, printable, scheduler_identity

#: Approximate number of open files of a scheduler per worker: stream, heartbeats, requests.
FILES_PER_WORKER: Final = 3
#: A lower limit of open files is a problem for a cluster of any size.
FILES_MIN: Final = 4_096
#: Clocks that differ by more make the times in the task stream and in profiles wrong, seconds.
SKEW_SECONDS: Final = 1.0
#: Packages whose releases should match, because their data is sent between processes.
SHARED: Final = (
    *("python", "dask", "distributed", "cloudpickle", "msgpack", "numpy", "pandas", "pyarrow"),
)
#: Different releases of these are reported as a problem, of the others as a note.
STRICT: Final = ("dask", "distributed")

GOOD, NOTE, BAD = "ok", "note", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: what was found, and what to do about it."""

    grade: str
    text: str


def examine(address: str | None, timeout: float) -> list[Finding]:
    """Return the findings about this machine, and about a cluster if there is an address."""
    found = [*own_versions(), *open_files(0), *settings()]
    if address is None:
        return found
    try:
        identity = scheduler_identity(address, timeout)
    except RpcError as error:
        return [*found, Finding(BAD, str(error))]
    workers = identity["workers"]
    about = f"The scheduler at {address} replies. It has {count(len(workers), 'worker')}."
    found.append(Finding(GOOD, about))
    found += open_files(len(workers))
    found += clocks(workers)
    found += given_up_runs(identity)
    try:
        found += peer_versions(address, timeout)
    except RpcError as error:
        found.append(Finding(NOTE, f"The versions of the workers are unknown: {error}"))
    return found


def own_versions() -> list[Finding]:
    """Check the installed versions."""
    from paceline.workers_compat.config import versions

    packages = versions.get_versions()["packages"]
    release = str(packages.get("distributed"))
    about = ", ".join(
        f"{name} {packages[name]}" for name in ("python", "dask", "distributed") if name in packages
    )
    if versions.is_supported(release):
        return [Finding(GOOD, f"Installed here: {about}.")]
    low, high = (".".join(map(str, v)) for v in (versions.OLDEST_SUPPORTED, versions.NEWEST_TESTED))
    text = f"Installed here: {about}. paceline is tested with distributed {low} to {high}."
    return [Finding(BAD, text + " Install one of these releases.")]


def open_files(n_workers: int) -> list[Finding]:
    """Check the limit of open files for a scheduler with ``n_workers`` workers."""
    if sys.platform == "win32":
        return []
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    usable = sys.maxsize if hard == resource.RLIM_INFINITY else hard // 2
    needed = n_workers * FILES_PER_WORKER or FILES_MIN
    if usable < needed:
        workers = count(n_workers, "worker")
        why = (
            f"{workers} need about {needed:,}"
            if n_workers
            else f"at least {needed:,} are recommended"
        )
        text = (
            f"A scheduler started here may open {usable:,} files; {why}. Raise the hard limit: "
            "`ulimit -Hn 65536`, or LimitNOFILE= in its systemd service."
        )
        return [Finding(BAD, text)]
    number = "any number of" if usable == sys.maxsize else f"{usable:,}"
    text = f"A scheduler started here may open {number} files."
    return [] if n_workers else [Finding(GOOD, text)]


def clocks(workers: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Check whether the workers' clocks agree with the scheduler's, from their last heartbeats."""
    off = {}
    for address, worker in workers.items():
        sent_at = worker.get("metrics", {}).get("time")
        if sent_at is not None and worker.get("last_seen"):
            skew = float(sent_at) - float(worker["last_seen"])
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
            f"The clocks of {len(off)} of {count(len(workers), 'worker')} differ from the "
            f"scheduler's, that of {worst} by {off[worst]:+.1f} s (or the worker is too busy to "
            "send heartbeats in time). The task stream and "
            "profiles show wrong times; synchronize the clocks with NTP.",
        )
    ]


def given_up_runs(identity: Mapping[str, Any]) -> list[Finding]:
    """Check whether runs that the scheduler has given up occupy threads of workers."""
    found = identity.get("given_up_runs")
    if not found:
        return []
    threads, workers = count(sum(found.values()), "thread"), count(len(found), "worker")
    text = (
        "Runs that the scheduler has given up (cancelled or timed out) occupy "
        f"{threads} of {workers}: {join_names(found)}. "
        f"Restart {'this worker' if len(found) == 1 else 'these workers'} if they do not end."
    )
    return [Finding(NOTE, text)]


def peer_versions(address: str, timeout: float) -> list[Finding]:
    """Check whether the scheduler, its workers and this machine have the same releases."""
    from paceline.workers_compat.config import versions

    scheduler = call_scheduler(address, m.Versions(), timeout)
    call = msgspec.to_builtins(m.WorkerVersions())
    request = m.Broadcast(msg=call, on_error="return")
    received = {"this machine": versions.get_versions(), "the scheduler": scheduler}
    received.update(call_scheduler(address, request, timeout))
    releases: dict[str, dict[str, list[str]]] = {name: {} for name in SHARED}
    for peer, all_of in received.items():
        if not isinstance(all_of, Mapping) or "packages" not in all_of:
            continue
        for name in SHARED:
            release = str(all_of["packages"].get(name))
            releases[name].setdefault(release, []).append(peer)
    found = [
        mixed(name, by_release) for name, by_release in releases.items() if len(by_release) > 1
    ]
    return found or [
        Finding(GOOD, "The scheduler, its workers and this machine have the same versions.")
    ]


def mixed(name: str, by_release: Mapping[str, list[str]]) -> Finding:
    """Return the finding about a package whose releases differ."""
    parts = [
        f"{'not installed' if release == 'None' else release} on {peers[0]}"
        + (f" and {len(peers) - 1} more" if len(peers) > 1 else "")
        for release, peers in by_release.items()
    ]
    minors = {tuple(release.split(".")[:2]) for release in by_release}
    grade = BAD if name in STRICT or (name == "python" and len(minors) > 1) else NOTE
    text = f"{name} is {'; '.join(parts)}."
    return Finding(grade, text + (" Install the same release everywhere." if grade == BAD else ""))


def harmful_values() -> dict[str, tuple[Callable[[Any], bool], str]]:
    """Return: key without "distributed." -> whether its value is harmful, and its effect then."""
    from paceline.workers_compat.config import config
    from paceline.workers_compat.config.settings import is_off

    def below(seconds: float) -> Callable[[Any], bool]:
        return lambda value: (config.seconds(value) or seconds) < seconds

    return {
        "scheduler.validate": (
            lambda value: not is_off(value),
            "checks the whole state after each step: for tests only",
        ),
        "scheduler.work-stealing": (is_off, "leaves tasks on busy workers while others are idle"),
        "scheduler.worker-saturation": (
            lambda value: float(value) > 2,
            "sends all tasks to workers at once: tasks that load data use more memory",
        ),
        "scheduler.allowed-failures": (
            lambda value: float(value) < 1,
            "fails tasks when their worker is lost once",
        ),
        "scheduler.worker-ttl": (
            below(60),
            "removes workers and their data if tasks hold the GIL for a short time",
        ),
        "comm.timeouts.connect": (below(10), "is short: connecting to a busy machine takes longer"),
        "worker.memory.terminate": (
            is_off,
            "lets workers use all memory until the system kills a process",
        ),
        "worker.memory.pause": (is_off, "sends tasks to workers whose memory is full"),
        "scheduler.idle-timeout": (below(60), "stops the scheduler soon after the last task"),
        "scheduler.blocked-handlers": (bool, "rejects some requests of clients"),
    }


def settings() -> list[Finding]:
    """Check dask's configuration for invalid values, unknown keys and harmful values."""
    from paceline.workers_compat.config import config

    try:
        unknown = config.check()
        config.scheduler_config()
    except ValueError as error:
        return [Finding(BAD, line) for line in str(error).splitlines()]
    variables = unknown_variables(os.environ)
    unknown += [f"Unknown setting (environment variable {name})" for name in variables]
    found = [Finding(NOTE, line) for line in unknown]
    for name, (is_harmful, effect) in harmful_values().items():
        value = config.get(f"distributed.{name}")
        if value is not None and is_harmful(value):
            found.append(Finding(NOTE, f"`distributed.{name}: {value}` {effect}."))
    return found or [Finding(GOOD, "dask's configuration has no harmful setting.")]


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return variables that look like settings of distributed but are not.

    Those of the sections that ``config.check`` reports are left out.
    """
    from paceline.workers_compat.config import config, schema

    known = [f"{key}." for key in (*config.default_keys(), *schema.SECTIONS)]
    out = []
    for name in sorted(environment):
        if name.startswith("DASK_DISTRIBUTED__"):
            key = name.removeprefix("DASK_").lower().replace("__", ".").replace("_", "-") + "."
            if not any(key.startswith(each) or each.startswith(key) for each in known):
                out.append(name)
    return out


#: Grade -> its mark, in the order in which findings are printed.
MARKS: Final = {GOOD: "✓", NOTE: "!", BAD: "✗"}


def text(found: list[Finding]) -> str:
    """Return the text to print: one line for each finding, problems last."""
    in_order = sorted(found, key=lambda each: list(MARKS).index(each.grade))
    n = sum(each.grade == BAD for each in found)
    n_notes = sum(each.grade == NOTE for each in found)
    notes = f", but {count(n_notes, 'note')}" if n_notes else ""
    summary = f"{count(n, 'problem')} found." if n else f"No problems found{notes}."
    lines = [*(f"{MARKS[each.grade]} {each.text}" for each in in_order), "", summary]
    return "\n".join(map(printable, lines))


@click.command("doctor")
@scheduler_address(required=False)
@timeout_option(30.0)
def command(address: str | None, timeout: float) -> None:
    """Check a cluster for likely problems: versions, open files, clocks, settings.

    The exit code is 1 if there are any.

    If no scheduler is given, check this machine and its configuration only.
    """
    found = examine(address, timeout)
    click.echo(text(found))
    if any(each.grade == BAD for each in found):
        sys.exit(1)
