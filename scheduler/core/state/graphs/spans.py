"""Spans: the tree of task groups that clients named with ``distributed.span``.

Groups without a span get a default one. As in stock's ``distributed/spans.py``, but in the core,
where groups are created: the cost is per graph and per group, never per task. Stock keeps every
span and group forever. Here a limited number of finished ones is kept (``SPANS_MAX``,
``DEFAULT_SPANS_MAX``, ``GROUPS_OVER_MAX``), and the sums of older ones go to their span or its
parent, if there is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from paceline.scheduler.core.state.containers import add_up

from .computations import Totals, _identity, note_code

if TYPE_CHECKING:
    from paceline.scheduler.core.state.model import TaskGroup

#: Spans that are kept; beyond, the oldest without children adds its sums to its parent and is
#: dropped.
SPANS_MAX: Final = 1000
#: Default spans that are kept, one per computation: as many as stock keeps computations.
DEFAULT_SPANS_MAX: Final = 100
#: Metric names shared by spans, and metrics of one span or of the cluster.
METRIC_NAMES_MAX: Final = 10_000
#: Further metrics of the prefix "(other)", which differ in context, activity or unit.
OTHER_METRICS_MAX: Final = 1_000
#: Groups that are kept after their last task was forgotten, over all spans and computations.
GROUPS_OVER_MAX: Final = 250
#: Pieces of metadata that a span keeps.
METADATA_MAX: Final = 100
#: Pieces of metadata shared by spans.
METADATA_SHARED_MAX: Final = 100
#: Changes of the number of threads that are kept.
THREADS_LOG_MAX: Final = 10_000
#: The name of default spans.
DEFAULT: Final = ("default",)

#: A client's annotation: the names from the root down, and their ids.
SpanPath = tuple[tuple[str, ...], tuple[str, ...]]


def add_metric(sums: dict[Any, float], name: Any, value: int | float) -> None:
    """Add `value` to the metric `name`: (context, prefix, activity, unit), or a string.

    If `sums` holds ``METRIC_NAMES_MAX`` metrics, those of further prefixes are summed under the
    prefix "(other)".
    """
    if name not in sums and len(sums) >= METRIC_NAMES_MAX:
        if type(name) is not tuple or len(name) < 2:
            return
        name = (name[0], "(other)", *name[2:])
        if name not in sums and len(sums) >= METRIC_NAMES_MAX + OTHER_METRICS_MAX:
            return
    sums[name] = sums.get(name, 0) + value


@dataclass(slots=True, eq=False, repr=False)
class Span:
    """A use of a ``with span(...)`` block.

    Attributes:
        name: the tags from the root down to its own.
        id: unique.
        parent: the enclosing span.
        enqueued: when its first task arrived, in seconds since the epoch.
        threads_from: number of the entry of the threads log that applied when the span started.
        children: spans opened in it, oldest first.
        groups: its own task groups, oldest first.
        codes: source lines of clients as sent, without duplicates.
        metadata: metadata of computed collections, as sent.
        metrics: (context, prefix, activity, unit) -> amount reported by workers, without children.
        dropped: sums over groups and children that were dropped.
        open_group: a group that was not done when last checked.
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
    dropped: Totals | None = None
    open_group: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"Span<name={self.name}, id={self.id}>"

    @property
    def annotation(self) -> dict[str, tuple[str, ...]] | None:
        """The annotation of its tasks; None for a default span."""
        if self.name == DEFAULT:
            return None
        ids: list[str] = []
        span: Span | None = self
        while span is not None:
            ids.append(span.id)
            span = span.parent
        return {"name": self.name, "ids": tuple(reversed(ids))}

    def traverse_spans(self) -> Iterator[Span]:
        """Yield the span and its descendants, parents first."""
        stack = [self]
        while stack:
            span = stack.pop()
            yield span
            stack += reversed(span.children)

    def traverse_groups(self) -> Iterator[TaskGroup]:
        """Yield the groups of the span and its descendants."""
        for span in self.traverse_spans():
            yield from span.groups

    def totals(self) -> Totals:
        """Return the sums over the span and its descendants."""
        out = Totals()
        for span in self.traverse_spans():
            if span.dropped is not None:
                out.add(span.dropped)
            for group in span.groups:
                out.add_group(group)
        return out

    @property
    def done(self) -> bool:
        """Return whether no task of the span or its descendants is waiting or running."""
        return not any(span.is_open() for span in self.traverse_spans())

    def is_open(self) -> bool:
        """Return whether a task of its own groups is waiting or running.

        The group that was last found open is checked first.
        """
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
        """Return the metrics of the span and its descendants."""
        out: dict[tuple[Any, ...], float] = {}
        for span in self.traverse_spans():
            add_up(out, span.metrics)
        return out


def _kept_once(known: dict[Any, Any], most: int, identity: Any, value: Any) -> Any:
    """Return the object stored in `known` under `identity`.

    If there is none, store `value` unless `known` has `most` entries.
    """
    if len(known) >= most:
        return known.get(identity, value)
    return known.setdefault(identity, value)


class SpanTree:
    """The spans of a scheduler.

    Attributes:
        spans: id -> span, oldest first.
        threads: (seconds since the epoch, threads of the cluster from then on), oldest first.
        threads_dropped: number of entries dropped from `threads`.
    """

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
        """Assign the groups of a graph to spans.

        Groups that already have a span keep it; groups without a path, which their first annotated
        task names, get the default span. `code` and `metadata` are stored with each of the spans.
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
        if metadata:  # mostly only the type of the collection, so equal ones are shared
            identity = _identity(metadata)
            metadata = _kept_once(self._metadata, METADATA_SHARED_MAX, identity, metadata)
        for span in touched:
            note_code(span.codes, code)
            if metadata and len(span.metadata) < METADATA_MAX:
                span.metadata.append(metadata)

    def ensure(self, path: SpanPath, now: float) -> Span:
        """Return the span of `path`; create it and its ancestors if they are missing."""
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
        """Return the default span; create another if all tasks of the current one are done."""
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
        """Drop the oldest span without children, other than `keep`; add its sums to its parent."""
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
        parent.dropped = parent.dropped or Totals()
        parent.dropped.add(span.totals())
        for name, value in span.metrics.items():
            add_metric(parent.metrics, name, value)
        for code in span.codes.values():
            note_code(parent.codes, code)

    def group_over(self, group: TaskGroup) -> TaskGroup | None:
        """Keep `group`, whose tasks are all forgotten, for a while; then add its sums to its span.

        Returns:
            A group that is no longer kept, so that others drop it too, or None.
        """
        self._groups_over.append(group)
        if len(self._groups_over) <= GROUPS_OVER_MAX:
            return None
        gone = self._groups_over.popleft()
        self._fold(gone)
        return gone

    def all_groups_over(self) -> None:
        """Add the sums of all groups to their spans, because a restart forgets every task."""
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
        span.dropped = span.dropped or Totals()
        span.dropped.add_group(group)

    def add_metrics(self, data: Mapping[Any, Any]) -> None:
        """Add metrics of a heartbeat: (context, span id, prefix, activity, unit) -> increment."""
        for name, value in data.items():
            if not isinstance(name, tuple) or len(name) < 2:
                continue
            span = self.spans.get(name[1])
            if span is not None:
                rest = (name[0], *name[2:])
                rest = _kept_once(self._metric_names, METRIC_NAMES_MAX, rest, rest)
                add_metric(span.metrics, rest, value)

    def note_threads(self, n: int, now: float) -> None:
        """Log that the cluster has `n` threads from `now` on."""
        self.threads.append((now, n))
        if len(self.threads) > THREADS_LOG_MAX:
            n_dropped = len(self.threads) // 2
            del self.threads[:n_dropped]
            self.threads_dropped += n_dropped

    def threads_since(self, span: Span) -> list[tuple[float, int]]:
        """Return the threads log from the entry that applied when `span` started."""
        return self.threads[max(0, span.threads_from - self.threads_dropped) :]


def intervals(
    active: Iterable[tuple[float, float]], threads: Iterable[tuple[float, int]]
) -> list[tuple[float, float, int]]:
    """Return (begin, end, threads of the cluster) of the times in which something was active.

    `active` has (begin, end), which may overlap, and `threads` (since, number), oldest first.
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
    """Return `times` with overlapping and touching ones merged."""
    out: list[tuple[float, float]] = []
    for begin, end in sorted(times):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out
