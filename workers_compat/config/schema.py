"""Schema of the configuration keys that a scheduler reads, to report mistakes at start.

An invalid value prevents the start; the error contains the key, the value, its origin and the
accepted values. An unknown key under ``distributed.scheduler``, ``distributed.comm`` or
``paceline`` leads to a warning with the closest known key.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dask.config
from dask.utils import parse_bytes, parse_timedelta
from paceline.scheduler.core.config import MEASURES, check_group_settings
from paceline.workers_compat.graphs.policies import check_configured
from paceline.workers_compat.settings import OFF, ON

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
    "paceline.transfer",
)
#: Problems that are listed; of further ones, only the number is.
LISTED_MAX = 20


class InvalidPart(ValueError):
    """A part of a value that is a mapping is invalid; the text names the part."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type of configuration values: its description in error messages, and a test of values.

    If ``accepts`` raises ValueError, TypeError or KeyError, the value is invalid.
    """

    description: str
    accepts: Callable[[Any], bool]


def _is_duration(value: Any) -> bool:
    return not isinstance(value, bool) and bool(parse_timedelta(value, default="seconds") >= 0)


def _is_size(value: Any) -> bool:
    return not isinstance(value, bool) and bool(parse_bytes(value) >= 0)


def _is_positive(value: Any) -> bool:
    return not isinstance(value, bool) and float(value) > 0


def _is_integer(value: Any, minimum: float = -math.inf) -> bool:
    """Return whether ``value`` is a whole number or infinite, and at least ``minimum``."""
    number = float(value)
    is_whole = math.isinf(number) or number == int(number)
    return not isinstance(value, bool) and is_whole and number >= minimum


def _is_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in (*ON, *OFF)
    return isinstance(value, int)


def _is_text(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, str | list | tuple) and all(isinstance(each, str) for each in value)


def _are_share_groups(value: Any) -> bool:
    for group, settings in dict(value).items():
        plain = settings
        if isinstance(settings, Mapping):
            plain = {n: parse_bytes(v) if n == "memory" else v for n, v in settings.items()}
        try:
            check_group_settings(group, plain)
        except ValueError as error:
            raise InvalidPart(str(error)) from error
    return True


def _are_policies(value: Any) -> bool:
    if not all(isinstance(options, Mapping) for options in dict(value).values()):
        return False
    try:
        check_configured(dict(value))
    except ValueError as error:
        raise InvalidPart(str(error)) from error
    return True


DURATION = ValueType('a duration, as "5 minutes", "500ms" or 300 (seconds)', _is_duration)
SIZE = ValueType('a size, as "10 MiB", "1 GB" or a number of bytes', _is_size)
SPEED = ValueType(
    'bytes per second above 0, as "100 MB" or 100000000',
    lambda value: _is_positive(parse_bytes(value)),
)
COUNT = ValueType("a whole number from 0 up", lambda value: _is_integer(value, 0))
# as in stock, False means 0; xgboost's tests set it
FAILURES = ValueType(COUNT.description, lambda value: value is False or COUNT.accepts(value))
POSITIVE = ValueType('a number above 0, or "inf"', _is_positive)
BOOL = ValueType("true or false", _is_bool)
TEXT = ValueType("text", _is_text)
FILE = ValueType("the path of a file", _is_text)
TEXTS = ValueType("a list of texts, as [a, b]", _is_list_of_texts)
ARGUMENTS = ValueType(
    "a list of texts, as [--option, value]", lambda value: isinstance(value, str | list | tuple)
)
MEASURE = ValueType(
    'a way to measure memory, as "optimistic", "managed" or "process"',
    lambda value: value in MEASURES,
)
TLS_VERSION = ValueType("1.2 or 1.3", lambda value: float(value) in (1.2, 1.3))

_TLS_PEERS = ("client", "scheduler", "worker")
_TLS_FILES = ("ca-file", *(f"{peer}.{part}" for peer in _TLS_PEERS for part in ("cert", "key")))

VALUE_TYPES: dict[str, ValueType] = {
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
        'an address, as "tcp://10.0.0.1:8786"', _is_text
    ),
    "distributed.scheduler.default-data-size": SIZE,
    "distributed.scheduler.default-task-durations": ValueType(
        'a mapping of prefixes to durations, as {slow: "2 hours"}',
        lambda value: all(map(_is_duration, dict(value).values())),
    ),
    "distributed.scheduler.events-cleanup-delay": DURATION,
    "distributed.scheduler.http.routes": ValueType(
        "a list of modules, as [distributed.http.health]", _is_list_of_texts
    ),
    "distributed.scheduler.idle-timeout": DURATION,
    "distributed.scheduler.locks.lease-timeout": DURATION,
    "distributed.scheduler.locks.lease-validation-interval": DURATION,
    "distributed.scheduler.no-workers-timeout": DURATION,
    "distributed.scheduler.pickle": BOOL,
    "distributed.scheduler.preload": ValueType(
        "a list of modules, files or URLs, as [package.module]", _is_list_of_texts
    ),
    "distributed.scheduler.preload-argv": ARGUMENTS,
    "distributed.scheduler.reuse-broadcast-comm": BOOL,
    "distributed.scheduler.rootish-taskgroup": COUNT,
    "distributed.scheduler.rootish-taskgroup-dependencies": COUNT,
    "distributed.scheduler.unknown-task-duration": DURATION,
    "distributed.scheduler.validate": BOOL,
    "distributed.scheduler.work-stealing": BOOL,
    "distributed.scheduler.work-stealing-interval": DURATION,
    "distributed.scheduler.worker-saturation": POSITIVE,
    "distributed.scheduler.worker-ttl": DURATION,
    "distributed.comm.compression": ValueType(
        'false, "auto", or a name as "lz4" or "zstd"',
        lambda value: value is False or isinstance(value, str),
    ),
    "distributed.comm.default-scheme": ValueType('a scheme, as "tcp" or "tls"', _is_text),
    "distributed.comm.offload": ValueType(
        f"{SIZE.description}, or false", lambda value: value is False or _is_size(value)
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
    "distributed.comm.zstd.level": ValueType("a whole number", _is_integer),
    "distributed.comm.zstd.threads": ValueType(
        "a whole number from -1 up", lambda value: _is_integer(value, -1)
    ),
    "distributed.adaptive.target-duration": DURATION,
    "distributed.admin.event-loop": ValueType('"tornado", "uvloop" or "asyncio"', _is_text),
    "distributed.admin.log-length": COUNT,
    "distributed.admin.low-level-log-length": COUNT,
    "distributed.admin.max-error-length": COUNT,
    "distributed.admin.system-monitor.interval": DURATION,
    "distributed.admin.tick.interval": DURATION,
    "distributed.admin.tick.limit": DURATION,
    "distributed.dashboard.graph-max-items": COUNT,
    "distributed.dashboard.link": TEXT,
    "distributed.dashboard.prometheus.namespace": TEXT,
    "paceline.graph-compiler.accelerators": BOOL,
    "paceline.graph-compiler.memory-limit": SIZE,
    "paceline.graph-compiler.timeout": DURATION,
    "paceline.http.body-size": SIZE,
    "paceline.http.connections": COUNT,
    "paceline.http.idle-timeout": DURATION,
    "paceline.http.token": TEXT,
    "paceline.http.token-file": FILE,
    "paceline.shares.annotations": BOOL,
    "paceline.shares.clients": ValueType(
        "a mapping of patterns of client names to groups, as {batch-*: batch}",
        lambda value: all(isinstance(each, str) for each in dict(value).values()),
    ),
    "paceline.shares.enabled": BOOL,
    "paceline.shares.groups": ValueType(
        "a mapping of groups to settings, as {batch: {weight: 2, threads: 40, memory: 10 GiB}}",
        _are_share_groups,
    ),
    "paceline.shares.half-life": DURATION,
    "paceline.scheduler.adaptive-grace": DURATION,
    "paceline.scheduler.client-grace": DURATION,
    "paceline.scheduler.client-grace-bytes": SIZE,
    "paceline.scheduler.dump-timeout": DURATION,
    "paceline.scheduler.policies": ValueType(
        'a mapping of prefixes to policies, as {"read-*": {timeout: "5m"}}',
        _are_policies,
    ),
    "paceline.scheduler.restart-stuck-workers": BOOL,
    "paceline.scheduler.retire-running": DURATION,
    "paceline.scheduler.durable": TEXT,
    "paceline.scheduler.coassigned-tasks": COUNT,
    "paceline.scheduler.hang-timeout": ValueType(
        'a duration of at least 1 s, as "5 minutes"',
        lambda value: _is_duration(value) and parse_timedelta(value, default="seconds") >= 1,
    ),
    "paceline.scheduler.memory-admission": ValueType(
        "a number up to 1, or false",
        lambda value: value is False or (value is not True and 0 < float(value) <= 1),
    ),
    "paceline.scheduler.second-copies": BOOL,
    "paceline.scheduler.speculation": BOOL,
    "paceline.scheduler.whole-worker-retry": BOOL,
    "paceline.scheduler.speculation-factor": ValueType(
        "a number above 1", lambda value: not isinstance(value, bool) and float(value) > 1
    ),
    "paceline.scheduler.standby-turns": COUNT,
    "paceline.scheduler.unread-timeout": DURATION,
    "paceline.scheduler.worker-ends": BOOL,
    "paceline.security.peer-names": TEXTS,
    "paceline.security.secret": TEXT,
    "paceline.security.secret-file": FILE,
    "paceline.security.unpickle": BOOL,
    "paceline.worker-end": ValueType(
        "seconds since the epoch", lambda value: not isinstance(value, bool) and float(value) >= 0
    ),
}
"""Key -> type of its value. None and "" are always valid."""


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
