"""The pickler of tasks, and the functions that it pickles by value.

Stock pickles a task with pickle, or with cloudpickle if that fails or the task refers to
``__main__``. Here a function or class that must be pickled by value is cloudpickled once per graph:
its bytes are embedded in the pickle of each task and loaded there by ``pickle.loads``, so stock
workers can read them.
"""

from __future__ import annotations

import _pickle
import contextlib
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
from distributed.protocol.pickle import loads as stock_loads
from distributed.shuffle._shuffle import DataFrameShuffleSpec
from paceline.protocol.payload import Payload, pickled_payload

from .shared_buffers import SHARE_MIN_NBYTES, SpecSink, pickle_out_of_band

_TASK_SLOTS = tuple(Task.get_all_slots())
_task_state = operator.attrgetter(*_TASK_SLOTS)


class NestedPickle:
    """A value as a pickle of its own. Unpickling it returns the value, also in stock processes.

    ``unpickling.deserialize_outer`` leaves it as it is, so that the scheduler need not import what
    the value needs.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return stock_loads, (self.data,)


class ByValue:
    """Functions and classes that no worker can import, each cloudpickled once.

    Results are stored by identity. The objects are kept alive meanwhile.
    """

    def __init__(self) -> None:
        self._reduced: dict[int, tuple[Any, Any]] = {}

    def reduced(self, thing: Any) -> Any:
        """Return a reduce tuple for a function or class, or NotImplemented to pickle its name."""
        entry = self._reduced.get(id(thing))
        if entry is None:
            reduced = NotImplemented if importable(thing) else by_value(thing)
            entry = self._reduced[id(thing)] = (thing, reduced)
        return entry[1]


class TaskPickler(_pickle.Pickler):
    """The C pickler, with shortcuts for tasks and a cache of functions pickled by value."""

    def __init__(self, sink: SpecSink, known: ByValue) -> None:
        super().__init__(sink, protocol=5, buffer_callback=sink.on_buffer)
        self._known = known

    def reducer_override(self, obj: Any) -> Any:
        """See ``pickle.Pickler``. Called for all objects other than plain values and containers."""
        kind = type(obj)
        if kind is Task:
            new = copyreg.__newobj__  # type: ignore[attr-defined]
            return new, (Task,), _task_state(obj)
        if kind is TaskRef:
            return TaskRef, (obj.key,)
        if kind is FunctionType or issubclass(kind, type):
            return self._known.reduced(obj)
        if kind is DataFrameShuffleSpec:
            meta = NestedPickle(stock_dumps(obj.meta))
            return copyreg.__newobj__, (kind,), {**vars(obj), "meta": meta}  # type: ignore[attr-defined]
        return NotImplemented


def stock_pickle(value: Any) -> tuple[bytes, list[PickleBuffer | bytes]]:
    """Pickle by distributed's rules (pickle, its registered types, cloudpickle). Slow."""
    buffers: list[PickleBuffer | bytes] = []
    return stock_dumps(value, buffer_callback=buffers.append), buffers


def stock_payload(value: Any) -> Payload:
    """Return `value`, pickled by ``stock_pickle``, as the payload of a message."""
    data, buffers = stock_pickle(value)
    return pickled_payload(data, [memoryview(buffer).tobytes("A") for buffer in buffers])


def importable(thing: Any) -> bool:
    """Return whether a function or class can be pickled by name: an imported module contains it."""
    module_name = getattr(thing, "__module__", None)
    if module_name == "__main__":
        return False
    name: Any = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", "")
    if module_name is None or "<" in name:
        # the plain pickler searches all modules for it, or fails
        return module_name is None
    found = sys.modules.get(module_name)
    if found is None:
        with contextlib.suppress(Exception):  # as the plain pickler does
            found = importlib.import_module(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return isinstance(thing, type) and module_name == "builtins"
    return found is thing


def by_value(thing: Any) -> Any:
    """Return a reduce tuple that contains a function or class as cloudpickle writes it."""
    data, buffers = pickle_out_of_band(cloudpickle.Pickler, thing)
    blob = data if len(data) < SHARE_MIN_NBYTES else PickleBuffer(data)
    if buffers:
        views = [PickleBuffer(buffer) for buffer in buffers]
        return apply, (_pickle.loads, [blob], {"buffers": views})
    return _pickle.loads, (blob,)
