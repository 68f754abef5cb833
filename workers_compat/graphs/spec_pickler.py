"""Pickle tasks as the stock scheduler sends them to workers, at a fraction of the cost.

Stock pickles a task at each dispatch. Here each is pickled once, with the graph, and what the tasks
of a graph share is pickled once (see ``task_pickler`` and ``accelerators``).
"""

from __future__ import annotations

from typing import Any

from dask._task_spec import Task

from . import accelerators
from .accelerators.plain_tasks import PlainTaskWriter, is_faster
from .accelerators.shared_openings import START, SharedOpenings
from .shared_buffers import SpecSink
from .task_pickler import ByValue, TaskPickler, stock_pickle

#: After a pickle of this size the pickler is replaced: clearing a memo costs as much as its largest
#: size.
RENEW_PICKLER_NBYTES = 262_144


class SpecPickler:
    """Pickles the tasks of one graph."""

    def __init__(self) -> None:
        self._known = ByValue()
        self._sink = SpecSink()
        self._pickler: Any = self._new_pickler(self._sink)
        self._openings: SharedOpenings | None = None
        self._writer: PlainTaskWriter | None = None
        if accelerators.are_enabled():
            self._openings = SharedOpenings(self._new_pickler)
            if is_faster():
                self._writer = PlainTaskWriter()

    def dumps(self, spec: Any) -> tuple[bytes, list[Any]]:
        """Return the pickle of a task and its out-of-band buffers, or raise stock's error."""
        opening = None
        if self._openings is not None and type(spec) is Task:
            opening = self._openings.get(spec.func)
            if opening is not None and self._writer is not None:
                plain = self._writer.dumps(spec, opening)
                if plain is not None:
                    return plain, []
        pickler = self._pickler
        if opening is None:
            pickler.clear_memo()
        else:
            pickler.memo = opening.memo
        try:
            pickler.dump(spec)
        except Exception:
            self._renew()
            return stock_pickle(spec)
        data, buffers = self._sink.finish()
        if len(data) > RENEW_PICKLER_NBYTES:
            self._renew()
        return data if opening is None else opening.data + data[len(START) :], buffers

    def _renew(self) -> None:
        self._sink = SpecSink()
        self._pickler = self._new_pickler(self._sink)

    def _new_pickler(self, sink: SpecSink) -> Any:
        return TaskPickler(sink, self._known)
