"""Facts about why a task is not running, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from paceline.protocol.keys import Key
from paceline.scheduler.core.inspection.share_report import share_facts
from paceline.scheduler.core.policy import admission
from paceline.scheduler.core.policy.coassignment import may_wait_for_results
from paceline.scheduler.core.policy.placement import (
    allowed_workers,
    is_rootish,
    workers_with_free_slots,
)
from paceline.scheduler.core.policy.worker_ends import can_finish, is_limited
from paceline.scheduler.core.state.estimates import expected_duration, task_memory
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import ACTIVE_STATES
from paceline.scheduler.core.state.workers.loads import is_available
from paceline.scheduler.core.ticks.extra_runs import given_up_runs

#: Entries of each list in the result; the counts beside the lists are complete.
EXAMPLES_MAX: Final = 10
#: Tasks searched below a waiting task, so that one request does not block the scheduler.
BELOW_MAX: Final = 20_000
#: Seconds without a heartbeat after which a worker is reported. Workers send one every 0.5 s to a
#: few seconds.
SILENT_SECONDS: Final = 15.0
#: Rows of pending graphs searched for an unknown key.
ROWS_MAX: Final = 1_000_000
#: Tasks searched for members of a group or prefix.
NAMESAKES_AMONG_MAX: Final = 200_000
#: States in the order in which they are reported as the cause if a task waits for several tasks.
GRAVEST_FIRST: Final = (
    *("erred", "no-worker", "released", "queued", "processing", "waiting", "memory"),
)


def state_facts(state: SchedulerState, ts: TaskState, now: float) -> dict[str, Any]:
    """Return the facts that matter in the state of ``ts``."""
    out: dict[str, Any] = {}
    limits = restrictions(ts)
    if limits is not None:
        out["restrictions"] = limits
    if ts.state == "waiting":
        out["waits_for"] = waits_for(state, ts, now)
        out["reminder"] = bool(state.deferred)
    elif ts.state == "processing":
        out["worker"] = on_worker(state, ts, now)
        out["excess"] = excess_facts(state, ts)
    elif ts.state == "queued":
        out["queue"] = in_queue(state, ts)
    elif ts.state == "erred":
        out["error"] = failure(ts)
    elif ts.state == "memory":
        holders = [ws.address for ws in ts.who_has]
        out["held_by"] = {
            "workers": holders[:EXAMPLES_MAX],
            "n": len(holders),
            "nbytes": ts.nbytes,
            "has_second_copy": ts in state.second_copies.kept,
        }
    elif ts.state == "released":
        out["has_finished"] = ts.type is not None
        out["has_run_spec"] = ts.run_spec is not None
        out["lost_dependencies"] = ts.has_lost_dependencies
    if ts in state.whole_workers.due:
        ws = state.whole_workers.worker_of(ts)
        out["whole_worker"] = (
            None if ws is None else {"address": ws.address, "n_processing": len(ws.processing)}
        )
        out["share"] = share_facts(state, ts)
    found = policy_facts(ts, now)
    if found is not None:
        out["policies"] = found
    is_short = ts.state == "queued" and is_limited(state, ts)
    if ts.state == "no-worker" or limits is not None or is_short:
        out["workers"] = candidates(state, ts)
    return out


def state_duration(state: SchedulerState, ts: TaskState, now: float) -> dict[str, float | None]:
    """Return "since" when ``ts`` is in its state (seconds since the epoch), and "seconds" in it.

    Both are None if the log does not go back that far.
    """
    since = state.unrunnable.get(ts)
    if since is None:
        entry = next((e for e in reversed(state.transition_log) if e[0] == ts.key), None)
        if entry is None or entry[2] != ts.state:
            return {"since": None, "seconds": None}
        since = float(entry[5])
    return {"since": since, "seconds": max(0.0, now - since)}


def wanted_by(ts: TaskState) -> dict[str, Any]:
    """Return the clients that hold futures for ``ts``, and its dependents that are scheduled."""
    active = (d.key for d in ts.dependents if d.state in ACTIVE_STATES)
    return {
        "clients": [cs.client_key for cs in islice(ts.who_wants, EXAMPLES_MAX)],
        "n_clients": len(ts.who_wants),
        "dependents": list(islice(active, EXAMPLES_MAX)),
        "n_dependents": ts.waiters_count,
    }


def pending_graphs(state: SchedulerState, key: Key) -> dict[str, Any]:
    """Return the number and size of pending graphs, and the client whose graph contains ``key``."""
    holding = None
    rows = 0
    for graph in state.graphs.values():
        rows += len(graph.keys)
        if rows <= ROWS_MAX and key in graph.keys:
            holding = graph.client
            break
    return {"n": len(state.graphs), "n_tasks": rows, "client": holding}


def namesakes(state: SchedulerState, name: Key) -> list[Key]:
    """Return unfinished tasks of the group or prefix ``name``; without any, finished ones."""
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
    """Return the missing dependencies of ``ts``, and the tasks below them that wait for no other.

    Returns:
        "n" of "of" dependencies, "examples" of them, "bottom": state -> number of tasks at the
        root, "whole": whether all were searched, "cause": the most serious of them with its facts.
    """
    missing = [d for d in ts.dependencies if not d.who_has]
    bottom, whole = _roots(missing)
    cause = min(
        bottom, key=lambda ts: (GRAVEST_FIRST.index(ts.state), ts.priority or ()), default=None
    )
    out: dict[str, Any] = {
        "n": len(missing),
        "of": len(ts.dependencies),
        "examples": [{"key": d.key, "state": d.state} for d in missing[:EXAMPLES_MAX]],
        "bottom": dict(Counter(each.state for each in bottom)),
        "whole": whole,
        "cause": None,
    }
    if cause is not None:
        facts = {"key": cause.key, "state": cause.state, "wanted_by": wanted_by(cause)}
        facts.update(state_duration(state, cause, now))
        facts.update(state_facts(state, cause, now))
        facts["cluster"] = cluster(state, now)
        out["cause"] = facts
    return out


def _roots(missing: Iterable[TaskState]) -> tuple[list[TaskState], bool]:
    """Return the tasks below ``missing`` that wait for no other, and whether all were searched."""
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


# ------------------------------------------------------------------ policies


def policy_facts(ts: TaskState, now: float) -> dict[str, Any] | None:
    """Return what the policies of ``ts`` do next; None if it is not active or has none.

    Returns:
        "timeout_seconds", and "times_out_in" (seconds from now; None unless it executes);
        "deadline" as text, and "deadline_in" (seconds from now); "failed_on", the worker of the
        last run, if the task waits for its retry, and "retried_in" (seconds from now; None while
        its exception is compared with "retry_on"); "avoided" workers. None if there is no such
        policy.
    """
    policies = ts.details.policies if ts.details is not None else None
    if policies is None or ts.state not in ACTIVE_STATES:
        return None
    policy = policies.policy
    out: dict[str, Any] = {
        "timeout_seconds": policy.timeout_seconds or None,
        "times_out_in": None,
        "deadline": policy.deadline_text or None,
        "deadline_in": policy.deadline - now if policy.deadline else None,
    }
    retry = policies.pending_retry
    out["failed_on"] = None if retry is None else retry.worker
    out["retried_in"] = None if retry is None or retry.failure is not None else retry.until - now
    out["retry_on"] = policy.retry_on
    out["second_run"] = None if policies.second is None else policies.second.address
    out["avoided"] = list(islice(policies.avoided, EXAMPLES_MAX))
    ws = ts.processing_on
    if ws is not None and policy.timeout_seconds and ts in ws.executing:
        running = ws.executing[ts] + now - ws.executing_at
        out["times_out_in"] = policy.timeout_seconds - running
    return out


# ------------------------------------------------------------------ which workers may run it


def restrictions(ts: TaskState) -> dict[str, Any] | None:
    """Return the restrictions of ``ts``; None if it has none."""
    if not (ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions):
        return None
    return {
        "workers": list(ts.worker_restrictions or ()),
        "hosts": list(ts.host_restrictions or ()),
        "resources": dict(ts.resource_restrictions or {}),
        "loose": ts.loose_restrictions,
    }


def candidates(state: SchedulerState, ts: TaskState) -> dict[str, Any]:
    """Return which workers can run ``ts``, and what excludes the others.

    Returns:
        "n" workers in total, "able": addresses of those that can run it now, "n_able", "excluded":
        the others with their reasons, "n_excluded", "reasons": kind -> number of workers that it
        excludes, "absent": workers and hosts it is restricted to that are not connected. Lists
        have at most EXAMPLES_MAX members.
    """
    able: list[str] = []
    excluded: list[dict[str, Any]] = []
    kinds: Counter[str] = Counter()
    for ws in state.workers.values():
        why = exclusions(state, ts, ws)
        if all(reason.get("loose") for reason in why):
            able.append(ws.address)
            continue
        kinds.update(list(dict.fromkeys(reason["kind"] for reason in why)))
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
        "reasons": dict(kinds),
        "absent": absent[:EXAMPLES_MAX],
    }


def exclusions(state: SchedulerState, ts: TaskState, ws: WorkerState) -> list[dict[str, Any]]:
    """Return why ``ws`` cannot run ``ts`` now, one dict for each reason."""
    out: list[dict[str, Any]] = []
    if ws.status != "running":
        out.append({"kind": "status", "status": ws.status})
    elif ws.backpressured:
        out.append({"kind": "backpressured"})
    elif ws.reserved_for is not None:
        out.append({"kind": "reserved", "key": ws.reserved_for.key})
    elif not is_available(ws):
        out.append({"kind": "occupied", "keys": list(islice(ws.extra_runs, EXAMPLES_MAX))})
    if not can_finish(state, ts, ws):
        left, needs = ws.ends_at - state.now, expected_duration(state, ts.group.prefix)
        out.append({"kind": "ends", "seconds_left": max(0.0, left), "needs": needs})
    named = ts.worker_restrictions or {}
    hosts = ts.host_restrictions or {}
    if named or hosts:
        on_host = any(_host(state, h) == ws.host for h in hosts)
        if ws.address not in named and not on_host:
            out.append({"kind": "worker", "loose": ts.loose_restrictions})
    for resource, amount in (ts.resource_restrictions or {}).items():
        supplied = ws.resources.get(resource)
        if supplied is None or supplied < amount:
            out.append(
                {"kind": "resource", "resource": resource, "needs": amount, "has": supplied or 0}
            )
    return out


def _host(state: SchedulerState, name: str) -> str:
    """Return the host that a restriction names, by the host's name or a worker's alias."""
    ws = state.resolve_worker(name)
    return name if ws is None else ws.host


# ------------------------------------------------------------------ queued, processing, erred


def in_queue(state: SchedulerState, ts: TaskState) -> dict[str, Any]:
    """Return the position of ``ts`` in the queue, and how full the workers are."""
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
        "n_with_slots": len(workers_with_free_slots(state)),
        "tasks_on_workers": sum(len(ws.processing) for ws in running),
        "slots": sum(ws.task_slots for ws in running),
        "rootish": is_rootish(state, ts),
        "memory": memory_facts(state, ts),
        "share": share_facts(state, ts),
        "batch": state.queued.claims[ts].address if ts in state.queued.claims else "",
        "may_wait_for_results": any(may_wait_for_results(state, ts, ws) for ws in running),
    }


def memory_facts(state: SchedulerState, ts: TaskState) -> dict[str, Any] | None:
    """Return what the queued task `ts` is expected to take, and the worker that lacks least memory.

    Returns:
        "nbytes" that the task takes, None if unknown; "worker" with "free_nbytes" of the
        "allowed_nbytes" that it may use, which are "share" of its "limit_nbytes", and
        "missing_nbytes" that it has to fetch or to read from its disk. None if it fits on a worker.
    """
    if not state.admission.is_short:
        return None
    allowed = allowed_workers(state, ts)
    workers = state.running if allowed is None else allowed
    best, most, best_missing = None, 0.0, 0
    for ws in islice(workers, admission.WORKERS_MAX):
        if admission.fits(state, ts, ws):
            return None
        missing = admission.missing_nbytes(state, ts, ws)
        left = admission.free_nbytes(state, ws) - float(missing)
        is_better = best is None or left > most
        if is_better and not admission.is_too_small(state, ts, ws):
            best, most, best_missing = ws, left, missing
    if best is None:
        return None
    memory = task_memory(ts.group)
    return {
        "nbytes": memory.task_nbytes if memory.is_known else None,
        "worker": best.address,
        "free_nbytes": max(0, int(admission.free_nbytes(state, best))),
        "allowed_nbytes": int(admission.allowed_nbytes(state, best)),
        "limit_nbytes": best.memory_limit,
        "missing_nbytes": best_missing,
        "share": state.admission.share,
    }


def excess_facts(state: SchedulerState, ts: TaskState) -> dict[str, Any] | None:
    """Return what the worker of the processing task `ts` is expected to use, if it is too much.

    Returns:
        "worker", its "expected_nbytes", and the "allowed_nbytes", "share" and "limit_nbytes" as
        ``memory_facts`` returns them. None if `ts` takes no memory.
    """
    ws = ts.processing_on
    if not state.admission.is_short or ws is None or not task_memory(ts.group).task_nbytes:
        return None
    left, allowed = admission.free_nbytes(state, ws), admission.allowed_nbytes(state, ws)
    if left >= 0:
        return None
    return {
        "worker": ws.address,
        "expected_nbytes": int(allowed - left),
        "allowed_nbytes": int(allowed),
        "limit_nbytes": ws.memory_limit,
        "share": state.admission.share,
    }


def on_worker(state: SchedulerState, ts: TaskState, now: float) -> dict[str, Any]:
    """Return the worker that ``ts`` was sent to, and what its last heartbeat reported.

    Returns:
        "executing" seconds until now, None if it was not executing then; "n_missing" dependencies
        that the worker has to fetch (with "missing_nbytes"); "busy_with": tasks that execute there;
        "resources_short": resource -> (needed, supplied) of those of which too much is in use;
        "silent_seconds" since its last heartbeat; "seceded"; "asked_back": if the worker was asked
        to give the task back and has not answered, "thief" (None: any worker) and "stimulus_id".
    """
    ws = ts.processing_on
    assert ws is not None, ts
    missing = [d for d in ts.dependencies if ws not in d.who_has]
    ahead = sum(1 for other in ws.processing if (other.priority or ()) < (ts.priority or ()))
    steal = state.stealing.live(ts)
    executing = ws.executing.get(ts)
    return {
        "address": ws.address,
        "name": ws.name,
        "status": ws.status,
        "backpressured": ws.backpressured,
        "silent_seconds": max(0.0, now - ws.last_seen),
        "ttl_seconds": state.config.worker_ttl_seconds,
        "nthreads": ws.nthreads,
        "processing": len(ws.processing),
        "ahead": ahead,
        "executing": None if executing is None else executing + now - ws.executing_at,
        "busy_with": [
            {"key": other.key, "seconds": seconds + now - ws.executing_at}
            for other, seconds in islice(ws.executing.items(), EXAMPLES_MAX)
            if other is not ts and other in ws.processing
        ],
        "seceded": ts in ws.long_running,
        "n_missing": len(missing),
        "missing_nbytes": sum(max(0, d.nbytes) for d in missing),
        "holders_of_missing": list(
            dict.fromkeys(holder.address for d in missing for holder in islice(d.who_has, 1))
        )[:EXAMPLES_MAX],
        "resources_short": {
            name: (amount, ws.resources.get(name, 0))
            for name, amount in (ts.resource_restrictions or {}).items()
            if ws.used_resources.get(name, 0) > ws.resources.get(name, 0)
        },
        "asked_back": None
        if steal is None
        else {
            "thief": None if steal.thief is None else steal.thief.address,
            "stimulus_id": steal.stimulus_id,
        },
    }


def failure(ts: TaskState) -> dict[str, Any]:
    """Return the error of ``ts``, the task that caused it, and the workers on which that failed."""
    blame = ts.exception_blame or ts
    return {
        "cause": blame.key,
        "text": blame.exception_text or ts.exception_text or "",
        "erred_on": list(blame.erred_on or ())[:EXAMPLES_MAX],
    }


def cluster(state: SchedulerState, now: float) -> dict[str, Any]:
    """Return the number of workers by status, the silent ones, and the sizes of queues.

    Also return the workers with runs that were given up, how many workers have no other thread, and
    the workers that reported their ends, with the seconds left, the first ones to end.
    """
    workers = state.workers.values()
    silent = [
        {"worker": ws.address, "seconds": now - ws.last_seen}
        for ws in workers
        if now - ws.last_seen > SILENT_SECONDS
    ]
    ends = sorted(state.worker_ends.workers, key=lambda ws: ws.ends_at)
    occupied = [ws for ws in workers if ws.status == "running" and ws.extra_runs]
    return {
        "workers": len(workers),
        "statuses": dict(Counter(ws.status for ws in workers)),
        "threads": state.total_nthreads,
        "silent": silent[:EXAMPLES_MAX],
        "ends": [
            {"worker": ws.address, "seconds": max(0.0, ws.ends_at - now)}
            for ws in ends[:EXAMPLES_MAX]
        ],
        "n_ends": len(ends),
        "backpressured": [ws.address for ws in workers if ws.backpressured][:EXAMPLES_MAX],
        "n_occupied": sum(len(ws.extra_runs) >= ws.nthreads for ws in occupied),
        "given_up": dict(islice(given_up_runs(state).items(), EXAMPLES_MAX)),
        "queued": len(state.queued),
        "no_worker": len(state.unrunnable),
        "graphs": len(state.graphs),
    }
