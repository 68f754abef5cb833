"""Spans and computations for plugins, dashboards and ``run_on_scheduler`` functions.

``scheduler.extensions["spans"]`` is a view of the core's tree of spans. It returns the same objects
each time as long as their spans exist. Groups are the core's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any

from paceline.scheduler.core.state.containers import add_up
from paceline.scheduler.core.state.graphs.computations import Computation
from paceline.scheduler.core.state.graphs.spans import Span, intervals
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import TASK_STATES
from paceline.workers_compat.security.unpickling import deserialize
from sortedcontainers import SortedSet

from .views import StateView

#: Key of the time during which the threads of a span were idle or worked for other spans, in
#: stock's metrics.
IDLE = ("execute", "N/A", "idle or other spans", "seconds")
MERGED = "(merged)"


class SpansView:
    """Stock's ``SpansSchedulerExtension``, read-only.

    Args:
        now: returns seconds since the epoch.
    """

    def __init__(self, state: SchedulerState, now: Callable[[], float]) -> None:
        self.now = now
        self._state = state
        self._views: dict[Span, SpanView] = {}

    def view(self, span: Span) -> SpanView:
        found = self._views.get(span)
        if found is None:
            spans = self._state.spans.spans
            if len(self._views) > 2 * len(spans):  # most of them no longer exist
                self._views = {s: v for s, v in self._views.items() if spans.get(s.id) is s}
            found = self._views[span] = SpanView(span, self)
        return found

    #: Id -> span, oldest first, as in all the following.
    spans = property(
        lambda self: {name: self.view(span) for name, span in self._state.spans.spans.items()}
    )
    #: Spans without a parent.
    root_spans = property(
        lambda self: [view for view in self.spans.values() if view.core.parent is None]
    )
    #: Full name -> spans.
    spans_search_by_name = property(lambda self: self._index(lambda span: (span.name,)))
    #: Tag anywhere in the name -> spans.
    spans_search_by_tag = property(lambda self: self._index(lambda span: span.name))

    def _index(self, keys: Callable[[Span], Iterable[Any]]) -> defaultdict[Any, list[SpanView]]:
        out: defaultdict[Any, list[SpanView]] = defaultdict(list)
        for span in self._state.spans.spans.values():
            for key in keys(span):
                out[key].append(self.view(span))
        return out

    def find_by_tags(self, *tags: str) -> Iterator[SpanView]:
        """Yield the topmost spans with one of these tags, short names first."""
        by_tag = self.spans_search_by_tag
        found = dict.fromkeys(view for tag in tags for view in by_tag.get(tag, ()))
        for view in sorted(found, key=lambda view: len(view.name)):
            if view.parent not in found:
                yield view

    def merge_all(self) -> SpanView:
        """Return a span that is the sum of all. Raises ValueError if there is none."""
        return self.merge(self.root_spans)

    def merge_by_tags(self, *tags: str) -> SpanView:
        """Return the sum of spans with one of these tags. Raises ValueError if empty."""
        return self.merge(self.find_by_tags(*tags))

    def merge(self, views: Iterable[SpanView]) -> SpanView:
        """Return a span with these as children. Raises ValueError if there are none."""
        parts = [view.core for view in views]
        if not parts:
            raise ValueError("Nothing to merge")
        whole = Span((MERGED,), MERGED, None, min(part.enqueued for part in parts))
        whole.threads_from = min(part.threads_from for part in parts)
        whole.children = parts
        return SpanView(whole, self)

    def threads_since(self, span: Span) -> list[tuple[float, int]]:
        """Return the number of threads of the cluster over time, from before the span started."""
        return self._state.spans.threads_since(span)


class SpanView(StateView):
    """Stock's ``Span``, read-only. Attributes that are not computed are those of the core's."""

    __slots__ = ()

    core: Span
    context: SpansView

    all_durations = property(lambda self: self.core.totals().all_durations)
    duration = property(lambda self: self.core.totals().duration)
    nbytes_total = property(lambda self: self.core.totals().nbytes)
    #: Its own task groups as an ordered set, without those that ended long ago.
    groups = property(lambda self: dict(self.core.groups))
    #: Spans opened within this one, oldest first.
    children = property(lambda self: list(map(self.context.view, self.core.children)))
    #: Stock's slot: the metrics of its own tasks.
    _cumulative_worker_metrics = property(lambda self: dict(self.core.metrics))

    #: The span that this one was opened within, or None.
    parent = property(lambda self: self.core.parent and self.context.view(self.core.parent))
    #: State -> number of tasks.
    states = property(lambda self: {**dict.fromkeys(TASK_STATES, 0), **self.core.totals().states})
    #: Thread seconds of the cluster while it was active.
    active_cpu_seconds = property(
        lambda self: sum((end - begin) * n for begin, end, n in self.nthreads_intervals)
    )

    def traverse_spans(self) -> Iterator[SpanView]:
        """Yield this span and all spans below it."""
        for span in self.core.traverse_spans():
            yield self if span is self.core else self.context.view(span)

    @property
    def start(self) -> float:
        """Return when its first task started, seconds since the epoch; 0 if none has finished."""
        start = self.core.totals().start
        return float(max(start, self.enqueued)) if start else 0.0

    @property
    def stop(self) -> float:
        """Return when its last task finished, or the current time if tasks are left."""
        stop = self.core.totals().stop if self.done else self.context.now()
        return float(max(stop, self.enqueued))

    @property
    def code(self) -> list[Any]:
        """Return the distinct source snippets that clients sent: tuples of ``SourceCode``."""
        codes: dict[bytes, Any] = {}
        for span in self.core.traverse_spans():
            codes.update(span.codes)
        return [deserialize(code) for code in codes.values()]

    @property
    def metadata(self) -> dict[str, list[Any]] | None:
        """Return what was computed: ``{"collections": [...]}``."""
        if not self.core.metadata:
            return None
        found = [deserialize(each) for each in self.core.metadata]
        return {"collections": [c for each in found for c in each.get("collections", ())]}

    @property
    def cumulative_worker_metrics(self) -> dict[tuple[Any, ...], float]:
        """Return (context, prefix, activity, unit) -> amount, including idle time of threads."""
        out = self.core.all_metrics()
        known = sum(v for name, v in out.items() if name[0] == "execute" and name[-1] == "seconds")
        add_up(out, {IDLE: max(0.0, self.active_cpu_seconds - known)})
        return out

    @property
    def nthreads_intervals(self) -> list[tuple[float, float, int]]:
        """Return (begin, end, number of threads) while it was active, seconds since the epoch."""
        parts = self.children if self.id == MERGED else [self]
        active = [(part.enqueued, part.stop) for part in parts]
        return intervals(active, self.context.threads_since(self.core))


class ComputationView(StateView):
    """Stock's ``Computation``, read-only."""

    __slots__ = ()

    core: Computation

    groups = property(lambda self: set(self.core.groups))

    @property
    def code(self) -> Any:
        """Return the source that clients sent: a ``SortedSet`` of tuples of ``SourceCode``."""
        return SortedSet(deserialize(code) for code in self.core.codes.values())

    def __repr__(self) -> str:
        counts = ", ".join(f"{k}: {v}" for k, v in sorted(self.core.states.items()) if v)
        return f"<Computation {self.core.id}: Tasks: {counts}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"
