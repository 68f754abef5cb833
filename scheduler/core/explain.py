"""Why is my task not running? What holds a task up, as plain data; ``explain_words.py`` says it in English.

Pure functions over the state. Stock has nothing like it; the RPC is ``explain``, the command ``paceline explain``.

Must not know: who asks, how the answer travels; never changes the state.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from paceline.protocol.keys import Key

from .explain_words import say, summary
from .placement import is_available, is_rootish, with_slots
from .state import SchedulerState, TaskState, WorkerState
from .steals import live
from .story import story

#: Lists in an answer hold no more than this; counts beside them are whole.
EXAMPLES_MAX: Final = 10
#: Tasks below a waiting one that are looked at: one answer must not hold up the scheduler.
BELOW_MAX: Final = 20_000
#: How many logged transitions an answer holds: the last ones.
STORY_MAX: Final = 50
#: Rows of a graph that is being taken in among which an unknown key is looked for.
ROWS_MAX: Final = 1_000_000
#: Tasks among which namesakes of an unknown key are looked for.
NAMESAKES_AMONG_MAX: Final = 200_000
#: A worker that was silent this long is suspicious, seconds. Heartbeats come every half second to a few seconds.
SILENT_SECONDS: Final = 15.0
#: What is worth a look first, where a task waits for several others.
GRAVEST_FIRST: Final = (
    "erred",
    "no-worker",
    "released",
    "queued",
    "processing",
    "waiting",
    "memory",
)


def explain(state: SchedulerState, key: Key, now: float, compiling: int = 0) -> dict[str, Any]:
    """What is known of a task that somebody waits for.

    Args:
        now: seconds since the epoch.
        compiling: how many graphs of clients are being read elsewhere; the key may be in one of them.

    Returns:
        "key", "state" (None where the key is unknown), "since" (seconds since the epoch; None where the log does not
        go back so far), "seconds" in that state, "wanted_by", "priority", "story", and "summary" and "words": one
        sentence and all of them. By state: "waits_for" (waiting), "workers" and "restrictions" (no-worker, and whoever
        has restrictions), "queue" (queued), "worker" (processing), "error" (erred), "held_by" (memory).
    """
    ts = state.tasks.get(key)
    out: dict[str, Any] = {"key": key, "state": None if ts is None else ts.state}
    if ts is None:
        out["graphs"] = graphs_under_way(state, key)
        out["compiling"] = compiling
        out["namesakes"] = namesakes(state, key)
    else:
        since = entered_at(state, ts)
        out["since"] = since
        out["seconds"] = None if since is None else max(0.0, now - since)
        out["priority"] = ts.priority
        out["wanted_by"] = wanted_by(ts)
        out["retries_left"] = ts.retries
        out["suspicious"] = ts.suspicious
        out.update(_facts(state, ts, now))
    out["cluster"] = cluster(state, now)
    out["story"] = story(state, key)[-STORY_MAX:]
    out["summary"] = summary(out)
    out["words"] = say(out)
    return out


def explain_all(state: SchedulerState, now: float) -> dict[str, Any]:
    """What holds up the cluster as a whole, when nobody knows which task to ask for.

    Returns:
        "states" (state -> how many tasks), "cluster", "suspects": the summaries of those that are most likely to
        hold up others, gravest first.
    """
    states: dict[str, int] = {}
    for group in state.task_groups.values():
        for name, count in group.states.items():
            if count and name != "forgotten":
                states[name] = states.get(name, 0) + count
    suspects: list[TaskState] = []
    suspects += islice(state.unrunnable, EXAMPLES_MAX)
    suspects += _longest_processing(state, now)
    suspects += islice(state.queued, 1)
    found = []
    for ts in suspects[: 2 * EXAMPLES_MAX]:
        told = explain(state, ts.key, now)
        found.append({"key": ts.key, "state": ts.state, "summary": told["summary"]})
    return {"states": states, "cluster": cluster(state, now), "suspects": found}


def _longest_processing(state: SchedulerState, now: float) -> list[TaskState]:
    """A few tasks that were sent to workers longest ago: each worker's first."""
    first = [next(iter(ws.processing)) for ws in state.workers.values() if ws.processing]
    first.sort(key=lambda ts: ts.run_id)
    return first[: EXAMPLES_MAX // 2]


def _facts(state: SchedulerState, ts: TaskState, now: float) -> dict[str, Any]:
    """What matters in its state."""
    out: dict[str, Any] = {}
    limits = restrictions(ts)
    if limits is not None:
        out["restrictions"] = limits
    if ts.state == "waiting":
        out["waits_for"] = waits_for(state, ts, now)
        out["reminder"] = state.has_unfinished
    elif ts.state == "processing":
        out["worker"] = on_worker(state, ts, now)
    elif ts.state == "queued":
        out["queue"] = in_queue(state, ts)
    elif ts.state == "erred":
        out["error"] = failure(ts)
    elif ts.state == "memory":
        holders = [ws.address for ws in ts.who_has]
        out["held_by"] = {"workers": holders[:EXAMPLES_MAX], "n": len(holders), "nbytes": ts.nbytes}
    elif ts.state == "released":
        out["has_run_spec"] = ts.run_spec is not None
        out["lost_dependencies"] = ts.has_lost_dependencies
    if ts.state == "no-worker" or limits is not None:
        out["workers"] = candidates(state, ts)
    return out


# ------------------------------------------------------------------ since when, and for whom


def entered_at(state: SchedulerState, ts: TaskState) -> float | None:
    """When it came into its state, seconds since the epoch; None where the log does not go back so far."""
    if ts.state == "no-worker" and ts in state.unrunnable:
        return state.unrunnable[ts]
    for entry in reversed(state.transition_log):
        if entry[0] == ts.key:
            return float(entry[5]) if entry[2] == ts.state else None
    return None


def wanted_by(ts: TaskState) -> dict[str, Any]:
    """Clients that hold futures of it, and dependents that are to run."""
    active = (
        d.key for d in ts.dependents if d.state in ("waiting", "no-worker", "queued", "processing")
    )
    return {
        "clients": [cs.client_key for cs in islice(ts.who_wants, EXAMPLES_MAX)],
        "n_clients": len(ts.who_wants),
        "dependents": list(islice(active, EXAMPLES_MAX)),
        "n_dependents": ts.waiters_count,
    }


def graphs_under_way(state: SchedulerState, key: Key) -> dict[str, Any]:
    """Graphs that were not taken in whole yet, and whether the key is in one."""
    holding = None
    rows = 0
    for graph in state.graphs.values():
        rows += len(graph.keys)
        if rows <= ROWS_MAX and key in graph.keys:
            holding = graph.client
            break
    return {"n": len(state.graphs), "n_tasks": rows, "client": holding}


def namesakes(state: SchedulerState, name: Key) -> list[Key]:
    """Tasks of the group or prefix of this name that are not done; or, where all are, some that are."""
    if name not in state.task_groups and name not in state.task_prefixes:
        return []
    found: dict[bool, list[Key]] = {True: [], False: []}
    for ts in islice(state.tasks.values(), NAMESAKES_AMONG_MAX):
        if name in (ts.group.name, ts.group.prefix.name):
            found[ts.state == "memory"].append(ts.key)
            if len(found[False]) >= EXAMPLES_MAX:
                break
    return (found[False] or found[True])[:EXAMPLES_MAX]


# ------------------------------------------------------------------ waiting


def waits_for(state: SchedulerState, ts: TaskState, now: float) -> dict[str, Any]:
    """Dependencies that nobody has, and what lies at the bottom: tasks below that wait for no other task.

    Returns:
        "n" of "of" dependencies, "examples" of them, "bottom": state -> how many at the bottom, "whole": whether all
        was looked at, "cause": key and state of the one to look at first, with what is to be said of it.
    """
    missing = [d for d in ts.dependencies if not d.who_has]
    bottom, whole = _bottom(missing)
    counts: dict[str, int] = {}
    for each in bottom:
        counts[each.state] = counts.get(each.state, 0) + 1
    cause = min(bottom, key=_gravity, default=None)
    out: dict[str, Any] = {
        "n": len(missing),
        "of": len(ts.dependencies),
        "examples": [{"key": d.key, "state": d.state} for d in missing[:EXAMPLES_MAX]],
        "bottom": counts,
        "whole": whole,
        "cause": None,
    }
    if cause is not None:
        facts = {"key": cause.key, "state": cause.state, "wanted_by": wanted_by(cause)}
        since = entered_at(state, cause)
        facts["since"] = since
        facts["seconds"] = None if since is None else max(0.0, now - since)
        if cause.state != "waiting":
            facts.update(_facts(state, cause, now))
        facts["cluster"] = cluster(state, now)
        facts["summary"] = summary(facts)
        out["cause"] = facts
    return out


def _gravity(ts: TaskState) -> tuple[Any, ...]:
    return (GRAVEST_FIRST.index(ts.state), ts.priority or ())


def _bottom(missing: Iterable[TaskState]) -> tuple[list[TaskState], bool]:
    """Tasks that are reached through waiting ones and wait for no other themselves; whether all were looked at."""
    seen = dict.fromkeys(missing)
    stack = list(seen)
    out: list[TaskState] = []
    while stack:
        ts = stack.pop()
        below = [d for d in ts.dependencies if not d.who_has] if ts.state == "waiting" else []
        if not below:
            out.append(ts)
        for dts in below:
            if dts not in seen:
                if len(seen) >= BELOW_MAX:
                    return out, False
                seen[dts] = None
                stack.append(dts)
    return out, True


# ------------------------------------------------------------------ which workers may run it


def restrictions(ts: TaskState) -> dict[str, Any] | None:
    """Where alone it may run; None for anywhere."""
    details = ts.details
    if details is None or not (
        details.worker_restrictions or details.host_restrictions or details.resource_restrictions
    ):
        return None
    return {
        "workers": list(details.worker_restrictions or ()),
        "hosts": list(details.host_restrictions or ()),
        "resources": dict(details.resource_restrictions or {}),
        "loose": details.loose_restrictions,
    }


def candidates(state: SchedulerState, ts: TaskState) -> dict[str, Any]:
    """Which workers could run it, and what excludes the others.

    Returns:
        "n" workers in all, "able": addresses of those that may run it now (at most EXAMPLES_MAX), "n_able",
        "excluded": the reasons of the first EXAMPLES_MAX others, "n_excluded", "reasons": kind -> how many workers it
        excludes, "absent": workers and hosts it is restricted to that are not there.
    """
    able: list[str] = []
    excluded: list[dict[str, Any]] = []
    kinds: dict[str, int] = {}
    for ws in state.workers.values():
        why = exclusions(state, ts, ws)
        if not why:
            able.append(ws.address)
            continue
        for reason in why:
            kinds[reason["kind"]] = kinds.get(reason["kind"], 0) + 1
        if len(excluded) < EXAMPLES_MAX:
            excluded.append({"worker": ws.address, "name": ws.name, "reasons": why})
    limits = restrictions(ts) or {"workers": (), "hosts": ()}
    absent = [a for a in limits["workers"] if a not in state.workers]
    absent += [h for h in limits["hosts"] if _host(state, h) not in state.host_info]
    return {
        "n": len(state.workers),
        "able": able[:EXAMPLES_MAX],
        "n_able": len(able),
        "excluded": excluded,
        "n_excluded": len(state.workers) - len(able),
        "reasons": kinds,
        "absent": absent[:EXAMPLES_MAX],
    }


def exclusions(state: SchedulerState, ts: TaskState, ws: WorkerState) -> list[dict[str, Any]]:
    """Why a worker may not be given the task now: "kind" is status, clogged, worker or resource; none: it may."""
    out: list[dict[str, Any]] = []
    if ws.status != "running":
        out.append({"kind": "status", "status": ws.status})
    elif not is_available(ws):
        out.append({"kind": "clogged"})
    details = ts.details
    if details is None:
        return out
    named = details.worker_restrictions or {}
    hosts = details.host_restrictions or {}
    if named or hosts:
        on_host = any(_host(state, h) == ws.host for h in hosts)
        if ws.address not in named and not on_host:
            out.append({"kind": "worker", "loose": details.loose_restrictions})
    for resource, amount in (details.resource_restrictions or {}).items():
        supplied = ws.resources.get(resource)
        if supplied is None or supplied < amount:
            out.append(
                {"kind": "resource", "resource": resource, "needs": amount, "has": supplied or 0}
            )
    return out


def _host(state: SchedulerState, name: str) -> str:
    """The host that a restriction means: a host's name, or a worker's alias."""
    ws = state.resolve_worker(name)
    return name if ws is None else ws.host


# ------------------------------------------------------------------ queued, processing, erred


def in_queue(state: SchedulerState, ts: TaskState) -> dict[str, Any]:
    """How many go first, and how full workers are."""
    priority = ts.priority or ()
    before = sum(
        1 for other in state.queued if other is not ts and (other.priority or ()) < priority
    )
    running = list(state.running)
    return {
        "before": before,
        "length": len(state.queued),
        "saturation": state.config.worker_saturation,
        "n_running": len(running),
        "n_with_slots": len(with_slots(state)),
        "tasks_on_workers": sum(len(ws.processing) for ws in running),
        "slots": sum(ws.task_slots for ws in running),
        "rootish": is_rootish(state, ts),
    }


def on_worker(state: SchedulerState, ts: TaskState, now: float) -> dict[str, Any]:
    """The worker that it was sent to, and what the worker does with it as far as its last heartbeat tells.

    Returns:
        "executing" seconds, None where it was not executing then; "n_missing" dependencies that the worker has to
        fetch (with "missing_nbytes"); "busy_with": tasks that execute there; "resources_short": resource -> (needed,
        free); "silent_seconds" since it was heard of; "seceded"; "asked_back": where the worker was asked to give the task
        back and has not answered, "thief" (None: to be placed anew) and "stimulus_id" of the request.
    """
    ws = ts.processing_on
    assert ws is not None, ts
    missing = [d for d in ts.dependencies if ws not in d.who_has]
    details = ts.details
    needed = (details.resource_restrictions if details is not None else None) or {}
    ahead = sum(1 for other in ws.processing if (other.priority or ()) < (ts.priority or ()))
    steal = live(state, ts)
    return {
        "address": ws.address,
        "name": ws.name,
        "status": ws.status,
        "clogged": ws.clogged,
        "silent_seconds": max(0.0, now - ws.last_seen),
        "ttl_seconds": state.config.worker_ttl_seconds,
        "nthreads": ws.nthreads,
        "processing": len(ws.processing),
        "ahead": ahead,
        "executing": ws.executing.get(ts),
        "busy_with": [
            {"key": other.key, "seconds": seconds}
            for other, seconds in islice(ws.executing.items(), EXAMPLES_MAX)
            if other is not ts and other in ws.processing
        ],
        "seceded": ts in ws.long_running,
        "n_missing": len(missing),
        "missing_nbytes": sum(max(0, d.nbytes) for d in missing),
        "holders_of_missing": list(
            dict.fromkeys(holder.address for d in missing for holder in islice(d.who_has, 1))
        )[:EXAMPLES_MAX],
        "resources_short": _short(ws, ts, needed),
        "asked_back": None
        if steal is None
        else {
            "thief": None if steal.thief is None else steal.thief.address,
            "stimulus_id": steal.stimulus_id,
        },
    }


def _short(ws: WorkerState, ts: TaskState, needed: dict[str, float]) -> dict[str, Any]:
    """Resources that others on the worker hold more of than lets this task begin: name -> (needed, supplied)."""
    return {
        name: (amount, ws.resources.get(name, 0))
        for name, amount in needed.items()
        if ws.used_resources.get(name, 0) > ws.resources.get(name, 0)
    }


def failure(ts: TaskState) -> dict[str, Any]:
    """What went wrong, and where."""
    blame = ts.exception_blame or ts
    return {
        "cause": blame.key,
        "text": blame.exception_text or ts.exception_text or "",
        "erred_on": list(blame.erred_on or ())[:EXAMPLES_MAX],
    }


# ------------------------------------------------------------------ the cluster


def cluster(state: SchedulerState, now: float) -> dict[str, Any]:
    """Workers that take tasks and those that do not."""
    statuses: dict[str, int] = {}
    silent: list[dict[str, Any]] = []
    clogged: list[str] = []
    for ws in state.workers.values():
        statuses[ws.status] = statuses.get(ws.status, 0) + 1
        if now - ws.last_seen > SILENT_SECONDS and len(silent) < EXAMPLES_MAX:
            silent.append({"worker": ws.address, "seconds": now - ws.last_seen})
        if ws.clogged and len(clogged) < EXAMPLES_MAX:
            clogged.append(ws.address)
    return {
        "workers": len(state.workers),
        "statuses": statuses,
        "threads": state.total_nthreads,
        "silent": silent,
        "clogged": clogged,
        "queued": len(state.queued),
        "no_worker": len(state.unrunnable),
        "graphs": len(state.graphs),
    }
