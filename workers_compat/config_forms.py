"""What each key of dask's configuration that a scheduler reads may hold, so that a mistake is told at start, with its key.

A value that cannot be read ends the start: the text names the key, what was found, where it comes from, and what is accepted. A key
under ``distributed.scheduler``, ``distributed.comm`` or ``paceline`` that nobody reads is warned of, with the nearest one that is.

Must not know: what a knob does.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dask.config
from dask.utils import parse_bytes, parse_timedelta

#: Sections whose every key is known here.
SECTIONS = ("distributed.scheduler", "distributed.comm", "paceline")
#: Below these anything may stand: options of packages, or of classes that users name.
OPEN = (
    "distributed.comm.ucx",
    "distributed.comm.ucxx",
    "distributed.scheduler.active-memory-manager.policies",
    "distributed.scheduler.dashboard",
    "distributed.scheduler.default-task-durations",
    "paceline.transfer",
)
#: Problems that are told of one configuration; of more, their number.
TOLD_MAX = 20


@dataclass(frozen=True, slots=True)
class Form:
    """What a value looks like.

    Attributes:
        words: for people: "a duration, as \\"5 minutes\\" or 300 (seconds)".
        read: raises ValueError, TypeError or KeyError for what it is not.
    """

    words: str
    read: Callable[[Any], Any]


def _duration(value: Any) -> None:
    if isinstance(value, bool) or not parse_timedelta(value, default="seconds") >= 0:
        raise ValueError("no duration")


def _size(value: Any) -> None:
    if isinstance(value, bool) or not parse_bytes(value) >= 0:
        raise ValueError("no size")


def _number(low: float, whole: bool = False, above: bool = False) -> Callable[[Any], None]:
    def read(value: Any) -> None:
        number = float(value)
        if (
            isinstance(value, bool)
            or math.isnan(number)
            or number < low
            or (above and number == low)
        ):
            raise ValueError("out of range")
        if whole and math.isfinite(number) and number != int(number):
            raise ValueError("not whole")

    return read


def _switch(value: Any) -> None:
    words = ("true", "false", "yes", "no", "on", "off", "0", "1")
    if not (
        isinstance(value, bool | int) or (isinstance(value, str) and value.strip().lower() in words)
    ):
        raise ValueError("no switch")


def _text(value: Any) -> None:
    if not isinstance(value, str | os.PathLike):
        raise TypeError("no text")


def _texts(value: Any) -> None:
    if not isinstance(value, str | list | tuple) or not all(
        isinstance(each, str) for each in value
    ):
        raise TypeError("no list of texts")


def _words(value: Any) -> None:
    """Arguments of a preload: texts, or lists of them."""
    if not isinstance(value, str | list | tuple):
        raise TypeError("no list")


def _durations(value: Any) -> None:
    for each in dict(value).values():
        _duration(each)


def _tls_version(value: Any) -> None:
    if float(value) not in (1.2, 1.3):
        raise ValueError("no version")


def _compression(value: Any) -> None:
    if value is not False and not isinstance(value, str):
        raise TypeError("no compression")


def _measure(value: Any) -> None:
    from paceline.scheduler.core.config import MEASURES

    if value not in MEASURES:
        raise ValueError("no measure")


DURATION = Form('a duration, as "5 minutes", "500ms" or 300 (seconds)', _duration)
SIZE = Form('a size, as "10 MiB", "1 GB" or a number of bytes', _size)
SPEED = Form(
    'bytes a second above 0, as "100 MB" or 100000000',
    lambda value: _number(0, above=True)(parse_bytes(value)),
)
COUNT = Form("a whole number from 0 up", _number(0, whole=True))
ABOVE_NOTHING = Form('a number above 0, or "inf"', _number(0, above=True))
SWITCH = Form("true or false", _switch)
TEXT = Form("text", _text)
FILE = Form("the path of a file", _text)
TEXTS = Form("a list of texts, as [a, b]", _texts)
WORDS = Form("a list of texts, as [--option, value]", _words)
MEASURE = Form('a way to measure memory, as "optimistic", "managed" or "process"', _measure)

_TLS = (
    "ca-file",
    "ciphers",
    "scheduler.cert",
    "scheduler.key",
    "client.cert",
    "client.key",
    "worker.cert",
    "worker.key",
)

FORMS: dict[str, Form] = {
    "distributed.scheduler.active-memory-manager.interval": DURATION,
    "distributed.scheduler.active-memory-manager.measure": MEASURE,
    "distributed.scheduler.active-memory-manager.policies": Form(
        "a list of mappings with a `class`, as [{class: package.Policy}]",
        lambda value: [each["class"] for each in value],
    ),
    "distributed.scheduler.active-memory-manager.start": SWITCH,
    "distributed.scheduler.allowed-failures": COUNT,
    "distributed.scheduler.allowed-imports": TEXTS,
    "distributed.scheduler.bandwidth": SPEED,
    "distributed.scheduler.blocked-handlers": TEXTS,
    "distributed.scheduler.contact-address": Form('an address, as "tcp://10.0.0.1:8786"', _text),
    "distributed.scheduler.default-data-size": SIZE,
    "distributed.scheduler.default-task-durations": Form(
        'a mapping of prefixes to durations, as {slow: "2 hours"}', _durations
    ),
    "distributed.scheduler.events-cleanup-delay": DURATION,
    "distributed.scheduler.http.routes": Form(
        "a list of modules, as [distributed.http.health]", _texts
    ),
    "distributed.scheduler.idle-timeout": DURATION,
    "distributed.scheduler.locks.lease-timeout": DURATION,
    "distributed.scheduler.locks.lease-validation-interval": DURATION,
    "distributed.scheduler.no-workers-timeout": DURATION,
    "distributed.scheduler.pickle": SWITCH,
    "distributed.scheduler.preload": Form(
        "a list of modules, files or URLs, as [package.module]", _texts
    ),
    "distributed.scheduler.preload-argv": WORDS,
    "distributed.scheduler.reuse-broadcast-comm": SWITCH,
    "distributed.scheduler.rootish-taskgroup": COUNT,
    "distributed.scheduler.rootish-taskgroup-dependencies": COUNT,
    "distributed.scheduler.unknown-task-duration": DURATION,
    "distributed.scheduler.validate": SWITCH,
    "distributed.scheduler.work-stealing": SWITCH,
    "distributed.scheduler.work-stealing-interval": DURATION,
    "distributed.scheduler.worker-saturation": ABOVE_NOTHING,
    "distributed.scheduler.worker-ttl": DURATION,
    "distributed.comm.compression": Form(
        'false, "auto", or a name as "lz4" or "zstd"', _compression
    ),
    "distributed.comm.default-scheme": Form('a scheme, as "tcp" or "tls"', _text),
    "distributed.comm.offload": Form(
        f"{SIZE.words}, or false", lambda value: value is False or _size(value)
    ),
    "distributed.comm.require-encryption": SWITCH,
    "distributed.comm.retry.count": COUNT,
    "distributed.comm.retry.delay.max": DURATION,
    "distributed.comm.retry.delay.min": DURATION,
    "distributed.comm.shard": SIZE,
    "distributed.comm.socket-backlog": COUNT,
    "distributed.comm.timeouts.connect": DURATION,
    "distributed.comm.timeouts.tcp": DURATION,
    **{f"distributed.comm.tls.{name}": TEXT if name == "ciphers" else FILE for name in _TLS},
    "distributed.comm.tls.max-version": Form("1.2 or 1.3", _tls_version),
    "distributed.comm.tls.min-version": Form("1.2 or 1.3", _tls_version),
    "distributed.comm.websockets.shard": SIZE,
    "distributed.comm.zstd.level": Form("a whole number", _number(-math.inf, whole=True)),
    "distributed.comm.zstd.threads": Form("a whole number from -1 up", _number(-1, whole=True)),
    "distributed.adaptive.target-duration": DURATION,
    "distributed.admin.event-loop": Form('"tornado", "uvloop" or "asyncio"', _text),
    "distributed.admin.log-length": COUNT,
    "distributed.admin.low-level-log-length": COUNT,
    "distributed.admin.max-error-length": COUNT,
    "distributed.admin.system-monitor.interval": DURATION,
    "distributed.admin.tick.interval": DURATION,
    "distributed.admin.tick.limit": DURATION,
    "distributed.dashboard.graph-max-items": COUNT,
    "distributed.dashboard.link": TEXT,
    "distributed.dashboard.prometheus.namespace": TEXT,
    "paceline.http.token": TEXT,
    "paceline.http.token-file": FILE,
    "paceline.scheduler.client-grace": DURATION,
    "paceline.scheduler.client-grace-bytes": SIZE,
    "paceline.scheduler.dump-timeout": DURATION,
    "paceline.scheduler.retire-running": DURATION,
    "paceline.security.peer-names": Form("a mapping of kinds of peers to lists of names", dict),
    "paceline.security.secret": TEXT,
    "paceline.security.secret-file": FILE,
    "paceline.security.unpickle": SWITCH,
}
"""Key -> what it may hold. None is always accepted: it means the default, or none."""


def malformed() -> Iterator[str]:
    """A line for each value that cannot be read: key, value, where it comes from, what is accepted."""
    for key, form in FORMS.items():
        value = dask.config.get(key, default=None)
        if value is None or value == "":
            continue
        try:
            form.read(value)
        except (ValueError, TypeError, KeyError, AttributeError):
            yield f"`{key}` cannot be {value!r}{_origin(key)}: it takes {form.words}"


def unknown() -> Iterator[str]:
    """A line for each key that nobody reads."""
    for section in SECTIONS:
        found = dask.config.get(section, default=None)
        if isinstance(found, Mapping):
            for key in _leaves(found, section):
                if not _is_known(key):
                    near = difflib.get_close_matches(key, FORMS, n=1, cutoff=0.8)
                    instead = f"; is it `{near[0]}`?" if near else ""
                    yield f"Nobody reads the setting `{key}`{_origin(key)}{instead}"


def text_of(lines: list[str]) -> str:
    """Several problems as one text."""
    rest = len(lines) - TOLD_MAX
    return "\n".join([*lines[:TOLD_MAX], *([f"... and {rest} more"] if rest > 0 else [])])


def _leaves(values: Mapping[Any, Any], start: str) -> Iterator[str]:
    for name, value in values.items():
        key = f"{start}.{str(name).replace('_', '-')}"
        if isinstance(value, Mapping) and value and key not in FORMS:
            yield from _leaves(value, key)
        else:
            yield key


def _is_known(key: str) -> bool:
    if key in FORMS or any(each.startswith(key + ".") for each in FORMS):
        return True
    return any(key == each or key.startswith(each + ".") for each in OPEN)


def _origin(key: str) -> str:
    """Where a value comes from, where that is an environment variable or a file that is easily found."""
    variable = "DASK_" + key.upper().replace("-", "_").replace(".", "__")
    if variable in os.environ:
        return f" (the variable {variable})"
    for path in dask.config.paths:
        for name in _files(path):
            try:
                with open(name) as file:
                    text = file.read()
            except (OSError, UnicodeDecodeError):
                continue
            if _mentions(text, key.rsplit(".", 1)[-1]):
                return f" (in {name}, it seems)"
    return ""


def _files(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return []
    return [os.path.join(path, name) for name in names if name.endswith((".yaml", ".yml", ".json"))]


def _mentions(text: str, word: str) -> bool:
    lines = (line.strip().strip("\"'") for line in text.splitlines())
    return any(line.startswith((f"{word}:", f'{word}":', json.dumps(word))) for line in lines)
