"""Attributes of tasks that plugins may write, turned into commands of the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.scheduler.core.handlers.commands import WRITABLE
from paceline.scheduler.core.stimuli import WriteTask
from paceline.workers_compat.graphs.annotations import pickled_unless_plain


def _write_after(name: str) -> Callable[..., Any]:
    """Return a method of dict that also writes the annotations."""
    method = getattr(dict, name)

    def change(self: AnnotationsProxy, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        self.task.annotations = dict(self)
        return result

    change.__name__ = name
    return change


class AnnotationsProxy(dict[Any, Any]):
    """A copy of the annotations of `task`, which writes all of them back on each change.

    Tasks with equal annotations share them in the core.
    """

    __slots__ = ("task",)

    def __init__(self, values: Mapping[Any, Any], task: Any) -> None:
        super().__init__(values)
        self.task = task

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    __delitem__ = _write_after("__delitem__")
    __ior__ = _write_after("__ior__")
    __setitem__ = _write_after("__setitem__")
    clear = _write_after("clear")
    pop = _write_after("pop")
    popitem = _write_after("popitem")
    setdefault = _write_after("setdefault")
    update = _write_after("update")


def task_write(key: Any, name: str, value: Any) -> WriteTask:
    """Return the command that writes an attribute of a task.

    Raises:
        AttributeError: Plugins may not write the attribute.
        TypeError, ValueError: The value is invalid.
    """
    if name not in WRITABLE:
        raise AttributeError(
            f"TaskState.{name} is read-only; plugins may write {', '.join(WRITABLE)}"
        )
    return WriteTask(key, name, _as_core(name, value))


def _as_core(name: str, value: Any) -> Any:
    """Convert a value to the core's form."""
    if name == "priority":
        return _priority(value)
    if name == "retries":
        return int(value)
    if name in ("loose_restrictions", "queueable"):
        return bool(value)
    if value is None:
        return None
    if name in ("worker_restrictions", "host_restrictions"):
        if isinstance(value, str):
            raise TypeError(f"{name} must be a collection of names, not {value!r}")
        return sorted(map(str, value))
    if name == "resource_restrictions":
        return {str(what): float(amount) for what, amount in dict(value).items()}
    if name == "annotations":
        return pickled_unless_plain(dict(value))
    return dict(value)


def _priority(value: Any) -> tuple[float, float, float]:
    """Return a priority of three numbers, or raise ValueError."""
    priority = tuple(value)
    if len(priority) != 3 or not all(isinstance(part, int | float) for part in priority):
        raise ValueError(f"a priority must be three numbers, not {value!r}")
    return priority
