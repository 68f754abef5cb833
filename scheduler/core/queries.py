"""Read-only answers over the state, in the shapes that stock clients and workers expect.

Free functions ``name(state, ...)``. Worker arguments are addresses or aliases; host names are not looked up
here. Keys arrive normalised. ``KeyError`` means what it means in stock: the asker gets it as an
``uncaught-error``.

Must not know: who asks, how the answer travels; never changes the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from paceline.protocol.keys import Key, key_split
from paceline.protocol.payload import Payload

from .state import SchedulerState, TaskState, WorkerState
from .story import Transition, story

#: States that ``get_task_prefix_states`` tells of.
REPORTED_STATES: Final = ("memory", "erred", "released", "processing", "waiting")

#: ``default`` of ``get_metadata`` where the asker gave none.
NO_DEFAULT: Final = "__no_default__"
#: The name of the enum member that stock clients send for it.
STOCK_NO_DEFAULT: Final = "no_default"

#: Up to this many workers send a heartbeat every half second; see ``heartbeat_interval``.
HEARTBEAT_STEPS: Final = ((10, 0.5), (49, 1.0), (199, 2.0))
#: Beyond the steps: no more than so many heartbeats a second.
HEARTBEATS_PER_SECOND_MAX: Final = 200


# ------------------------------------------------------------------ addresses


def coerce_address(state: SchedulerState, address: Any) -> str:
    """The address that an alias, a ``(host, port)`` pair or an address without scheme stands for.

    Raises:
        TypeError: it is none of these.
    """
    try:
        found = state.aliases.get(address, address)
    except TypeError:
        found = address
    if isinstance(found, tuple | list) and len(found) == 2:
        host, port = found
        found = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    if not isinstance(found, str):
        raise TypeError(f"addresses should be strings or tuples, got {found!r}")
    return found if "://" in found else f"tcp://{found}"


def address_or_host(state: SchedulerState, name: Any) -> str | None:
    """The address that a user means by ``name`` in a restriction; None where it is a host's name.

    Host names inside addresses are resolved by the compiler of the graph; here only what needs no look-up.
    """
    if name in state.aliases:
        return state.aliases[name]
    if not isinstance(name, str) or ":" not in name:
        return None
    scheme, rest = coerce_address(state, name).split("://", 1)
    if rest.startswith("localhost:"):
        rest = "127.0.0.1" + rest[len("localhost") :]
    return f"{scheme}://{rest}"


def workers_list(state: SchedulerState, workers: Iterable[str] | None) -> list[str]:
    """Addresses of the workers that are named by address or by a part of it (a host), in order of registration.

    An address that no worker has stays in the list, as in stock.
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


def registration_error(
    state: SchedulerState, address: str, name: Any, nthreads: int = 1
) -> str | None:
    """Why a worker may not register under ``name``: the message of stock's reply, or None.

    Raises:
        ValueError: the address is taken; stock answers this with an ``uncaught-error``. Or it has no threads; stock takes such a
            worker, and divides by their number with each task from then on, but no stock worker says so.
    """
    if nthreads < 1:
        raise ValueError(f"a worker needs one thread at least, and {address} has {nthreads}")
    if address in state.workers:
        raise ValueError(f"Worker already exists {address}")
    try:
        taken = name in state.aliases
    except TypeError:
        return f"not a name: {name!r}"
    return f"name taken, {name}" if taken else None


def heartbeat_interval(n_workers: int) -> float:
    """How often a worker should send a heartbeat, seconds."""
    for upto, seconds in HEARTBEAT_STEPS:
        if n_workers <= upto:
            return seconds
    return n_workers / HEARTBEATS_PER_SECOND_MAX + 1


# ------------------------------------------------------------------ the cluster


def worker_identity(ws: WorkerState) -> dict[str, Any]:
    """What others are told of a worker."""
    return {
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
        **ws.extra,
    }


def identity(
    state: SchedulerState,
    n_workers: int = -1,
    *,
    id: str = "",
    address: str = "",
    services: dict[str, int] | None = None,
    started: float = 0.0,
) -> dict[str, Any]:
    """The scheduler and its workers.

    Args:
        n_workers: how many workers are described, in order of registration; -1 is all of them.
        id, address, services, started: facts of the server, as stock names them (``services`` is name ->
            port, ``started`` seconds since the epoch).
    """
    count = len(state.workers) if n_workers == -1 else max(0, n_workers)
    return {
        "type": "Scheduler",
        "id": id,
        "address": address,
        "services": services or {},
        "started": started,
        "n_workers": len(state.workers),
        "total_threads": state.total_nthreads,
        "total_memory": state.total_memory,
        "workers": {
            ws.address: worker_identity(ws) for ws in islice(state.workers.values(), count)
        },
    }


def ncores(state: SchedulerState, workers: Iterable[Any] | None = None) -> dict[str, int]:
    """Address -> threads; unknown workers are left out."""
    if workers is None:
        return {address: ws.nthreads for address, ws in state.workers.items()}
    addresses = [coerce_address(state, w) for w in workers]
    return {a: state.workers[a].nthreads for a in addresses if a in state.workers}


def ncores_running(state: SchedulerState, workers: Iterable[Any] | None = None) -> dict[str, int]:
    """As ``ncores``, of workers that take tasks."""
    found = ncores(state, workers)
    return {a: n for a, n in found.items() if state.workers[a].status == "running"}


def processing(state: SchedulerState, workers: Iterable[Any] | None = None) -> dict[str, list[Key]]:
    """Address -> keys that the worker was sent and has not finished.

    Raises:
        KeyError: there is no such worker.
    """
    if workers is None:
        return {a: [ts.key for ts in ws.processing] for a, ws in state.workers.items()}
    addresses = dict.fromkeys(coerce_address(state, w) for w in workers)
    return {a: [ts.key for ts in state.workers[a].processing] for a in addresses}


def has_what(state: SchedulerState, workers: Iterable[Any] | None = None) -> dict[str, list[Key]]:
    """Address -> keys whose data the worker holds; none for an unknown worker."""
    if workers is None:
        return {a: [ts.key for ts in ws.has_what] for a, ws in state.workers.items()}
    out: dict[str, list[Key]] = {}
    for worker in workers:
        address = coerce_address(state, worker)
        ws = state.workers.get(address)
        out[address] = [ts.key for ts in ws.has_what] if ws is not None else []
    return out


# ------------------------------------------------------------------ tasks


def who_has(state: SchedulerState, keys: Iterable[Key] | None = None) -> dict[Key, list[str]]:
    """Key -> addresses of the workers that hold its data; none for an unknown key."""
    tasks = state.tasks
    if keys is None:
        return {key: [ws.address for ws in ts.who_has] for key, ts in tasks.items()}
    out: dict[Key, list[str]] = {}
    for key in keys:
        ts = tasks.get(key)
        out[key] = [ws.address for ws in ts.who_has] if ts is not None else []
    return out


def nbytes(
    state: SchedulerState, keys: Iterable[Key] | None = None, summary: bool = True
) -> dict[Key, int]:
    """Key, or with ``summary`` prefix of keys -> bytes.

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
    """Key -> state of the task; None for an unknown key."""
    tasks = state.tasks
    return {key: tasks[key].state if key in tasks else None for key in keys}


def get_task_prefix_states(state: SchedulerState) -> dict[str, dict[str, int]]:
    """Prefix -> state -> how many tasks; prefixes without tasks are left out."""
    out = {}
    for prefix in state.task_prefixes.values():
        states = prefix.states
        if any(states[s] for s in REPORTED_STATES):
            out[prefix.name] = {s: states[s] for s in REPORTED_STATES}
    return out


def get_story(state: SchedulerState, keys_or_stimuli: Iterable[Any]) -> list[Transition]:
    """The logged transitions that touch one of these keys, or were caused by one of these stimuli."""
    return story(state, *keys_or_stimuli)


def call_stack_keys(
    state: SchedulerState, keys: Iterable[Key] | None = None
) -> dict[str, list[Key] | None]:
    """Whom to ask for call stacks: address -> keys that run there; None for all of the worker's.

    For a task that waits, what runs below it is meant.

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


# ------------------------------------------------------------------ replay (``client.recreate_task_locally``)


def get_runspec(state: SchedulerState, key: Key) -> Payload | None:
    """The pickled specification of a task, closed; the client unpickles it. None for pure data.

    Raises:
        KeyError: the key is unknown.
    """
    return run_spec_payload(state.tasks[key])


def run_spec_payload(ts: TaskState) -> Payload | None:
    """A task's specification as a payload of kind "pickled"."""
    spec = ts.run_spec
    if isinstance(spec, bytes):
        return Payload("pickled", spec, ())
    return spec


def get_error_cause(state: SchedulerState, keys: Iterable[Key] = ()) -> Key | None:
    """Key of the task whose failure made the first erred one of ``keys`` fail, or None."""
    for key in keys:
        ts = state.tasks.get(key)
        if ts is not None and ts.exception_blame is not None:
            return ts.exception_blame.key
    return None


# ------------------------------------------------------------------ metadata


def get_metadata(state: SchedulerState, keys: Iterable[Any], default: Any = NO_DEFAULT) -> Any:
    """What a client stored under a path of keys.

    Raises:
        KeyError: nothing is there, and no default was given.
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
