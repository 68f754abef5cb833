"""Schema of the configuration keys that a scheduler accepts, to report mistakes at start.

An invalid value prevents the start; the error contains the key, the value, its origin and the
accepted values. An unknown key under ``distributed.scheduler``, ``distributed.comm`` or
``paceline`` leads to a warning with the closest known key.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

import dask.config
from dask.utils import parse_timedelta

from .value_types import (
    ARGUMENTS,
    BOOL,
    COUNT,
    DURATION,
    FAILURES,
    FILE,
    MEASURE,
    MILLISECONDS,
    NUMBER,
    POSITIVE,
    POSITIVE_COUNT,
    POSITIVE_DURATION,
    POSITIVE_SIZE,
    SIZE,
    SPEED,
    TEXT,
    TEXTS,
    TLS_VERSION,
    InvalidPart,
    ValueType,
    are_client_groups,
    are_policies,
    are_share_groups,
    is_duration,
    is_integer,
    is_size,
    is_text,
    is_text_or_texts,
)

#: Sections in which unknown keys are reported.
SECTIONS = ("distributed.scheduler", "distributed.comm", "paceline")
#: Sections with any keys: options of packages, or of classes that users configure.
ANY_KEYS = (
    "distributed.comm.ucx",
    "distributed.comm.ucxx",
    "distributed.scheduler.active-memory-manager.policies",
    "distributed.scheduler.dashboard",
    "distributed.scheduler.default-task-durations",
    "paceline.scheduler.policies",
)
#: Problems that are listed; of further ones, only the number is.
LISTED_MAX = 20


_TLS_PEERS = ("client", "scheduler", "worker")
_TLS_FILES = ("ca-file", *(f"{peer}.{part}" for peer in _TLS_PEERS for part in ("cert", "key")))

STOCK: dict[str, ValueType] = {
    "distributed.scheduler.active-memory-manager.interval": DURATION,
    "distributed.scheduler.active-memory-manager.measure": MEASURE,
    "distributed.scheduler.active-memory-manager.policies": ValueType(
        "a list of mappings with a `class`, as [{class: package.Policy}]",
        lambda value: all(isinstance(each, Mapping) and "class" in each for each in value),
    ),
    "distributed.scheduler.active-memory-manager.start": BOOL,
    "distributed.scheduler.allowed-failures": FAILURES,
    "distributed.scheduler.allowed-imports": TEXTS,
    "distributed.scheduler.bandwidth": SPEED,
    "distributed.scheduler.blocked-handlers": TEXTS,
    "distributed.scheduler.contact-address": ValueType(
        'an address, as "tcp://10.0.0.1:8786"', is_text
    ),
    "distributed.scheduler.default-data-size": SIZE,
    "distributed.scheduler.default-task-durations": ValueType(
        'a mapping of prefixes to durations, as {slow: "2 hours"}',
        lambda value: all(map(is_duration, dict(value).values())),
    ),
    "distributed.scheduler.events-cleanup-delay": DURATION,
    "distributed.scheduler.http.routes": ValueType(
        "a list of modules, as [distributed.http.health]", is_text_or_texts
    ),
    "distributed.scheduler.idle-timeout": DURATION,
    "distributed.scheduler.locks.lease-timeout": DURATION,
    "distributed.scheduler.locks.lease-validation-interval": DURATION,
    "distributed.scheduler.no-workers-timeout": DURATION,
    "distributed.scheduler.pickle": BOOL,
    "distributed.scheduler.preload": ValueType(
        "a list of modules, files or URLs, as [package.module]", is_text_or_texts
    ),
    "distributed.scheduler.preload-argv": ARGUMENTS,
    "distributed.scheduler.reuse-broadcast-comm": BOOL,
    "distributed.scheduler.rootish-taskgroup": COUNT,
    "distributed.scheduler.rootish-taskgroup-dependencies": COUNT,
    "distributed.scheduler.unknown-task-duration": DURATION,
    "distributed.scheduler.validate": BOOL,
    "distributed.scheduler.work-stealing": BOOL,
    "distributed.scheduler.work-stealing-interval": MILLISECONDS,
    "distributed.scheduler.worker-saturation": POSITIVE,
    "distributed.scheduler.worker-ttl": DURATION,
    "distributed.comm.compression": ValueType(
        'false, "auto", or a name as "lz4" or "zstd"',
        lambda value: value is False or isinstance(value, str),
    ),
    "distributed.comm.default-scheme": ValueType('a scheme, as "tcp" or "tls"', is_text),
    "distributed.comm.offload": ValueType(
        f"{SIZE.description}, or false", lambda value: value is False or is_size(value)
    ),
    "distributed.comm.require-encryption": BOOL,
    "distributed.comm.retry.count": COUNT,
    "distributed.comm.retry.delay.max": DURATION,
    "distributed.comm.retry.delay.min": DURATION,
    "distributed.comm.shard": SIZE,
    "distributed.comm.socket-backlog": COUNT,
    "distributed.comm.timeouts.connect": DURATION,
    "distributed.comm.timeouts.tcp": DURATION,
    "distributed.comm.tls.ciphers": TEXT,
    **{f"distributed.comm.tls.{name}": FILE for name in _TLS_FILES},
    "distributed.comm.tls.max-version": TLS_VERSION,
    "distributed.comm.tls.min-version": TLS_VERSION,
    "distributed.comm.websockets.shard": SIZE,
    "distributed.comm.zstd.level": ValueType("a whole number", is_integer),
    "distributed.comm.zstd.threads": ValueType(
        "a whole number from -1 up", lambda value: is_integer(value, -1)
    ),
    "distributed.adaptive.target-duration": DURATION,
    "distributed.admin.event-loop": ValueType(
        '"tornado", "uvloop" or "asyncio"', ("tornado", "uvloop", "asyncio").__contains__
    ),
    "distributed.admin.log-format": TEXT,
    "distributed.admin.log-length": COUNT,
    "distributed.admin.low-level-log-length": COUNT,
    "distributed.admin.max-error-length": COUNT,
    "distributed.admin.system-monitor.interval": DURATION,
    "distributed.admin.tick.interval": MILLISECONDS,
    "distributed.admin.tick.limit": MILLISECONDS,
    "distributed.dashboard.graph-max-items": COUNT,
    "distributed.dashboard.link": TEXT,
    "distributed.dashboard.prometheus.namespace": TEXT,
    "distributed.diagnostics.computations.max-history": COUNT,
    "distributed.diagnostics.erred-tasks.max-history": COUNT,
    "distributed.worker.memory.rebalance.measure": MEASURE,
    "distributed.worker.memory.rebalance.recipient-max": NUMBER,
    "distributed.worker.memory.rebalance.sender-min": NUMBER,
    "distributed.worker.memory.rebalance.sender-recipient-gap": NUMBER,
    "distributed.worker.memory.recent-to-old-time": DURATION,
    "distributed.worker.memory.terminate": ValueType(
        "a number, or false", lambda value: value is False or NUMBER.accepts(value)
    ),
    "distributed.worker.profile.cycle": MILLISECONDS,
    "distributed.worker.profile.enabled": BOOL,
    "distributed.worker.profile.interval": DURATION,
}
"""Key of distributed -> type of its value. None and "" are always valid."""

WITHOUT_EFFECT = frozenset(
    (
        "distributed.comm.compression",
        "distributed.comm.offload",
        "distributed.comm.retry.count",
        "distributed.comm.retry.delay.max",
        "distributed.comm.retry.delay.min",
        "distributed.comm.shard",
        "distributed.comm.websockets.shard",
        "distributed.comm.zstd.level",
        "distributed.comm.zstd.threads",
        "distributed.scheduler.allowed-imports",
        "distributed.scheduler.locks.lease-timeout",
        "distributed.scheduler.reuse-broadcast-comm",
    )
)
"""Keys of ``STOCK`` that the scheduler checks, but does not use. Workers and clients use some."""

PACELINE: dict[str, tuple[ValueType, str]] = {
    "paceline.graph-compiler.accelerators": (
        BOOL,
        "Whether graph compilers use faster code than dask's for unpickling, ordering and pickling "
        "tasks.",
    ),
    "paceline.graph-compiler.memory-limit": (
        SIZE,
        "Resident memory of a graph compiler, checked ten times a second. A graph that exceeds it "
        "fails. 0 is no limit.",
    ),
    "paceline.graph-compiler.timeout": (
        DURATION,
        "Time without progress (unpickling and ordering, then each chunk of tasks) after which a "
        "graph fails. 0 is no limit.",
    ),
    "paceline.http.body-size": (POSITIVE_SIZE, "Size of the body of an HTTP request."),
    "paceline.http.connections": (
        POSITIVE_COUNT,
        "Open HTTP connections, of the scheduler's process and of the dashboard's each; at most a "
        "quarter of the limit of open files. A further one closes the one unused longest.",
    ),
    "paceline.http.idle-timeout": (
        POSITIVE_DURATION,
        "Time until a request, its headers and its body have arrived, and until a client reads "
        "what was sent.",
    ),
    "paceline.http.token": (
        TEXT,
        "Token that pages, metrics and commands require; see [security](security.md#pages).",
    ),
    "paceline.http.token-file": (FILE, "File that contains this token."),
    "paceline.scheduler.adaptive-grace": (
        DURATION,
        "Time without work for it after which an [adaptive cluster](deploy/adaptive.md) may close "
        "a worker that never had a task, or give up one that is starting.",
    ),
    "paceline.scheduler.client-grace": (
        DURATION,
        "Time for which the keys of a client are kept after its connection broke; see "
        "[operation](operations.md#clients-that-lose-their-connection).",
    ),
    "paceline.scheduler.client-grace-bytes": (SIZE, "Total size of the results that are kept."),
    "paceline.scheduler.coassigned-tasks": (
        COUNT,
        "Sibling root-ish tasks that are assigned to a worker together, per thread, or all inputs "
        "of a task that takes at most 4; 0 spreads them. See [scheduling](scheduling.md).",
    ),
    "paceline.scheduler.dump-timeout": (
        POSITIVE_DURATION,
        "Time that a cluster dump (`Client.dump_cluster_state`) waits for the state of a worker.",
    ),
    "paceline.scheduler.durable": (
        TEXT,
        "Folder of a [durable](durability.md) scheduler, as the option `--durable`.",
    ),
    "paceline.scheduler.fetch-weight": (
        ValueType(
            "a finite number above 0",
            lambda value: not isinstance(value, bool) and 0 < float(value) < inf,
        ),
        "How many times the duration of fetching inputs counts when the worker of a task is "
        "chosen; 1 with the stock scheduler. See [scheduling](scheduling.md).",
    ),
    "paceline.scheduler.hang-timeout": (
        ValueType(
            'a duration of at least 1 s, as "5 minutes"',
            lambda value: is_duration(value) and parse_timedelta(value, default="seconds") >= 1,
        ),
        "Time for which the event loop of a [durable](durability.md) scheduler has not run, after "
        "which its process is killed.",
    ),
    "paceline.scheduler.memory-admission": (
        ValueType(
            "a number above 0 and up to 1, or false",
            lambda value: value is False or (value is not True and 0 < float(value) <= 1),
        ),
        "Part of the memory limit of a worker up to which it is sent tasks; false turns this off. "
        "See [memory](memory.md).",
    ),
    "paceline.scheduler.policies": (
        ValueType(
            'a mapping of prefixes to policies, as {"read-*": {timeout: "5m"}}',
            are_policies,
        ),
        "[Policies](task-policies.md) of tasks whose prefix matches a pattern.",
    ),
    "paceline.scheduler.restart-stuck-workers": (
        BOOL,
        "Whether a worker with a thread that goes on after a [timeout](task-policies.md#timeouts) "
        "is drained and restarted by its nanny.",
    ),
    "paceline.scheduler.retire-running": (
        DURATION,
        "Time for which a retiring worker may finish the tasks that it runs, before it is closed. "
        "With 0 it is closed at once, as with stock.",
    ),
    "paceline.scheduler.second-copies": (
        BOOL,
        "Whether results that are expensive to compute again are "
        "[copied](worker-losses.md#second-copies) when workers may be lost.",
    ),
    "paceline.scheduler.speculation": (
        BOOL,
        "Whether tasks that take much longer than usual get a "
        "[second run](task-policies.md#second-runs) on another worker, except those annotated with "
        "`pure=False`; the argument `pure=False` of `submit`, `map` and `delayed` does not count.",
    ),
    "paceline.scheduler.speculation-factor": (
        ValueType(
            "a number above 1", lambda value: not isinstance(value, bool) and float(value) > 1
        ),
        "Multiple of the average duration of its prefix after which a task takes much longer.",
    ),
    "paceline.scheduler.standby-turns": (
        COUNT,
        "Turns of the core after which a [durable](durability.md) scheduler forks a new standby.",
    ),
    "paceline.scheduler.task-peaks": (
        BOOL,
        "Whether workers receive a plugin that measures what running tasks "
        "[take in memory](memory.md#what-is-expected).",
    ),
    "paceline.scheduler.unread-timeout": (
        DURATION,
        "Time for which a worker may read nothing of the messages that wait for it, before its "
        "connection is closed; 0 turns this off.",
    ),
    "paceline.scheduler.whole-worker-retry": (
        BOOL,
        "Whether a task whose worker ran out of memory is retried "
        "[alone on a worker](worker-losses.md#whole-workers).",
    ),
    "paceline.scheduler.worker-ends": (
        BOOL,
        "Whether workers receive a plugin that reports their "
        "[end](worker-losses.md#end-of-a-worker).",
    ),
    "paceline.security.peer-names": (
        TEXTS,
        "Patterns of the names of certificates that are admitted; see [TLS](security.md#tls).",
    ),
    "paceline.security.secret": (
        TEXT,
        "[Secret](security.md#shared-secret) of at least 16 bytes that peers have to know.",
    ),
    "paceline.security.secret-file": (FILE, "File that contains this secret."),
    "paceline.security.unpickle": (
        BOOL,
        "With false, the event loop [unpickles nothing](security.md#what-the-scheduler-"
        "deserializes) that clients send, as with `distributed.scheduler.pickle: false`.",
    ),
    "paceline.shares.annotations": (
        BOOL,
        "Whether the annotation `group=` chooses the share group of a task.",
    ),
    "paceline.shares.clients": (
        ValueType(
            "a mapping of patterns of client names to groups, as {batch-*: batch}",
            are_client_groups,
        ),
        "Share groups of clients; the first pattern that matches counts.",
    ),
    "paceline.shares.enabled": (
        BOOL,
        "Whether groups of clients [share](sharing.md) the cluster; false is first come, first "
        "served.",
    ),
    "paceline.shares.groups": (
        ValueType(
            "a mapping of groups to settings, as {batch: {weight: 2, threads: 40, memory: 10 GiB}}",
            are_share_groups,
        ),
        "[Settings](sharing.md#configuration) of share groups.",
    ),
    "paceline.shares.half-life": (DURATION, "Half-life of the remembered usage of share groups."),
    "paceline.transfer": (
        ValueType(
            "a list of backends, or a mapping of options",
            lambda value: isinstance(value, str | list | tuple | Mapping),
        ),
        "[Transfer](transfer.md) of results between workers; read by the scheduler and workers.",
    ),
    "paceline.worker-end": (
        ValueType(
            "seconds since the epoch",
            lambda value: not isinstance(value, bool) and float(value) >= 0,
        ),
        "[End](worker-losses.md#end-of-a-worker) of a worker; read by workers.",
    ),
}
"""Key of paceline -> type of its value, and its meaning in Markdown for docs/configuration.md."""

VALUE_TYPES = {**STOCK, **{key: value_type for key, (value_type, _) in PACELINE.items()}}


def invalid_values() -> Iterator[str]:
    """Yield a line for each invalid value: key, value, origin and accepted values."""
    for key, value_type in VALUE_TYPES.items():
        value = dask.config.get(key, default=None)
        if value is None or value == "":
            continue
        part = ""
        try:
            is_valid = value_type.accepts(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            is_valid = False
            if isinstance(error, InvalidPart):
                part = f"; {error}"
        if not is_valid:
            accepted = f"it takes {value_type.description}{part}"
            yield f"`{key}` cannot be {value!r}{_origin(key)}: {accepted}"


def unknown_keys() -> Iterator[str]:
    """Yield a line for each unknown key."""
    for section in SECTIONS:
        found = dask.config.get(section, default=None)
        if isinstance(found, Mapping):
            for key in leaves(found, section):
                if not _is_known(key):
                    near = difflib.get_close_matches(key, VALUE_TYPES, n=1, cutoff=0.8)
                    hint = f"; did you mean `{near[0]}`?" if near else ""
                    yield f"Unknown setting `{key}`{_origin(key)}{hint}"


def join_lines(lines: list[str]) -> str:
    """Return the lines as one text, with at most ``LISTED_MAX`` of them."""
    rest = len(lines) - LISTED_MAX
    return "\n".join([*lines[:LISTED_MAX], *([f"... and {rest} more"] if rest > 0 else [])])


def leaves(values: Mapping[Any, Any], section: str = "") -> Iterator[str]:
    """Yield the keys of all values. Mappings that a key of the schema accepts are values."""
    for name, value in values.items():
        key = f"{section}.{name}".lstrip(".").replace("_", "-")
        if isinstance(value, Mapping) and value and key not in VALUE_TYPES:
            yield from leaves(value, key)
        else:
            yield key


def _is_known(key: str) -> bool:
    if key in VALUE_TYPES or any(each.startswith(key + ".") for each in VALUE_TYPES):
        return True
    return any(key == each or key.startswith(each + ".") for each in ANY_KEYS)


def _origin(key: str) -> str:
    """Return the environment variable or the file that sets a value, if any, as text."""
    variable = "DASK_" + key.upper().replace("-", "_").replace(".", "__")
    if variable in os.environ:
        return f" (environment variable {variable})"
    for path, found in dask.config.collect_yaml(dask.config.paths, return_paths=True):
        if key in leaves(found):
            return f" (probably from {path})"
    return ""
