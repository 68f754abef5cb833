"""Dump of the whole state as plain values, for ``Client.dump_cluster_state``.

Each task, worker, client and group appears once, under its name; references to it are its ``repr``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from paceline.protocol.keys import Key
from paceline.protocol.payload import Payload
from paceline.scheduler.core.config import MEASURES
from paceline.scheduler.core.policy.memory import memory_use
from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.model import (
    ClientState,
    TaskGroup,
    TaskPrefix,
    TaskState,
    WorkerState,
)
from paceline.scheduler.core.state.scheduler_state import SchedulerState

from .queries import worker_identity

#: Classes whose instances have an entry of their own in the dump.
_ENTITIES: Final = (TaskState, TaskGroup, TaskPrefix, WorkerState, ClientState)
#: Attributes of tasks that are computed, not stored.
_TASK_VIEWS: Final = (
    "prefix",
    "group_key",
    "waiting_on",
    "waiters",
    "exception_blame",
    "exception_text",
    "traceback_text",
    "erred_on",
    "host_restrictions",
    "worker_restrictions",
    "resource_restrictions",
    "loose_restrictions",
    "annotations",
    "metadata",
)
#: Attributes of tasks that are ordered sets of names.
_NAME_SETS: Final = ("erred_on", "host_restrictions", "worker_restrictions")
#: Values nested deeper than this are shown as their ``repr``.
_DEPTH_MAX: Final = 50


def dump_state(
    state: SchedulerState, facts: Mapping[str, Any], exclude: Collection[str] = ()
) -> dict[str, Any]:
    """Return the state and ``facts`` of the server in the layout of stock's ``Scheduler._to_dict``.

    Attributes named in ``exclude`` are left out at any depth.
    """
    whole = {
        **facts,
        # keys as text: distributed's reader of dumps looks them up in sets
        "transition_log": [
            (
                _plain_key(key),
                start,
                finish,
                {_plain_key(ts.key): to for ts, to in made.items()},
                *more,
            )
            for key, start, finish, made, *more in state.transition_log
        ],
        "transition_counter": state.transition_counter,
        "tasks": {key: _task(ts, exclude) for key, ts in state.tasks.items()},
        "task_groups": {n: _fields(g, exclude) for n, g in state.task_groups.items()},
        "workers": {a: _worker(state, ws, exclude) for a, ws in state.workers.items()},
        "clients": {n: _fields(cs, (*exclude, "versions")) for n, cs in state.clients.items()},
        "events": {n: _events(topic) for n, topic in state.events.topics.items()},
        "extensions": {},
        "memory": _memory(state.workers.values()),
    }
    return {k: plain(v, exclude) for k, v in whole.items() if k not in exclude}


def _task(ts: TaskState, exclude: Collection[str]) -> dict[str, Any]:
    out = _fields(ts, (*exclude, "details"))
    if isinstance(out.get("run_spec"), bytes):  # serialized, so only its size is of use
        out["run_spec"] = f"<pickled specification: {len(out['run_spec'])} bytes>"
    out.update({name: getattr(ts, name) for name in _TASK_VIEWS if name not in exclude})
    for name in _NAME_SETS:
        if out.get(name) is not None:
            out[name] = list(out[name])
    return out


def _worker(state: SchedulerState, ws: WorkerState, exclude: Collection[str]) -> dict[str, Any]:
    out = {**worker_identity(ws), **_fields(ws, (*exclude, "versions"))}
    out["occupancy"] = estimates.occupancy(state, ws)
    out["memory"] = _memory([ws])
    return {k: v for k, v in out.items() if k not in exclude}


def _memory(workers: Iterable[WorkerState]) -> dict[str, int]:
    """Return the memory use of workers in bytes, under the names of stock's ``MemoryState``."""
    uses = [memory_use(ws) for ws in workers]
    return {name: sum(getattr(use, name) for use in uses) for name in MEASURES}


def _events(topic: Any) -> dict[str, Any]:
    return {"events": list(topic.events), "count": topic.count}


def _fields(thing: Any, exclude: Collection[str]) -> dict[str, Any]:
    return {f.name: getattr(thing, f.name) for f in fields(thing) if f.name not in exclude}


def plain(value: Any, exclude: Collection[str] = (), depth: int = 0) -> Any:
    """Convert ``value`` to numbers, text, lists and dicts; anything else becomes its ``repr``."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if depth >= _DEPTH_MAX or isinstance(value, (*_ENTITIES, Payload)):
        return repr(value)
    if isinstance(value, Mapping):
        if value and all(v is None for v in value.values()) and _is_ordered_set(value):
            return [plain(k, exclude, depth + 1) for k in value]
        return {
            _plain_key(k): plain(v, exclude, depth + 1)
            for k, v in value.items()
            if not (isinstance(k, str) and k in exclude)
        }
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [plain(v, exclude, depth + 1) for v in value]
    return repr(value)


def jsonable(value: Any) -> Any:
    """Return ``value`` with text in place of keys and values that JSON cannot represent."""
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(each) for each in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _is_ordered_set(value: Mapping[Any, Any]) -> bool:
    """Return whether a dict without values serves as a set of entities."""
    return isinstance(next(iter(value)), _ENTITIES)


def _plain_key(key: Key) -> Any:
    if isinstance(key, str | int | float | bytes) or key is None:
        return key
    return repr(key) if isinstance(key, _ENTITIES) else str(key)
