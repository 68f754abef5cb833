"""Pickles of tasks with the same function, which begin with the same bytes.

Most tasks of a graph call one of a few functions. The opening of their pickles (node classes and
function) is written once. It leaves these objects in the memo of the reader, and a pickler with the
same memo then writes the rest of each task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask._task_spec import Task, TaskRef

from ..shared_buffers import SpecSink

#: Functions per graph that get an opening of their own. A graph seldom has more than a few.
OPENINGS_MAX = 64

#: The first bytes of each pickle, of protocol 5.
START = b"\x80\x05"
_POP, _STOP = b"0", b"."


class Opening:
    """The opening of the pickles of all tasks with one function.

    Attributes:
        function: kept alive, because openings are found by its id.
        data: the first bytes of each pickle; empty if they cannot be shared, or are not made yet.
        memo: the memo of the pickler after these bytes; None before it is made.
        numbers: id of an object in the memo -> its number.
        layers: name in keys -> data of ``PlainTaskWriter`` for the tasks of this function.
    """

    __slots__ = ("data", "function", "layers", "memo", "numbers")

    def __init__(self, function: Any, data: bytes = b"", memo: Any = None) -> None:
        self.function = function
        self.data = data
        self.memo = memo
        self.numbers: dict[int, int] = {}
        self.layers: dict[str, Any] = {}
        if data:
            self.numbers = {key: number for key, (number, _) in memo.copy().items()}


class SharedOpenings:
    """The openings of one graph, made with picklers of ``new_pickler``."""

    __slots__ = ("_new_pickler", "_openings")

    def __init__(self, new_pickler: Callable[[SpecSink], Any]) -> None:
        self._new_pickler = new_pickler
        self._openings: dict[int, Opening] = {}

    def get(self, function: Any) -> Opening | None:
        """Return the opening for tasks with `function`; None for its first task."""
        opening = self._openings.get(id(function))
        if opening is None:
            if len(self._openings) < OPENINGS_MAX:
                self._openings[id(function)] = Opening(function)
            return None
        if opening.memo is None:
            opening = self._openings[id(function)] = self._make(function)
        return opening if opening.data else None

    def _make(self, function: Any) -> Opening:
        """Pickle `function`. It has no opening if that fails or needs out-of-band buffers."""
        sink = SpecSink()
        pickler = self._new_pickler(sink)
        try:
            pickler.dump((Task, TaskRef, function))
            data, buffers = sink.finish()
        except Exception:
            return Opening(function, b"", ())
        if buffers or not (data.startswith(START) and data.endswith(_STOP)):
            return Opening(function, b"", ())
        return Opening(function, data[: -len(_STOP)] + _POP, pickler.memo)
