"""Report observed messages: as lines of text, JSON lines and counts."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TextIO

import click
from paceline.protocol.catalogue import TABLES
from paceline.protocol.errors import ProtocolError
from paceline.protocol.json_form import dumps, to_json
from paceline.protocol.message_fields import MESSAGE_FIELDS
from paceline.protocol.observer import ObservedMessage
from paceline.protocol.omitted_frame import OmittedFrame
from paceline.protocol.payload import Payload
from paceline.protocol.sniffing import real_nbytes
from paceline.scheduler.core.text import count as plural

from .proxy import TappedConnection

#: Number of ops that are counted separately; a peer could send any number of them.
COUNTED_OPS_MAX: Final = 1000
#: Characters of a field's value that are shown.
VALUE_MAX_LENGTH: Final = 60
#: Elements of a collection that are shown.
SHOWN_ELEMENTS_MAX: Final = 4
#: Longer bytes objects are omitted from JSON lines.
JSONL_BYTES_MAX_NBYTES: Final = 64 * 2**10

#: Fields that are not shown.
HIDDEN_FIELDS = frozenset(("op", "reply", "close", "serializers", "stimulus_id"))
#: Fields with keys of tasks in requests whose classes do not declare them.
KEY_NAMES = ("key", "keys", "who_has", "nbytes", "data", "executing", "keys_or_stimuli")

#: Kind of message -> mark after its op, and color.
_STYLES = {
    "request": ("?", "cyan"),
    "reply": ("=", "blue"),
    "inner": ("(inside)", "cyan"),
    "value": ("~", "blue"),
    "stream": ("", "green"),
    "handshake": ("", "white"),
    "unreadable": ("", "red"),
}


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects the messages that are shown; all conditions must be met.

    Attributes:
        ops: patterns (``task-*``), one of which must match; () for any.
        peer: text that the peer's name or address must contain.
        key: key of a task that the message must contain; a pattern if it is a str.
    """

    ops: tuple[str, ...] = ()
    peer: str | None = None
    key: Any = None

    def matches(self, tapped: TappedConnection, seen: ObservedMessage) -> bool:
        """Return whether a message is shown."""
        if self.ops and not any(fnmatch.fnmatchcase(seen.op, op) for op in self.ops):
            return False
        if self.peer is not None and self.peer not in f"{tapped.observer.peer} {tapped.address}":
            return False
        return self.key is None or any(map(self._is_key, keys_in(seen)))

    def _is_key(self, key: Any) -> bool:
        if isinstance(self.key, str):
            return fnmatch.fnmatchcase(key if isinstance(key, str) else repr(key), self.key)
        return bool(key == self.key)


def keys_in(seen: ObservedMessage) -> Iterator[Any]:
    """Yield the keys of tasks in a message."""
    if not isinstance(seen.value, dict):
        return
    names = list(KEY_NAMES)
    op = TABLES[seen.direction].get(seen.op) if seen.direction else None
    known = None if op is None else MESSAGE_FIELDS[op.cls]
    if known is not None:
        names += [known.key_field or "key", *known.keys_fields, *known.key_maps]
    for name in dict.fromkeys(names):
        value = seen.value.get(name)
        is_one = name == "key" or (known is not None and name == known.key_field)
        if is_one and name in seen.value:
            yield value
        elif isinstance(value, tuple | set | dict):
            yield from value


# ------------------------------------------------------------------ one line per message


def line(
    tapped: TappedConnection, when: float, seen: ObservedMessage, *, color: bool = False
) -> str:
    """Return the line to print for a message."""
    clock = time.strftime("%H:%M:%S", time.localtime(when)) + f".{int(when % 1 * 1000):03d}"
    peer = tapped.observer.peer or tapped.address
    name = seen.op or seen.kind
    arrow = "→" if seen.way == "up" else "←"
    mark, fg = _STYLES[seen.kind]
    head = f"{name}{mark}"
    if color:
        clock = click.style(clock, dim=True)
        head = click.style(head, fg=fg, bold=True)
    size = f"{seen.nbytes} B" + (", in part" if seen.omitted else "")
    return f"{clock} #{tapped.number} {peer} {arrow} {head} {fields(seen.value)} ({size})"


def fields(value: Any) -> str:
    """Return the fields of a message, shortened."""
    if not isinstance(value, dict):
        return "" if value is None else short(value)
    return " ".join(f"{k}={short(x)}" for k, x in value.items() if k not in HIDDEN_FIELDS)


def short(value: Any) -> str:
    """Return a value as short text on one line."""
    if isinstance(value, Payload):
        return f"<{value.kind} {len(value.header) + sum(map(real_nbytes, value.frames))} B>"
    if isinstance(value, OmittedFrame):
        return f"<{value.omitted_nbytes} B>"
    if isinstance(value, bytes | bytearray) and len(value) > VALUE_MAX_LENGTH // 2:
        return f"<{len(value)} B>"
    if isinstance(value, tuple | list | set | frozenset | dict):
        items = value.items() if isinstance(value, dict) else value
        first = islice(items, SHOWN_ELEMENTS_MAX)
        if isinstance(value, dict):
            shown = [f"{short(k)}: {short(x)}" for k, x in first]
        else:
            shown = [short(x) for x in first]
        shown += [f"… {len(value)}"] if len(value) > SHOWN_ELEMENTS_MAX else []
        text = ", ".join(shown)
        return _cut(f"({text})" if isinstance(value, tuple | list) else f"{{{text}}}")
    if isinstance(value, str):
        return _cut(repr(value[: VALUE_MAX_LENGTH + 1]))
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_MAX_LENGTH else text[: VALUE_MAX_LENGTH - 1] + "…"


# ------------------------------------------------------------------ JSON lines


def record(tapped: TappedConnection, when: float, seen: ObservedMessage) -> str:
    """Return a message as a line of JSON, in the form of ``json_form`` without long bytes."""
    try:
        form = to_json(seen.value, JSONL_BYTES_MAX_NBYTES)
    except ProtocolError as error:
        form = {"$unreadable": str(error)}
    fields = {
        "time": when,
        "connection": tapped.number,
        "peer": tapped.observer.peer or tapped.address,
        "way": seen.way,
        "kind": seen.kind,
        "direction": seen.direction,
        "nbytes": seen.nbytes,
        "frames": seen.n_frames,
        "violations": [str(violation) for violation in seen.violations],
        "op": seen.op,
        "message": form,
    }
    return dumps(fields)


# ------------------------------------------------------------------ counts


@dataclass(slots=True)
class Count:
    """Counts of the messages of one op in one direction."""

    n: int = 0
    nbytes: int = 0
    n_violations: int = 0


@dataclass(slots=True)
class Stats:
    """Counts of all messages.

    Attributes:
        counts: (direction or way, kind, op) -> count.
        started, ended: times of the first and the last message, seconds since the epoch.
        kinds: kind of violation -> number.
    """

    counts: dict[tuple[str, str, str], Count] = field(default_factory=dict)
    started: float = 0.0
    ended: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)

    def add(self, when: float, seen: ObservedMessage) -> None:
        """Count a message."""
        self.started = self.started or when
        self.ended = when
        name: tuple[str, str, str] = (seen.direction or seen.way, seen.kind, seen.op)
        if name not in self.counts and len(self.counts) >= COUNTED_OPS_MAX:
            name = ("", seen.kind, "(others)")
        count = self.counts.setdefault(name, Count())
        count.n += 1
        count.nbytes += seen.nbytes
        count.n_violations += len(seen.violations)
        for violation in seen.violations:
            self.kinds[violation.kind] = self.kinds.get(violation.kind, 0) + 1

    @property
    def n_violations(self) -> int:
        """Number of all violations."""
        return sum(self.kinds.values())

    def summary(self, n_connections: int) -> str:
        """Return a summary on one line."""
        n = sum(count.n for count in self.counts.values())
        nbytes = sum(count.nbytes for count in self.counts.values())
        found = ", ".join(f"{n} x {kind}" for kind, n in sorted(self.kinds.items()))
        violations = (
            f"{plural(self.n_violations, 'violation')} ({found})" if found else "no violations"
        )
        seconds = self.ended - self.started
        return (
            f"{plural(n, 'message')}, {plural(nbytes, 'byte')}, "
            f"on {plural(n_connections, 'connection')} in {seconds:.1f} s; {violations}"
        )

    def table(self) -> Iterator[str]:
        """Yield lines with counts, bytes and rates per op, those with the most bytes first."""
        seconds = max(self.ended - self.started, 1e-3)
        yield (
            f"{'direction':<20} {'op':<36} {'messages':>9} {'per s':>9} {'bytes':>12} "
            f"{'bytes/s':>11} {'violations':>10}"
        )
        rows = sorted(self.counts.items(), key=lambda item: (-item[1].nbytes, item[0]))
        for (direction, kind, op), count in rows:
            name = (op or kind) + _STYLES[kind][0]
            yield (
                f"{direction:<20} {name:<36} {count.n:>9} {count.n / seconds:>9.1f} "
                f"{count.nbytes:>12} {count.nbytes / seconds:>11.0f} {count.n_violations:>10}"
            )


class Reporter:
    """The observer of a wiretap.

    Args:
        show: prints a line; None to print violations only.
        warn: prints a violation.
        chosen: selects the messages that are shown and written; all are checked and counted.
        jsonl: file for a line of JSON per message.
    """

    def __init__(
        self,
        show: Callable[[str], None] | None,
        warn: Callable[[str], None],
        *,
        chosen: Filter | None = None,
        jsonl: TextIO | None = None,
        color: bool = False,
    ) -> None:
        self._show = show
        self._warn = warn
        self._chosen = chosen or Filter()
        self._jsonl = jsonl
        self._color = color
        self.stats = Stats()

    def __call__(self, tapped: TappedConnection, when: float, seen: ObservedMessage) -> None:
        """Report a message."""
        self.stats.add(when, seen)
        chosen = self._chosen.matches(tapped, seen)
        if chosen and self._jsonl is not None:
            self._jsonl.write(record(tapped, when, seen) + "\n")
        text = ""
        if self._show is not None and (chosen or seen.violations):
            text = line(tapped, when, seen, color=self._color)
            self._show(text)
        for violation in seen.violations:
            problem = (
                f"    !! {violation}"
                if text
                else f"!! {tapped.observer.peer or tapped.address}: {violation}"
            )
            self._warn(click.style(problem, fg="red", bold=True) if self._color else problem)
