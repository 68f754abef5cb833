"""Arguments that hooks of plugins receive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from paceline.protocol.messages import StartStop
from paceline.protocol.payload import Payload
from paceline.scheduler.core.lifecycle.failures import Failure
from paceline.scheduler.core.state.model import TaskState, WorkerState

from .views import serialized, task_annotations


def annotations_by_type(tasks: Iterable[TaskState]) -> defaultdict[str, dict[Any, Any]]:
    """Return annotation -> key -> value, of tasks that have any; {} for others, as in stock."""
    found: defaultdict[str, dict[Any, Any]] = defaultdict(dict)
    for ts in tasks:
        annotations = task_annotations(ts) if ts.annotations else None
        if not annotations or isinstance(annotations, Payload):  # which must not be unpickled here
            continue
        for name, value in annotations.items():
            found[name][ts.key] = value
    return found


def as_arguments(message: Any) -> dict[str, Any]:
    """Return the fields of a message, and its further arguments, by their names on the wire."""
    names = zip(message.__struct_encode_fields__, message.__struct_fields__, strict=True)
    fields = {wire: getattr(message, own) for wire, own in names}
    extra: dict[str, Any] = fields.pop(getattr(message, "EXTRA_FIELD", None), {})
    return fields | extra


_OMITTED = frozenset(("op", "key", "report", "run_id", "stimulus_id"))


class HookArguments(dict[type, Callable[[Any], dict[str, Any]]]):
    """Type of a message or another cause of transitions -> function that returns its fields.

    Fields are looked up once per type.
    """

    def __missing__(self, kind: type) -> Callable[[Any], dict[str, Any]]:
        reader = self[kind] = _reader(kind)
        return reader

    def of_transition(self, ts: TaskState, detail: Any) -> dict[str, Any]:
        """Return what stock passes to ``transition`` besides states: the fields of its cause."""
        if isinstance(detail, WorkerState):  # receives the task, and did not cause the transition
            return {}
        found = self[type(detail)](detail)
        if isinstance(detail, Failure):
            found["cause"] = detail.cause.key
            if detail.report is not None:
                found = {**self[type(detail.report)](detail.report), **found}
        if ts.who_has and "worker" not in found:
            found["worker"] = next(reversed(ts.who_has)).address
        return found


def _reader(kind: type) -> Callable[[Any], dict[str, Any]]:
    """Return a function that returns the fields of a message or cause that hooks receive."""
    fields = getattr(kind, "__struct_fields__", ()) or getattr(kind, "__dataclass_fields__", ())
    names = [name for name in fields if name not in _OMITTED]
    maybe_serialized = [name for name in _maybe_serialized(kind, fields) if name in names]

    def read(detail: Any) -> dict[str, Any]:
        found = {name: getattr(detail, name) for name in names}
        for name in maybe_serialized:
            if type(found[name]) is Payload:
                found[name] = serialized(found[name])
        if "startstops" in found:  # as dicts, like on the wire
            found["startstops"] = msgspec.to_builtins(found["startstops"] or [])
        return found

    return read


def _maybe_serialized(kind: type, names: Iterable[str]) -> Iterable[str]:
    """Return the names of fields that may hold a serialized value."""
    if not issubclass(kind, msgspec.Struct):
        return names
    plain = (int, str, float, bool, list[StartStop])
    return [
        field.name
        for field in msgspec.structs.fields(kind)
        if not any(field.type == each or field.type == each | None for each in plain)
    ]
