"""Pickles of plain tasks, written without a pickler.

A task is plain if its arguments are references to other tasks, None, bool, int, float, str, bytes,
or tuples or dask's lists of these. Such values need no memo: whether equal ones are the same object
makes no difference. The names in keys are shared nevertheless, because they are long and repeated.

The bytes follow an opening (see ``shared_openings``), which has the node classes and the function.
"""

from __future__ import annotations

import operator
import struct
from typing import Any, Final

from dask._task_spec import List, Task, TaskRef

from .shared_openings import Opening

#: Layers of tasks whose first bytes are kept.
LAYERS_MAX: Final = 1000
#: Ints whose bytes are kept.
INTS_MAX: Final = 65_536
#: Longer str and bytes values are left to the pickler, which can share large ones.
TEXT_MAX_NBYTES: Final = 255
#: Tuples and lists that are nested deeper are left to the pickler.
DEPTH_MAX: Final = 8

#: The state of a task, in this order, is what ``Task.__setstate__`` expects.
SLOTS = (
    *("_data_producer", "_dependencies", "_is_coro", "_repr", "_token"),
    *("args", "func", "key", "kwargs"),
)
#: The same of a ``List``.
LIST_SLOTS = tuple(sorted((*SLOTS, "constructor", "klass")))
_state = operator.attrgetter(*SLOTS)

# opcodes of pickle
_MARK: Final = b"("
_POP: Final = b"0"
_MEMOIZE: Final = b"\x94"
_NEW_OBJECT: Final = b")\x81"
_FROZENSET: Final = b"\x91"
_LIST: Final = b"\x8c\x0fdask._task_spec\x8c\x04List\x93)\x81("
_LIST_CLASS: Final = b"\x8c\x08builtins\x8c\x04list\x93"
_LIST_FUNCTION: Final = b"\x8c\x0fdask._task_spec\x8c\x1cNestedContainer.to_container\x93"
_EMPTY_TUPLE: Final = b")"
_TUPLE: Final = b"t"
_TUPLE_2: Final = b"\x86"
_CALL: Final = b"\x85R"
_EMPTY_DICT: Final = b"}"
_SET_ITEMS: Final = b"u"
_NONE: Final = b"N"
_NO_COMPUTED_STATE: Final = b"NNN"
_TRUE: Final = b"\x88"
_FALSE: Final = b"\x89"
_END_OF_STATE: Final = b"tb"
_END: Final = b"tb."
_INTS = range(-(1 << 31), 1 << 31)


def is_faster() -> bool:
    """Return whether to use the writer: it is compiled, and tasks have the expected state."""
    return not __file__.endswith(".py") and is_supported()


def is_supported() -> bool:
    """Return whether tasks and lists have the expected state."""
    return (
        tuple(Task.get_all_slots()) == SLOTS
        and tuple(List.get_all_slots()) == LIST_SLOTS
        and List.__module__ == List.to_container.__module__ == "dask._task_spec"
        and List.to_container.__qualname__ == "NestedContainer.to_container"
    )


class _Layer:
    """Tasks with one function and one name in their keys.

    Attributes:
        start: the first bytes of each pickle: the opening, names, and the beginning of the task.
        names: name -> opcode that reads it from the memo.
        function: the same for the function.
        reference: the same for ``TaskRef``.
        dependencies: the same for the dependencies of a task.
    """

    __slots__ = ("dependencies", "function", "names", "reference", "start")

    def __init__(self, opening: Opening, names: list[str]) -> None:
        numbers = opening.numbers
        self.function = _from_memo(numbers[id(opening.function)])
        self.reference = _from_memo(numbers[id(TaskRef)])
        self.names: dict[str, bytes] = {}
        start = opening.data
        for name in names:
            if name not in self.names and (text := _text(name)):
                self.names[name] = _from_memo(len(numbers) + len(self.names))
                start += text + _MEMOIZE + _POP
        self.dependencies = _from_memo(len(numbers) + len(self.names))
        self.start = start + _from_memo(numbers[id(Task)]) + _NEW_OBJECT + _MARK


class PlainTaskWriter:
    """Pickles the plain tasks of one graph."""

    __slots__ = ("_dependencies", "_ints", "_list", "_reference", "_to_container")

    def __init__(self) -> None:
        self._reference: type = TaskRef
        self._list: type = List
        self._to_container: Any = List.to_container
        self._dependencies: Any = None
        self._ints: dict[int, bytes] = {}

    def dumps(self, spec: Any, opening: Opening) -> bytes | None:
        """Return the pickle of a task, or None if it is not plain.

        `opening` is that of its function.
        """
        is_producer, dependencies, is_coro, text, token, args, _, key, kwargs = _state(spec)
        layer = self._layer(opening, key, dependencies)
        if layer is None:
            return None
        out = [layer.start, _TRUE if is_producer else _FALSE, _MARK]
        if not self._write_each(out, layer, dependencies, DEPTH_MAX):
            return None
        out.append(_FROZENSET + _MEMOIZE)
        self._dependencies = dependencies
        if is_coro is None and text is None and token is None:
            out.append(_NO_COMPUTED_STATE)
        elif not self._write_each(out, layer, (is_coro, text, token), 0):
            return None
        if not self._write_tuple(out, layer, args, DEPTH_MAX):
            return None
        out.append(layer.function)
        if not self._write(out, layer, key, DEPTH_MAX):
            return None
        out.append(_EMPTY_DICT)
        if kwargs:
            out.append(_MARK)
            if not all(self._write_each(out, layer, item, DEPTH_MAX) for item in kwargs.items()):
                return None
            out.append(_SET_ITEMS)
        out.append(_END)
        return b"".join(out)

    def _layer(self, opening: Opening, key: Any, dependencies: Any) -> _Layer | None:
        """Return the layer of a task, which shares the names that its first task has in keys.

        None if the pickler does not keep the function in its memo.
        """
        own = _name(key)
        layer: _Layer | None = opening.layers.get(own)
        if layer is None and id(opening.function) in opening.numbers:
            layer = _Layer(opening, [own, *map(_name, dependencies)])
            if len(opening.layers) < LAYERS_MAX:
                opening.layers[own] = layer
        return layer

    def _write(self, out: list[bytes], layer: _Layer, value: Any, depth: int) -> bool:
        """Append the opcodes of one value to `out`. Return False if it is not plain."""
        kind = type(value)
        if kind is int:
            return self._write_int(out, value)
        if kind is tuple:
            return depth > 0 and self._write_tuple(out, layer, value, depth - 1)
        if kind is self._reference:
            out.append(layer.reference)
            if not self._write(out, layer, value.key, depth):
                return False
            out.append(_CALL)
            return True
        if kind is str:
            found = layer.names.get(value)
            if found is None:
                found = _text(value)
            out.append(found)
            return len(found) > 0
        if kind is self._list:
            return depth > 0 and self._write_list(out, layer, value, depth - 1)
        if value is None:
            out.append(_NONE)
        elif kind is bool:
            out.append(_TRUE if value else _FALSE)
        elif kind is float:
            out.append(b"G" + struct.pack(">d", value))
        elif kind is bytes and len(value) <= TEXT_MAX_NBYTES:
            out.append(b"C" + bytes((len(value),)) + value)
        else:
            return False
        return True

    def _write_tuple(
        self, out: list[bytes], layer: _Layer, items: tuple[Any, ...], depth: int
    ) -> bool:
        if len(items) == 2:
            if not self._write(out, layer, items[0], depth):
                return False
            if not self._write(out, layer, items[1], depth):
                return False
            out.append(_TUPLE_2)
            return True
        if not items:
            out.append(_EMPTY_TUPLE)
            return True
        out.append(_MARK)
        if not self._write_each(out, layer, items, depth):
            return False
        out.append(_TUPLE)
        return True

    def _write_list(self, out: list[bytes], layer: _Layer, node: Any, depth: int) -> bool:
        is_producer, dependencies, is_coro, text, token, args, func, key, kwargs = _state(node)
        if is_producer or key is not None or func is not self._to_container or len(kwargs) != 1:
            return False
        out.append(_LIST + _FALSE)
        if dependencies == self._dependencies:
            out.append(layer.dependencies)
        else:
            out.append(_MARK)
            if not self._write_each(out, layer, dependencies, depth):
                return False
            out.append(_FROZENSET)
        if not self._write_each(out, layer, (is_coro, text, token), 0):
            return False
        if not self._write_tuple(out, layer, args, depth):
            return False
        # unpickling adds the only keyword
        out.append(_LIST_CLASS + _LIST_FUNCTION + _NONE + _LIST_CLASS + _EMPTY_DICT + _END_OF_STATE)
        return True

    def _write_each(self, out: list[bytes], layer: _Layer, items: Any, depth: int) -> bool:
        return all(self._write(out, layer, item, depth) for item in items)

    def _write_int(self, out: list[bytes], value: int) -> bool:
        found = self._ints.get(value)
        if found is None:
            if value not in _INTS:
                return False
            found = _int(value)
            if len(self._ints) < INTS_MAX:
                self._ints[value] = found
        out.append(found)
        return True


def _name(key: Any) -> str:
    """Return the first item of a key of a collection, or ""."""
    if type(key) is tuple and key and type(key[0]) is str:
        return str(key[0])
    return ""


def _from_memo(number: int) -> bytes:
    """Return the opcode that reads an object from the memo."""
    return b"h" + bytes((number,)) if number < 256 else b"j" + struct.pack("<I", number)


def _int(value: int) -> bytes:
    """Return the opcode of an int of at most 32 bits."""
    if 0 <= value < 256:
        return b"K" + bytes((value,))
    if 0 <= value < 65536:
        return b"M" + struct.pack("<H", value)
    return b"J" + struct.pack("<i", value)


def _text(value: str) -> bytes:
    """Return the opcode of a text, or b"" if it is too long."""
    data = value.encode("utf-8", "surrogatepass")
    return b"\x8c" + bytes((len(data),)) + data if len(data) <= TEXT_MAX_NBYTES else b""
