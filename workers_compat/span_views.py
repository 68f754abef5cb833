"""Spans and computations as plugins, dashboards and ``run_on_scheduler`` functions know them from stock.

``scheduler.extensions["spans"]`` is a view of the core's tree of spans. Looking twice gives the same objects, while their
spans are there. Groups are the core's own.

Must not know: how spans come about (``core/spans.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any

from paceline.scheduler.core.groups import TASK_STATES, Computation
from paceline.scheduler.core.spans import Span, add_up, intervals
from paceline.scheduler.core.state import SchedulerState

from .views import opened

#: Under this key, stock's metrics of a span tell of time in which its threads did something else.
IDLE = ("execute", "N/A", "idle or other spans", "seconds")
MERGED = "(merged)"


class SpansView:
    """stock's ``SpansSchedulerExtension``, to look at.

    Args:
        now: seconds since the epoch.
    """

    def __init__(self, state: SchedulerState, now: Callable[[], float]) -> None:
        self.now = now
        self._state = state
        self._views: dict[Span, SpanView] = {}

    def view(self, span: Span) -> SpanView:
        """The view of a span."""
        found = self._views.get(span)
        if found is None:
            spans = self._state.spans.spans
            if len(self._views) > 2 * len(spans):  # most of them have gone
                self._views = {s: v for s, v in self._views.items() if spans.get(s.id) is s}
            found = self._views[span] = SpanView(span, self)
        return found

    @property
    def spans(self) -> dict[str, SpanView]:
        """Id -> span, oldest first."""
        return {name: self.view(span) for name, span in self._state.spans.spans.items()}

    @property
    def root_spans(self) -> list[SpanView]:
        """Spans that were opened in no other, oldest first."""
        spans = self._state.spans.spans.values()
        return [self.view(span) for span in spans if span.parent is None]

    @property
    def spans_search_by_name(self) -> defaultdict[tuple[str, ...], list[SpanView]]:
        """Whole name -> spans, oldest first."""
        out: defaultdict[tuple[str, ...], list[SpanView]] = defaultdict(list)
        for span in self._state.spans.spans.values():
            out[span.name].append(self.view(span))
        return out

    @property
    def spans_search_by_tag(self) -> defaultdict[str, list[SpanView]]:
        """Tag anywhere in the name -> spans, oldest first."""
        out: defaultdict[str, list[SpanView]] = defaultdict(list)
        for span in self._state.spans.spans.values():
            for tag in span.name:
                out[tag].append(self.view(span))
        return out

    def find_by_tags(self, *tags: str) -> Iterator[SpanView]:
        """Spans with one of these tags in their names, but for those whose parent has one too; short names first."""
        by_tag = self.spans_search_by_tag
        found = dict.fromkeys(view for tag in tags for view in by_tag.get(tag, ()))
        for view in sorted(found, key=lambda view: len(view.name)):
            if view.parent not in found:
                yield view

    def merge_all(self) -> SpanView:
        """One span that is the sum of all. Raises ValueError where there is none."""
        return self.merge(self.root_spans)

    def merge_by_tags(self, *tags: str) -> SpanView:
        """One span that is the sum of those with one of these tags. Raises ValueError where there is none."""
        return self.merge(self.find_by_tags(*tags))

    def merge(self, views: Iterable[SpanView]) -> SpanView:
        """One span whose children these are; they stay as they are. Raises ValueError where there is none."""
        parts = [view.core for view in views]
        if not parts:
            raise ValueError("Nothing to merge")
        whole = Span((MERGED,), MERGED, None, min(part.enqueued for part in parts))
        whole.threads_from = min(part.threads_from for part in parts)
        whole.children = parts
        return SpanView(whole, self)

    def threads_since(self, span: Span) -> list[tuple[float, int]]:
        """The cluster's threads over time, from before the span began."""
        return self._state.spans.threads_since(span)


class SpanView:
    """stock's ``Span``, to look at."""

    __slots__ = ("_family", "core")

    def __init__(self, core: Span, family: SpansView) -> None:
        self.core = core
        self._family = family

    def __repr__(self) -> str:
        return repr(self.core)

    @property
    def name(self) -> tuple[str, ...]:
        """The tags from the root down."""
        return self.core.name

    @property
    def id(self) -> str:
        """Unique."""
        return self.core.id

    @property
    def enqueued(self) -> float:
        """When its first task came, seconds since the epoch."""
        return self.core.enqueued

    @property
    def annotation(self) -> dict[str, tuple[str, ...]] | None:
        """What its tasks are annotated with."""
        return self.core.annotation

    @property
    def parent(self) -> SpanView | None:
        """The span that it was opened in."""
        return None if self.core.parent is None else self._family.view(self.core.parent)

    @property
    def children(self) -> list[SpanView]:
        """Spans that were opened in it, oldest first."""
        return [self._family.view(child) for child in self.core.children]

    @property
    def groups(self) -> dict[Any, None]:
        """Its own task groups: a set in order. Those that were over long ago are missing; the sums hold them."""
        return dict(self.core.groups)

    def traverse_spans(self) -> Iterator[SpanView]:
        """Itself and all below."""
        for span in self.core.traverse_spans():
            yield self if span is self.core else self._family.view(span)

    def traverse_groups(self) -> Iterator[Any]:
        """Groups of itself and all below."""
        return self.core.traverse_groups()

    @property
    def start(self) -> float:
        """When a task of it started first, seconds since the epoch; 0 before one has finished."""
        start = self.core.totals().start
        return max(start, self.enqueued) if start else 0.0

    @property
    def stop(self) -> float:
        """When a task of it finished last; now, where not all have. Seconds since the epoch."""
        stop = self.core.totals().stop if self.done else self._family.now()
        return max(stop, self.enqueued)

    @property
    def done(self) -> bool:
        """Whether all its tasks are done."""
        return self.core.done

    @property
    def states(self) -> dict[str, int]:
        """State -> tasks."""
        return {**dict.fromkeys(TASK_STATES, 0), **self.core.totals().states}

    @property
    def all_durations(self) -> dict[str, float]:
        """Action -> seconds."""
        return self.core.totals().all_durations

    @property
    def duration(self) -> float:
        """Seconds of all its tasks."""
        return self.core.totals().duration

    @property
    def nbytes_total(self) -> int:
        """Bytes that its tasks made."""
        return self.core.totals().nbytes

    @property
    def code(self) -> list[Any]:
        """What clients sent of their source, each once: tuples of ``SourceCode``."""
        codes: dict[bytes, Any] = {}
        for span in self.core.traverse_spans():
            codes.update(span.codes)
        return [opened(code) for code in codes.values()]

    @property
    def metadata(self) -> dict[str, list[Any]] | None:
        """What was computed: ``{"collections": [...]}``."""
        if not self.core.metadata:
            return None
        found = [opened(each) for each in self.core.metadata]
        return {"collections": [c for each in found for c in each.get("collections", ())]}

    @property
    def _cumulative_worker_metrics(self) -> dict[tuple[Any, ...], float]:
        """stock's slot: of its own tasks alone."""
        return dict(self.core.metrics)

    @property
    def cumulative_worker_metrics(self) -> dict[tuple[Any, ...], float]:
        """(context, prefix, activity, unit) -> amount, and how long its threads did something else."""
        out = self.core.all_metrics()
        known = sum(v for name, v in out.items() if name[0] == "execute" and name[-1] == "seconds")
        add_up(out, {IDLE: max(0.0, self.active_cpu_seconds - known)})
        return out

    @property
    def nthreads_intervals(self) -> list[tuple[float, float, int]]:
        """(begin, end, threads of the cluster) while it was active, seconds since the epoch."""
        parts = self.children if self.id == MERGED else [self]
        active = [(part.enqueued, part.stop) for part in parts]
        return intervals(active, self._family.threads_since(self.core))

    @property
    def active_cpu_seconds(self) -> float:
        """Seconds of the cluster's threads while it was active."""
        return sum((end - begin) * n for begin, end, n in self.nthreads_intervals)


class ComputationView:
    """stock's ``Computation``, to look at."""

    __slots__ = ("core",)

    def __init__(self, core: Computation) -> None:
        self.core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComputationView) and self.core is other.core

    def __hash__(self) -> int:
        return hash(self.core)

    @property
    def groups(self) -> set[Any]:
        """Its task groups."""
        return set(self.core.groups)

    @property
    def code(self) -> Any:
        """What clients sent of their source: a ``SortedSet`` of tuples of ``SourceCode``."""
        from sortedcontainers import SortedSet

        return SortedSet(opened(code) for code in self.core.codes.values())

    def __repr__(self) -> str:
        counts = ", ".join(f"{k}: {v}" for k, v in sorted(self.core.states.items()) if v)
        return f"<Computation {self.core.id}: Tasks: {counts}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"
