"""Spans: task groups that clients put under one name with ``distributed.span``, as a tree; the rest is in a default one.

As stock's ``distributed/spans.py`` has them, in the core, where groups are made: what is done is done per graph and
per group, never per task. Stock keeps every span and every group for ever; here so many of those that are over are
kept by themselves (``SPANS_MAX``, ``DEFAULT_SPANS_MAX``, ``GROUPS_OVER_MAX``), and the sums of older ones go into their span
or its parent, where there is one.

Must not know: clients' pickles (source code and metadata stay closed); the clock; who looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from paceline.protocol.payload import Payload

if TYPE_CHECKING:
    from .groups import TaskGroup

#: Spans that are kept; past it, the oldest that has no children gives its sums to its parent and goes.
SPANS_MAX: Final = 1000
#: Default spans that are kept, of which each is for what was computed at a time: as many as stock keeps computations.
DEFAULT_SPANS_MAX: Final = 100
#: Different names of metrics that spans share; those beyond are each span's own.
METRIC_NAMES_MAX: Final = 10_000
#: Groups that are kept, over all spans and computations, after their last task was forgotten.
GROUPS_OVER_MAX: Final = 250
#: Different pieces of code, and entries of metadata, that a span keeps.
CODES_MAX: Final = 100
METADATA_MAX: Final = 100
#: Different pieces of metadata that are kept once for all spans.
METADATA_SHARED_MAX: Final = 100
#: Changes of the number of threads that are kept.
THREADS_LOG_MAX: Final = 10_000
#: The name of spans for what no client put under one.
DEFAULT: Final = ("default",)
#: Activities whose metrics workers send by span (``distributed.spans.CONTEXTS_WITH_SPAN_ID``).
CONTEXTS: Final = ("execute", "p2p")

#: What a client annotates with: the names from the root down, and as many ids.
SpanPath = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(slots=True)
class Totals:
    """Sums over groups that are over and were let go.

    Attributes:
        states: state -> tasks. start, stop: seconds since the epoch, 0 where none.
        all_durations: action -> seconds. duration: seconds. nbytes: bytes.
    """

    states: dict[str, int] = field(default_factory=dict)
    all_durations: dict[str, float] = field(default_factory=dict)
    duration: float = 0.0
    nbytes: int = 0
    start: float = 0.0
    stop: float = 0.0

    def add_group(self, group: TaskGroup) -> None:
        """Count a group in."""
        add_up(self.states, {"forgotten": group.n_added} if group.empty else group.states)
        add_up(self.all_durations, group.all_durations)
        self.duration += group.duration
        self.nbytes += group.nbytes_total
        self._add_times(group.start, group.stop)

    def add(self, other: Totals) -> None:
        """Count other sums in."""
        add_up(self.states, other.states)
        add_up(self.all_durations, other.all_durations)
        self.duration += other.duration
        self.nbytes += other.nbytes
        self._add_times(other.start, other.stop)

    def _add_times(self, start: float, stop: float) -> None:
        if start:
            self.start = min(self.start or start, start)
        self.stop = max(self.stop, stop)


def add_up(sums: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    """Add values key by key."""
    for key, value in more.items():
        sums[key] = sums.get(key, 0) + value


@dataclass(slots=True, eq=False, repr=False)
class Span:
    """One opening of a ``with span(...)`` block.

    Attributes:
        name: the tags from the root down to its own.
        id: unique.
        parent: the span that it was opened in.
        enqueued: when its first task came, seconds since the epoch.
        children: spans opened in it, oldest first.
        groups: its own task groups, oldest first.
        codes: source lines of clients, as sent, each once.
        metadata: of collections that were computed, as sent.
        metrics: (context, prefix, activity, unit) -> amount, as workers told; its own.
        threads_from: number of the entry of the threads' log that held when it began.
        over: sums of what was let go.
        open_group: a group of it that was not done when looked at last.
    """

    name: tuple[str, ...]
    id: str
    parent: Span | None
    enqueued: float
    threads_from: int = 0
    children: list[Span] = field(default_factory=list)
    groups: dict[TaskGroup, None] = field(default_factory=dict)
    codes: dict[bytes, Any] = field(default_factory=dict)
    metadata: list[Any] = field(default_factory=list)
    metrics: dict[tuple[Any, ...], float] = field(default_factory=dict)
    over: Totals | None = None
    open_group: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"Span<name={self.name}, id={self.id}>"

    @property
    def annotation(self) -> dict[str, tuple[str, ...]] | None:
        """What tasks of it are annotated with; None for a default span."""
        if self.name == DEFAULT:
            return None
        ids: list[str] = []
        span: Span | None = self
        while span is not None:
            ids.append(span.id)
            span = span.parent
        return {"name": self.name, "ids": tuple(reversed(ids))}

    def traverse_spans(self) -> Iterator[Span]:
        """Itself and all below, parents first."""
        stack = [self]
        while stack:
            span = stack.pop()
            yield span
            stack += reversed(span.children)

    def traverse_groups(self) -> Iterator[TaskGroup]:
        """Groups of itself and all below."""
        for span in self.traverse_spans():
            yield from span.groups

    def totals(self) -> Totals:
        """Sums over itself and all below."""
        out = Totals()
        for span in self.traverse_spans():
            if span.over is not None:
                out.add(span.over)
            for group in span.groups:
                out.add_group(group)
        return out

    @property
    def done(self) -> bool:
        """Whether none of its tasks, or of those below, waits or runs."""
        return not any(span.is_open() for span in self.traverse_spans())

    def is_open(self) -> bool:
        """Whether a task of its own groups waits or runs. The group that was found open last is asked first."""
        group = self.open_group
        if group is not None and not group.done:
            return True
        self.open_group = None
        for group in reversed(self.groups):
            if not group.done:
                self.open_group = group
                return True
        return False

    def all_metrics(self) -> dict[tuple[Any, ...], float]:
        """Metrics of itself and all below."""
        out: dict[tuple[Any, ...], float] = {}
        for span in self.traverse_spans():
            add_up(out, span.metrics)
        return out

    def add_code(self, code: Any) -> None:
        """Keep source lines, where they are new."""
        note_code(self.codes, code)


def note_code(codes: dict[bytes, Any], code: Any) -> None:
    """Keep source lines that are not there yet: bytes that tell pieces apart -> the piece, closed or plain."""
    if code and len(codes) < CODES_MAX:
        codes.setdefault(_identity(code), code)


def _identity(code: Any) -> bytes:
    if isinstance(code, Payload):
        return b"".join((code.header, *(bytes(frame) for frame in code.frames)))
    return repr(code).encode()


def _kept_once(known: dict[Any, Any], most: int, identity: Any, value: Any) -> Any:
    """One and the same object for all that is alike; of at most so many kinds."""
    if len(known) >= most:
        return known.get(identity, value)
    return known.setdefault(identity, value)


class SpanTree:
    """All spans of a scheduler.

    Attributes:
        spans: id -> span, oldest first.
        threads: (seconds since the epoch, threads of the cluster from then on); oldest first.
        threads_dropped: entries of it that were dropped.
    """

    __slots__ = (
        "_current_default",
        "_defaults",
        "_groups_over",
        "_last_default",
        "_metadata",
        "_metric_names",
        "spans",
        "threads",
        "threads_dropped",
    )

    def __init__(self) -> None:
        self.spans: dict[str, Span] = {}
        self.threads: list[tuple[float, int]] = [(0.0, 0)]
        self.threads_dropped = 0
        self._current_default: Span | None = None
        self._defaults: deque[Span] = deque()
        self._last_default = 0
        self._metadata: dict[bytes, Any] = {}
        self._metric_names: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._groups_over: deque[TaskGroup] = deque()

    def observe(
        self,
        groups: Iterable[tuple[TaskGroup, SpanPath | None]],
        now: float,
        code: Any = None,
        metadata: Any = None,
    ) -> None:
        """A graph's groups, each with what the first annotated task of it says: those without a span get one.

        Args:
            now: seconds since the epoch.
            code, metadata: of the graph, for each span that it touches.
        """
        default: Span | None = None
        touched: dict[Span, None] = {}
        for group, path in groups:
            if group.span_id is not None:
                known = self.spans.get(group.span_id)
                if known is not None:
                    touched[known] = None
                continue
            if path is not None:
                span = self.ensure(path, now)
            else:
                if default is None:
                    default = self._default(now)
                span = default
            group.span_id = span.id
            span.groups[group] = None
            touched[span] = None
        if metadata:  # most graphs say of what type they are, and no more
            identity = _identity(metadata)
            metadata = _kept_once(self._metadata, METADATA_SHARED_MAX, identity, metadata)
        for span in touched:
            span.add_code(code)
            if metadata and len(span.metadata) < METADATA_MAX:
                span.metadata.append(metadata)

    def ensure(self, path: SpanPath, now: float) -> Span:
        """The span of this path, and those above it; made where they are not there."""
        names, ids = path
        parent: Span | None = None
        for depth, span_id in enumerate(ids, 1):
            span = self.spans.get(span_id)
            if span is None:
                span = self._make(names[:depth], span_id, parent, now)
            parent = span
        assert parent is not None, path
        return parent

    def _default(self, now: float) -> Span:
        """The default span; another where all of its tasks are done."""
        span = self._current_default
        if span is None or span.id not in self.spans or not span.is_open():
            self._last_default += 1
            span = self._make(DEFAULT, f"default-{self._last_default}", None, now)
            self._current_default = span
            self._defaults.append(span)
            if len(self._defaults) > DEFAULT_SPANS_MAX:
                self.spans.pop(self._defaults.popleft().id, None)
        return span

    def _make(self, name: tuple[str, ...], span_id: str, parent: Span | None, now: float) -> Span:
        threads_from = self.threads_dropped + len(self.threads) - 1
        span = Span(name, span_id, parent, now, threads_from)
        self.spans[span_id] = span
        if parent is not None:
            parent.children.append(span)
        if len(self.spans) > SPANS_MAX:
            self._drop_oldest(span)
        return span

    def _drop_oldest(self, keep: Span) -> None:
        """The oldest span without children goes; ``keep`` and those above it stay."""
        for span in self.spans.values():
            if not span.children and span is not keep:
                break
        else:
            return
        del self.spans[span.id]
        parent = span.parent
        if parent is None:
            return
        parent.children.remove(span)
        parent.over = parent.over or Totals()
        parent.over.add(span.totals())
        add_up(parent.metrics, span.metrics)
        for code in span.codes.values():
            parent.add_code(code)

    # -- what becomes of groups

    def group_over(self, group: TaskGroup) -> TaskGroup | None:
        """All tasks of a group are forgotten: it is kept for a while, then its span keeps its sums.

        Returns:
            One whose while is over, for others that keep it.
        """
        self._groups_over.append(group)
        if len(self._groups_over) <= GROUPS_OVER_MAX:
            return None
        gone = self._groups_over.popleft()
        self._fold(gone)
        return gone

    def all_groups_over(self) -> None:
        """A restart: every group is forgotten."""
        self._groups_over.clear()
        for span in self.spans.values():
            for group in list(span.groups):
                self._fold(group)

    def _fold(self, group: TaskGroup) -> None:
        span = self.spans.get(group.span_id or "")
        if span is None or group not in span.groups:
            return
        del span.groups[group]
        if span.open_group is group:
            span.open_group = None
        span.over = span.over or Totals()
        span.over.add_group(group)

    # -- what workers tell

    def add_metrics(self, data: Mapping[Any, float]) -> None:
        """A heartbeat: (context, span id, prefix, activity, unit) -> what was added since the one before."""
        for name, value in data.items():
            if not isinstance(name, tuple) or len(name) < 2:
                continue
            span = self.spans.get(name[1])
            if span is not None:
                rest = (name[0], *name[2:])
                rest = _kept_once(self._metric_names, METRIC_NAMES_MAX, rest, rest)
                span.metrics[rest] = span.metrics.get(rest, 0) + value

    def note_threads(self, n: int, now: float) -> None:
        """The cluster has so many threads from now on."""
        self.threads.append((now, n))
        if len(self.threads) > THREADS_LOG_MAX:
            n_dropped = len(self.threads) // 2
            del self.threads[:n_dropped]
            self.threads_dropped += n_dropped

    def threads_since(self, span: Span) -> list[tuple[float, int]]:
        """The log from the entry that held when the span began."""
        return self.threads[max(0, span.threads_from - self.threads_dropped) :]


def intervals(
    active: Iterable[tuple[float, float]], threads: Iterable[tuple[float, int]]
) -> list[tuple[float, float, int]]:
    """(begin, end, threads of the cluster) of the times in which something was active.

    Args:
        active: times, which may overlap: (begin, end) in seconds since the epoch.
        threads: (since, number), oldest first.
    """
    out: list[tuple[float, float, int]] = []
    log = list(threads)
    for begin, end in _united(active):
        for number, (since, n) in enumerate(log):
            until = log[number + 1][0] if number + 1 < len(log) else end
            first, last = max(begin, since), min(end, until)
            if first < last:
                out.append((first, last, n))
    return out


def _united(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Times that overlap or touch become one."""
    out: list[tuple[float, float]] = []
    for begin, end in sorted(times):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out
