"""Tasks to pickles, as the stock scheduler would send them to a worker, at a fraction of the cost.

Stock pickles each task anew for each dispatch: with pickle, or, where that fails or the task names
something of ``__main__``, with cloudpickle. Here each task is pickled once, and a function or class that
must travel by value is cloudpickled once a graph: its bytes are then part of each task's pickle and are
loaded there by ``pickle.loads`` itself, so the worker needs nothing but what stock workers have.

Must not know: graphs, chunks, messages.
"""

from __future__ import annotations

import _pickle
import copyreg
import importlib
import operator
import sys
from pickle import PickleBuffer
from types import FunctionType
from typing import Any

import cloudpickle
from dask._task_spec import Task, TaskRef
from dask.utils import apply
from distributed.protocol.pickle import dumps as stock_dumps

from .shared_buffers import SHARE_MIN_NBYTES, SpecSink, pickle_apart

OPENINGS_MAX = 64
"""So many functions of a graph have openings of their own. A graph seldom has more than a few."""

RENEW_PICKLER_NBYTES = 262_144
"""After a pickle of this size the pickler is made anew: clearing a memo costs as much as it ever held."""

_START, _POP, _STOP = b"\x80\x05", b"0", b"."

_TASK_SLOTS = tuple(Task.get_all_slots())
_task_state = operator.attrgetter(*_TASK_SLOTS)


class ByValue:
    """Functions and classes that no worker can import: each cloudpickled once.

    A verdict is kept per object, by identity; the objects are kept alive meanwhile.
    """

    def __init__(self) -> None:
        self._verdicts: dict[int, tuple[Any, Any]] = {}

    def reduced(self, thing: Any) -> Any:
        """What a pickler writes for this function or class: a reduce tuple, or NotImplemented (its name)."""
        verdict = self._verdicts.get(id(thing))
        if verdict is None:
            reduced = NotImplemented if importable(thing) else by_value(thing)
            verdict = self._verdicts[id(thing)] = (thing, reduced)
        return verdict[1]


class TaskPickler(_pickle.Pickler):
    """The C pickler, with short cuts for tasks and a memory for what travels by value."""

    def __init__(self, sink: SpecSink, known: ByValue) -> None:
        super().__init__(sink, protocol=5, buffer_callback=sink.on_buffer)
        self._known = known

    def reducer_override(self, obj: Any) -> Any:
        """Called by the C pickler for everything that is not a plain value or container."""
        kind = type(obj)
        if kind is Task:
            return copyreg.__newobj__, (Task,), _task_state(obj)
        if kind is TaskRef:
            return TaskRef, (obj.key,)
        if kind is FunctionType or issubclass(kind, type):
            return self._known.reduced(obj)
        return NotImplemented


class Opening:
    """How the pickles of all tasks with one function begin.

    It names what they have in common (the classes of nodes, the function), and leaves that in the memo of whoever
    reads it. A pickler with the same memo then writes the rest of a task's pickle.

    Attributes:
        function: kept, since it is known by its id.
        fits: whether such an opening can be made.
        data: the first bytes of each pickle; empty before it is made.
        memo: the pickler's memo after them.
    """

    __slots__ = ("data", "fits", "function", "memo")

    def __init__(self, function: Any) -> None:
        self.function = function
        self.fits = True
        self.data = b""
        self.memo: Any = None

    def make(self, known: ByValue) -> None:
        """Pickle the function. One that fails, or is large, has no opening."""
        sink = SpecSink()
        pickler = TaskPickler(sink, known)
        try:
            pickler.dump((Task, TaskRef, self.function))
            pickle, buffers = sink.finish()
        except Exception:
            self.fits = False
            return
        self.fits = not buffers and pickle.startswith(_START) and pickle.endswith(_STOP)
        if self.fits:
            self.data = pickle[: -len(_STOP)] + _POP
            self.memo = pickler.memo


class SpecPickler:
    """Pickles the tasks of one graph."""

    def __init__(self) -> None:
        self._known = ByValue()
        self._sink = SpecSink()
        self._pickler = TaskPickler(self._sink, self._known)
        self._openings: dict[int, Opening] = {}

    def dumps(self, spec: Any) -> tuple[bytes, list[PickleBuffer | bytes]]:
        """The pickle of a task and its out-of-band buffers.

        Raises whatever makes stock's own pickling of it fail.
        """
        opening = self._opening(spec.func) if type(spec) is Task else None
        pickler = self._pickler
        if opening is None:
            pickler.clear_memo()
        else:
            pickler.memo = opening.memo
        try:
            pickler.dump(spec)
        except Exception:
            self._renew()
            return as_stock(spec)
        data, buffers = self._sink.finish()
        if len(data) > RENEW_PICKLER_NBYTES:
            self._renew()
        return data if opening is None else opening.data + data[len(_START) :], buffers

    def _opening(self, function: Any) -> Opening | None:
        """The opening for tasks with this function; it is worth its making from the second of them on."""
        opening = self._openings.get(id(function))
        if opening is None:
            if len(self._openings) < OPENINGS_MAX:
                self._openings[id(function)] = Opening(function)
            return None
        if not opening.data and opening.fits:
            opening.make(self._known)
        return opening if opening.fits else None

    def _renew(self) -> None:
        self._sink = SpecSink()
        self._pickler = TaskPickler(self._sink, self._known)


def as_stock(value: Any) -> tuple[bytes, list[PickleBuffer | bytes]]:
    """The slow way: distributed's own rules (pickle, its registered types, cloudpickle)."""
    buffers: list[PickleBuffer | bytes] = []
    return stock_dumps(value, buffer_callback=buffers.append), buffers


def importable(thing: Any) -> bool:
    """Whether a function or class can travel by its name: some imported module holds it there."""
    module_name = getattr(thing, "__module__", None)
    if module_name == "__main__":
        return False
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", "")
    if module_name is None or "<" in name:
        # the plain pickler searches all modules for it, or says no
        return module_name is None
    found = sys.modules.get(module_name) or _imported(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return isinstance(thing, type) and module_name == "builtins"
    return found is thing


def _imported(module_name: str) -> Any:
    """The module, imported now as the plain pickler would, or None."""
    try:
        return importlib.import_module(module_name)
    except Exception:
        return None


def by_value(thing: Any) -> Any:
    """A reduce tuple that carries a function or class as cloudpickle writes it."""
    data, buffers = pickle_apart(cloudpickle.Pickler, thing)
    blob = data if len(data) < SHARE_MIN_NBYTES else PickleBuffer(data)
    if buffers:
        views = [PickleBuffer(buffer) for buffer in buffers]
        return apply, (_pickle.loads, [blob], {"buffers": views})
    return _pickle.loads, (blob,)
