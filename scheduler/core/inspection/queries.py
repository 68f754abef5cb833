"""Read-only queries of the state, with results in the form that stock clients and workers expect.

Functions take worker addresses or aliases, not host names, and normalised keys. As in stock, the
caller of the RPC receives a ``KeyError`` as an ``uncaught-error``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from paceline.protocol.keys import Key, key_split
from paceline.protocol.payload import Payload
from paceline.scheduler.core.state.addresses import coerce_address
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.ticks.extra_runs import given_up_runs

#: (key, start, finish, {key: recommendation}, stimulus_id, seconds since the epoch), as in stock.
Transition = tuple[Key, str, str, dict[Key, str], str, float]

#: States counted by ``get_task_prefix_states``.
REPORTED_STATES: Final = ("memory", "erred", "released", "processing", "waiting")

#: ``default`` of ``get_metadata`` if the caller gave none.
NO_DEFAULT: Final = "__no_default__"
#: Name of the enum member that stock clients send for it.
STOCK_NO_DEFAULT: Final = "no_default"


# ------------------------------------------------------------------ the cluster


def workers_list(state: SchedulerState, workers: Iterable[str] | None) -> list[str]:
    """Return the addresses of workers named by address or by a part of it, such as the host.

    An address without a worker stays in the list, as in stock.
    """
    if workers is None:
        return list(state.workers)
    out: dict[str, None] = {}
    for worker in workers:
        if ":" in worker:
            out[worker] = None
        else:
            out.update(dict.fromkeys(a for a in state.workers if worker in a))
    return list(out)


def worker_identity(ws: WorkerState) -> dict[str, Any]:
    """Return the description of `ws` for clients; members of ``extra`` replace none of it."""
    return {
        **ws.extra,
        "type": "Worker",
        "id": ws.name,
        "host": ws.host,
        "resources": ws.resources,
        "local_directory": ws.local_directory,
        "name": ws.name,
        "nthreads": ws.nthreads,
        "memory_limit": ws.memory_limit,
        "last_seen": ws.last_seen,
        "services": ws.services,
        "metrics": ws.metrics,
        "status": ws.status,
        "nanny": ws.nanny,
    }


def identity(
    state: SchedulerState,
    n_workers: int = -1,
    *,
    id: str = "",
    address: str = "",
    services: dict[str, int] | None = None,
    started: float = 0.0,
    build: str = "",
    restarts: int = 0,
    upgrades: int = 0,
) -> dict[str, Any]:
    """Describe the scheduler and the first ``n_workers`` workers, or all if it is -1.

    The other arguments are facts of the server, as stock names them: ``services`` is name -> port,
    ``started`` seconds since the epoch. Stock has no ``build``, the version and kind of build, and
    no ``restarts`` and ``upgrades``, how often the process of a durable scheduler has died and was
    replaced by another release; and no ``given_up_runs``, worker address -> number of runs that
    were given up and go on.
    """
    count = len(state.workers) if n_workers == -1 else max(0, n_workers)
    return {
        "type": "Scheduler",
        "id": id,
        "address": address,
        "services": services or {},
        "started": started,
        "build": build,
        "restarts": restarts,
        "upgrades": upgrades,
        "given_up_runs": {ws: len(keys) for ws, keys in given_up_runs(state).items()},
        "n_workers": len(state.workers),
        "total_threads": state.total_nthreads,
        "total_memory": state.total_memory,
        "workers": {
            ws.address: worker_identity(ws) for ws in islice(state.workers.values(), count)
        },
    }


def _addresses(state: SchedulerState, workers: Iterable[Any] | None) -> Iterable[str]:
    """Return the addresses of `workers`, or of all if None."""
    return state.workers if workers is None else [coerce_address(state, w) for w in workers]


def ncores(state: SchedulerState, workers: Iterable[Any] | None = None) -> dict[str, int]:
    """Return address -> threads; unknown workers are left out."""
    known = state.workers
    return {a: known[a].nthreads for a in _addresses(state, workers) if a in known}


def ncores_running(state: SchedulerState, workers: Iterable[Any] | None = None) -> dict[str, int]:
    """Return the same as ``ncores`` for workers that accept tasks."""
    found = ncores(state, workers)
    return {a: n for a, n in found.items() if state.workers[a].status == "running"}


def processing(state: SchedulerState, workers: Iterable[Any] | None = None) -> dict[str, list[Key]]:
    """Return address -> keys that are processing on the worker. Raise KeyError if it is unknown."""
    addresses = _addresses(state, workers)
    return {a: [ts.key for ts in state.workers[a].processing] for a in addresses}


def has_what(state: SchedulerState, workers: Iterable[Any] | None = None) -> dict[str, list[Key]]:
    """Return address -> keys in memory on the worker; empty for an unknown worker."""
    found = {a: state.workers.get(a) for a in _addresses(state, workers)}
    return {a: [ts.key for ts in ws.has_what] if ws else [] for a, ws in found.items()}


# ------------------------------------------------------------------ tasks


def who_has(state: SchedulerState, keys: Iterable[Key] | None = None) -> dict[Key, list[str]]:
    """Return key -> addresses of the workers that have it in memory; empty for an unknown key."""
    found = state.tasks if keys is None else {key: state.tasks.get(key) for key in keys}
    return {key: [ws.address for ws in ts.who_has] if ts else [] for key, ts in found.items()}


def nbytes(
    state: SchedulerState, keys: Iterable[Key] | None = None, summary: bool = True
) -> dict[Key, int]:
    """Return key -> bytes, or with ``summary`` prefix -> bytes.

    Raises:
        KeyError: a key is unknown.
    """
    if keys is not None:
        found = {key: state.tasks[key].nbytes for key in keys}
    else:
        found = {key: ts.nbytes for key, ts in state.tasks.items() if ts.nbytes >= 0}
    if not summary:
        return found
    sums: dict[Key, int] = {}
    for key, size in found.items():
        prefix = key_split(key)
        sums[prefix] = sums.get(prefix, 0) + size
    return sums


def get_task_status(state: SchedulerState, keys: Iterable[Key]) -> dict[Key, str | None]:
    """Return key -> state of the task; None for an unknown key."""
    tasks = state.tasks
    return {key: tasks[key].state if key in tasks else None for key in keys}


def get_task_prefix_states(state: SchedulerState) -> dict[str, dict[str, int]]:
    """Return prefix -> state -> number of tasks; prefixes without tasks are left out."""
    out = {}
    for prefix in state.task_prefixes.values():
        states = prefix.states
        if any(states[s] for s in REPORTED_STATES):
            out[prefix.name] = {s: states[s] for s in REPORTED_STATES}
    return out


def prefix_states(state: SchedulerState) -> dict[str, dict[str, int]]:
    """Return prefix -> state -> number of tasks, without prefixes and states that have none."""
    found = {}
    for prefix in state.task_prefixes.values():
        counts = {s: n for s, n in prefix.states.items() if n and s != "forgotten"}
        if counts:
            found[prefix.name] = counts
    return found


def story(state: SchedulerState, *keys_or_stimuli: Any) -> list[Transition]:
    """Return the logged transitions that match one of ``keys_or_stimuli``, oldest first.

    These are keys, tasks, or stimulus_ids. A transition matches by its own key, by the keys that
    it made recommendations for, and by the stimulus that caused it. The log holds the last
    ``config.low_level_log_length`` transitions.
    """
    wanted = {k.key if isinstance(k, TaskState) else k for k in keys_or_stimuli}
    out = []
    for key, start, finish, recommended, stimulus_id, seconds in state.transition_log:
        if key in wanted or stimulus_id in wanted or any(ts.key in wanted for ts in recommended):
            by_key = {ts.key: to for ts, to in recommended.items()}
            out.append((key, start, finish, by_key, stimulus_id, seconds))
    return out


def call_stack_keys(
    state: SchedulerState, keys: Iterable[Key] | None = None
) -> dict[str, list[Key] | None]:
    """Return the workers to request call stacks from: address -> keys, or None for all keys.

    A waiting task stands for the tasks below it that are processing.

    Raises:
        KeyError: a key is unknown.
    """
    if keys is None:
        return dict.fromkeys(state.workers)
    stack = list(keys)
    seen = set(stack)
    out: dict[str, list[Key] | None] = {}
    while stack:
        ts = state.tasks[stack.pop()]
        if ts.state == "waiting":
            for dependency in ts.dependencies:
                if dependency.key not in seen:
                    seen.add(dependency.key)
                    stack.append(dependency.key)
        elif ts.state == "processing" and ts.processing_on is not None:
            at = out.setdefault(ts.processing_on.address, [])
            if at is not None:
                at.append(ts.key)
    return out


# ------------------------------------------------------------------ ``recreate_task_locally``


def get_runspec(state: SchedulerState, key: Key) -> Payload | None:
    """Return the pickled ``run_spec`` of a task; None for scattered data.

    Raises:
        KeyError: the key is unknown.
    """
    return state.tasks[key].run_spec_payload()


def get_error_cause(state: SchedulerState, keys: Iterable[Key] = ()) -> Key | None:
    """Return the key of the task whose error made the first erred one of ``keys`` fail, or None."""
    for key in keys:
        ts = state.tasks.get(key)
        if ts is not None and ts.exception_blame is not None:
            return ts.exception_blame.key
    return None


# ------------------------------------------------------------------ metadata


def get_metadata(state: SchedulerState, keys: Iterable[Any], default: Any = NO_DEFAULT) -> Any:
    """Return the metadata stored under a path of keys.

    Raises:
        KeyError: there is none, and no default was given.
    """
    found: Any = state.task_metadata
    try:
        for key in keys:
            found = found[key]
    except KeyError:
        if _is_no_default(default):
            raise
        return default
    return found


def _is_no_default(default: Any) -> bool:
    if isinstance(default, dict):
        return "__Enum__" in default and default.get("name") == STOCK_NO_DEFAULT
    return isinstance(default, str) and default == NO_DEFAULT
