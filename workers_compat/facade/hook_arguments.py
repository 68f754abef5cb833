"""Arguments that hooks of plugins receive."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from paceline.protocol.messages import StartStop
from paceline.protocol.payload import Payload
from paceline.scheduler.core.state.model import TaskState

from .views import deserialize, serialized


def annotations_by_type(tasks: Iterable[TaskState]) -> dict[str, dict[Any, Any]]:
    """Return annotation -> key -> value, of tasks that have any."""
    found: dict[str, dict[Any, Any]] = {}
    for ts in tasks:
        annotations = ts.annotations
        if not annotations:
            continue
        if isinstance(annotations, Payload):
            annotations = deserialize(annotations)
            if isinstance(annotations, Payload):  # this process must not unpickle
                continue
        for name, value in annotations.items():
            found.setdefault(name, {})[ts.key] = value
    return found


def as_arguments(message: Any) -> dict[str, Any]:
    """Return the fields of a message by name."""
    return {name: getattr(message, name) for name in message.__struct_fields__}


_OMITTED = frozenset(("op", "key", "report", "run_id", "stimulus_id"))


class HookArguments:
    """Keyword arguments of hooks, from the fields of messages and other causes of transitions.

    Fields are looked up once per type.
    """

    __slots__ = ("_fields",)

    def __init__(self) -> None:
        self._fields: dict[type, _Fields] = {}

    def of_transition(self, ts: TaskState, detail: Any) -> dict[str, Any]:
        """Return what stock passes to ``transition`` besides states: the fields of its cause."""
        fields = self._fields_of(type(detail))
        found = fields.of(detail)
        if fields.has_report and detail.report is not None:
            found = {**self._fields_of(type(detail.report)).of(detail.report), **found}
        if fields.has_cause and isinstance(found["cause"], TaskState):
            found["cause"] = found["cause"].key
        if ts.who_has and "worker" not in found:
            found["worker"] = next(reversed(ts.who_has)).address
        return found

    def _fields_of(self, kind: type) -> _Fields:
        fields = self._fields.get(kind)
        if fields is None:
            fields = self._fields[kind] = _Fields(kind)
        return fields


class _Fields:
    """The fields of a class of messages or causes that hooks receive.

    Attributes:
        has_report: it contains the message of a worker.
        has_cause: it names the task that caused an error.
    """

    __slots__ = ("_has_startstops", "_names", "_serialized", "_values", "has_cause", "has_report")

    def __init__(self, kind: type) -> None:
        of_message = getattr(kind, "__struct_fields__", None)
        names = of_message or tuple(getattr(kind, "__dataclass_fields__", ()))
        self.has_report = "report" in names
        self.has_cause = "cause" in names
        self._has_startstops = "startstops" in names
        self._names = tuple(name for name in names if name not in _OMITTED)
        self._values = _values_of(self._names)
        self._serialized = [name for name in _maybe_serialized(kind, names) if name not in _OMITTED]

    def of(self, detail: Any) -> dict[str, Any]:
        """Return names and values of the fields of `detail`."""
        found: dict[str, Any] = dict(zip(self._names, self._values(detail), strict=True))
        for name in self._serialized:
            value = found[name]
            if type(value) is Payload:
                found[name] = serialized(value)
        if self._has_startstops:  # as dicts, like on the wire
            found["startstops"] = msgspec.to_builtins(found["startstops"] or [])
        return found


def _values_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these attributes; ``attrgetter`` for more than one."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda detail: tuple([getattr(detail, name) for name in names])


def _maybe_serialized(kind: type, names: tuple[str, ...]) -> Iterable[str]:
    """Return the names of fields that may hold a serialized value."""
    if not issubclass(kind, msgspec.Struct):
        return names
    plain = (int, str, float, bool, list[StartStop])
    return [
        field.name
        for field in msgspec.structs.fields(kind)
        if not any(field.type == each or field.type == each | None for each in plain)
    ]
