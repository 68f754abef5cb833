"""Task annotations, as sets that are shared by tasks with equal annotations.

As in stock they come from two sources: annotations of the whole submission
(``Client.submit(workers=...)``, ``dask.annotate`` around ``compute``), whose values may be
functions of the key, and annotations of an expression's layers. The latter take precedence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Number
from typing import Any

import dask.config
from paceline.protocol.payload import Payload
from paceline.scheduler.core.config import GROUP_NAME_MAX
from paceline.scheduler.core.stimuli import AnnotationSet

from . import policies
from .plain_keys import is_encodable, plain_keys
from .task_pickler import stock_payload, stock_pickle

#: Values that are nested deeper than this are pickled.
PLAIN_DEPTH_MAX = 32

#: Annotations from the configuration for tasks that match no pattern.
NO_OPTIONS: dict[str, policies.Configured] = {}

#: Annotations for which None means that a task has none.
NONE_IS_OFF = frozenset((*policies.OPTIONS, "group"))

_ATOMS = (float, bool, bytes, type(None))


class AnnotationTable:
    """The distinct annotation sets of one graph, numbered from 0 in order of appearance."""

    def __init__(
        self,
        by_type: Mapping[str, Mapping[Any, Any]],
        submission: Mapping[str, Any] | None,
        received_at: float = 0.0,
    ) -> None:
        """Hold the annotations of a graph that arrived at `received_at`, seconds since the epoch.

        `by_type` has the annotations of layers: name -> key -> value.
        """
        self._by_type = by_type
        self._submission = dict(submission or {})
        self._received_at = received_at
        self._has_policies = bool(dask.config.get(policies.CONFIG_KEY, default=None))
        self._configured: dict[str, dict[str, policies.Configured]] = {}
        # if nothing depends on the key, all tasks have the same annotations
        functions = any(_is_function(*each) for each in self._submission.items())
        depends_on_key = any(by_type.values()) or functions
        self._is_uniform = not depends_on_key and not self._has_policies
        self._uniform_number: int | None = None
        # with the values, which are kept alive because they are identified by their ids
        self._by_identity: dict[tuple[Any, ...], tuple[int, dict[str, Any]]] = {}
        self._by_content: dict[tuple[str, bytes], int] = {}
        self._sets: list[AnnotationSet] = []
        self._n_taken = 0

    def __bool__(self) -> bool:
        return bool(self._by_type or self._submission or self._has_policies)

    def number(self, key: Any, prefix: str) -> int | None:
        """Return the number of the annotation set of `key`, or None if it has no annotations.

        Raises:
            TypeError, ValueError, TimeoutError: an annotation is wrong, or a deadline has passed.
                The text names the `prefix` of the task.
        """
        if self._uniform_number is not None:
            return self._uniform_number
        found = {
            name: value(key) if _is_function(name, value) else value
            for name, value in self._submission.items()
        }
        for name, values in self._by_type.items():
            value = values.get(key)
            # None switches off what the configuration or the whole submission sets
            if value is not None or (name in NONE_IS_OFF and key in values):
                found[name] = value
        options = self._options(prefix) if self._has_policies else NO_OPTIONS
        if not found and not options:
            return None
        identity = (id(options), *[(name, id(value)) for name, value in found.items()])
        known = self._by_identity.get(identity)
        if known is None:
            number = self._by_value(found, options, prefix)
            known = self._by_identity[identity] = number, found
        number, _ = known
        if self._is_uniform:
            self._uniform_number = number
        return number

    def take_new(self) -> list[AnnotationSet]:
        """Return the sets added since the last call, in the order of their numbers."""
        new = self._sets[self._n_taken :]
        self._n_taken = len(self._sets)
        return new

    def _options(self, prefix: str) -> dict[str, policies.Configured]:
        """Return what the configuration sets for tasks of `prefix`."""
        options = self._configured.get(prefix)
        if options is None:
            options = self._configured[prefix] = policies.configured(prefix) or NO_OPTIONS
        return options

    def _by_value(
        self, found: dict[str, Any], options: dict[str, policies.Configured], prefix: str
    ) -> int:
        data, buffers = stock_pickle(found)
        content = prefix if options else "", b"".join((data, *buffers))
        number = self._by_content.get(content)
        if number is None:
            number = self._by_content[content] = len(self._sets)
            try:
                self._sets.append(annotation_set(found, options, self._received_at))
            except (TypeError, ValueError, TimeoutError) as error:
                text = f"{error} (tasks {prefix!r})"
                kinds = (TypeError, ValueError, TimeoutError)
                kind = next(each for each in kinds if isinstance(error, each))
                raise kind(text) from error
        return number


def _is_function(name: str, value: Any) -> bool:
    """Return whether `value` is called with the key, as all but the exceptions of ``retry_on``."""
    return callable(value) and not (name == "retry_on" and isinstance(value, type))


def annotation_set(
    found: Mapping[str, Any],
    options: Mapping[str, policies.Configured] = NO_OPTIONS,
    received_at: float = 0.0,
) -> AnnotationSet:
    """Interpret the annotations of one task as stock's ``_apply_annotations`` does.

    `options` are annotations from the configuration, which are not sent to workers. `received_at`
    is the time at which the graph arrived, in seconds since the epoch.

    Raises TypeError or ValueError if a value is of the wrong type, NaN or out of its range, and
    TimeoutError if a deadline has passed.
    """
    out = AnnotationSet(value=_set_value(found))
    patterns = {name: each.pattern for name, each in options.items() if name not in found}
    found = {**{name: options[name].value for name in patterns}, **found}
    out.policy = policies.task_policy(found, received_at, patterns)
    for name, value in found.items():
        if value is None and name in NONE_IS_OFF:
            continue
        if name in ("restrictions", "workers"):
            out.workers = plain_workers(name, value)
        elif name in ("loose_restrictions", "allow_other_workers"):
            out.allow_other_workers = bool(value)
        elif name == "resources":
            out.resources = resource_amounts(value)
        elif name == "retries":
            out.retries = policies.plain_count(policies.label(name), value)
        elif name == "priority":
            out.priority = plain_number(value)
        elif name == "group":
            is_name = isinstance(value, str) and 0 < len(value) <= GROUP_NAME_MAX
            if not is_name or not is_encodable(value):
                raise TypeError(
                    "the annotation 'group' must be the name of a group, a text of 1 to "
                    f"{GROUP_NAME_MAX} characters, or None, not {value!r:.300}"
                )
            out.group = str(value)
        elif name == "span":
            out.span = span_path(value)
            out.value_less_span = _set_value(
                {n: v for n, v in found.items() if n != "span" and n not in options}
            )
    return out


def _set_value(found: Mapping[str, Any]) -> Any:
    """Return annotations as a dict if msgpack can encode them, else pickled.

    Annotations with tuples are pickled, because msgpack makes lists of them. The tuples in the
    annotation of a span are restored by ``views.task_annotations``.
    """
    custom = {name: value for name, value in found.items() if name != "span"}
    if is_plain(custom, sequences=(list,)) and is_plain(found.get("span")):
        return dict(found)
    return stock_payload(dict(found))


def resource_amounts(value: Any) -> dict[str, float]:
    """Return the amounts of a ``resources`` annotation; raise TypeError or ValueError."""
    if not isinstance(value, dict):
        raise TypeError(f"the annotation 'resources' must be a dict, not {value!r}")
    problem = (
        f"the amounts in the annotation 'resources' must be numbers from 0, not NaN; got {value!r}"
    )
    try:
        amounts = {str(what): float(amount) for what, amount in value.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(problem) from error
    if not all(amount >= 0 for amount in amounts.values()):  # NaN is not
        raise ValueError(problem)
    return amounts


def span_path(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return names and ids of a ``distributed.span`` annotation, or None for anything else."""
    try:
        names, ids = tuple(map(str, value["name"])), tuple(map(str, value["ids"]))
    except (TypeError, KeyError):
        return None
    is_valid = ids and len(names) == len(ids) and all(map(is_encodable, (*names, *ids)))
    return (names, ids) if is_valid else None


def plain_workers(name: str, value: Any) -> list[Any]:
    """Return a list of addresses, aliases or host names. A single one needs no list.

    Raises TypeError if a value is none of these. Aliases may be numbers. numpy scalars become
    Python's.
    """
    workers = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    if isinstance(value, set | frozenset):
        workers.sort(key=repr)
    for worker in workers:
        parts = worker if isinstance(worker, tuple) else [worker]
        if worker == "" or not all(isinstance(part, str | Number) for part in parts):
            raise TypeError(
                f"the annotation {name!r} must have addresses, names of workers or hosts, "
                f"not {worker!r}"
            )
    return plain_keys(workers)


def plain_number(value: Any) -> float:
    """Return a priority as a number that msgpack can encode. numpy scalars become Python's.

    Raises TypeError if it is not a number, ValueError if it is NaN, which cannot be ordered, or
    too large.
    """
    item = getattr(value, "item", None)
    if item is not None and not isinstance(value, int | float):
        value = item()
    if not isinstance(value, int | float):
        raise TypeError(f"the annotation 'priority' must be a number, not {value!r}")
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("the annotation 'priority' must not be NaN")
        return float(value)
    if not is_encodable(value):
        raise ValueError(f"the annotation 'priority' must have at most 64 bits, not {value!r}")
    return int(value)


def pickled_unless_plain(value: Any) -> Any:
    """Return `value` if msgpack can encode it, else a pickled payload."""
    return value if is_plain(value) else stock_payload(value)


def is_plain(
    value: Any, depth: int = PLAIN_DEPTH_MAX, sequences: tuple[type, ...] = (list, tuple)
) -> bool:
    """Return whether msgpack can encode `value`, changing nothing but the types of `sequences`."""
    kind = type(value)
    if kind is int or kind is str:
        return is_encodable(value)
    if kind in _ATOMS:
        return True
    if depth == 0:
        return False
    if kind in sequences:
        return all(is_plain(element, depth - 1, sequences) for element in value)
    if kind is dict:
        return all(
            type(k) is str and is_encodable(k) and is_plain(v, depth - 1, sequences)
            for k, v in value.items()
        )
    return kind is Payload
