"""Sentences about why a task that could start is on no worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paceline.scheduler.core.text import (
    count,
    format_duration,
    format_nbytes,
    join_names,
)

Facts = Mapping[str, Any]


def no_worker(key: str, facts: Facts) -> str:
    """Return why a task that no worker can run now is in the state no-worker."""
    workers = facts["workers"]
    if not workers["n"]:
        return f"{key} can run, but no worker is connected{lasting(facts)}.{_advice(facts)}"
    if "whole_worker" in facts:
        return _waits_for_whole_worker(key, facts)
    if workers["n_able"]:
        return f"{key} has no worker yet, but {join_names(workers['able'])} can run it now."
    found = f"{key} can run on none of the {count(workers['n'], 'worker')}{lasting(facts)}"
    reasons = workers["reasons"]
    parts = []
    if reasons.get("resource"):
        lacking = _lacking(workers["excluded"]) or join_names(needs(facts))
        parts.append(f"it needs {lacking}, which {_suppliers(workers['n'] - reasons['resource'])}")
    if reasons.get("worker"):
        wanted = [*facts["restrictions"]["workers"], *facts["restrictions"]["hosts"]]
        absent = ""
        if len(workers["absent"]) == len(wanted):
            absent = f", {'which is not' if len(wanted) == 1 else 'none of which is'} connected"
        parts.append(f"it is restricted to {join_names(wanted)}{absent}")
    if reasons.get("status") or reasons.get("occupied"):
        parts.append(statuses(facts["cluster"]))
    if reasons.get("backpressured"):
        parts.append(f"{count(reasons['backpressured'], 'worker')} not reading from the connection")
    if reasons.get("ends"):
        parts.append(_too_short(workers))
    if reasons.get("reserved"):
        parts.append(f"{count(reasons['reserved'], 'worker')} reserved for one task each")
    return f"{found}: {'; '.join(parts)}." if parts else f"{found}."


def _advice(facts: Facts) -> str:
    """Return the advice to start a worker, unless the task is restricted to certain ones."""
    limits = facts.get("restrictions")
    if limits and not limits["loose"] and (limits["workers"] or limits["hosts"]):
        return ""
    resources = f" with {join_names(needs(facts))}" if limits and limits["resources"] else ""
    return f" Start a worker{resources}."


def _waits_for_whole_worker(key: str, facts: Facts) -> str:
    why = "because its worker ran out of memory"
    text = f"{key} waits{lasting(facts)} for a whole worker, {why}"
    worker = facts["whole_worker"]
    if worker is not None:
        left = count(worker["n_processing"], "task")
        return f"{text}. {worker['address']} is sent nothing else, and has {left} to finish first."
    share = facts["share"]
    if share is not None and share["cap"]:
        return f"{text}; {_held(share)}"
    return f"{text}. No worker is reserved for it yet."


def queued(key: str, facts: Facts) -> str:
    """Return what a queued task waits for."""
    queue = facts["queue"]
    if not facts["cluster"]["workers"]:
        return f"{key} can run, but no worker is connected{lasting(facts)}.{_advice(facts)}"
    if not queue["n_running"]:
        others = statuses(facts["cluster"])
        return f"{key} is queued{lasting(facts)}, but no worker accepts tasks: {others}."
    workers = facts.get("workers")
    text = f"{key} is queued{lasting(facts)}"
    too_short, able = "", []
    if workers is not None and workers["reasons"].get("ends"):
        too_short, able = _too_short(workers), workers["able"]
        if not able:
            return f"{text}: {too_short}.{_advice(facts)}"
    share = queue["share"]
    if queue["memory"] is not None and not (share is not None and share["cap"]):
        return f"{text}: {_waits_for_memory(queue['memory'])}"
    if share is not None and (share["cap"] or share["n_others"] or not able):
        return f"{text}: {_held(share)}"
    if able:
        return f"{text}: {too_short}. It waits for a slot of {join_names(able)}."
    until = "a worker has a free slot"
    if queue["may_wait_for_results"]:
        until = "a worker has a free thread, and no short tasks that use results if it has only one"
    if queue["batch"]:
        until = f"{queue['batch']}, which runs its siblings, or an idle worker has a free slot"
    text += f": it is a root task of a large group; the scheduler holds these back until {until}"
    if queue["n_with_slots"]:
        full = f"{queue['n_with_slots']} of {count(queue['n_running'], 'worker')} with a free slot"
    else:
        full = (
            f"{count(queue['n_running'], 'worker')} with {queue['slots']:g} slots have "
            f"{count(queue['tasks_on_workers'], 'task')}"
        )
    setting = f"(distributed.scheduler.worker-saturation: {queue['saturation']})"
    before = f"{queue['before']} of {queue['length']} queued tasks have a higher priority"
    return f"{text}. {full} {setting}. {before}."


def _too_short(workers: Facts) -> str:
    """Return how many workers end before the task is expected to finish."""
    needs = [
        reason["needs"]
        for each in workers["excluded"]
        for reason in each["reasons"]
        if reason["kind"] == "ends"
    ]
    takes = f"it is expected to take {format_duration(needs[0])}, and " if needs else ""
    n, of = workers["reasons"]["ends"], count(workers["n"], "worker")
    return f"{takes}{n} of {of} {'ends' if n == 1 else 'end'} before that"


def _held(share: Facts) -> str:
    """Return why a share group holds back a task, and what its place in the group is."""
    group = share["group"]
    n_extra = share["n_extra_runs"]
    extra = f" and {count(n_extra, 'given-up or second run')}" if n_extra else ""
    busy = (
        f"{count(share['n_processing'], 'task')}{extra} on workers and {share['n_queued']} queued"
    )
    if share["cap"]:
        n = share["limit"]
        limit = count(n, share["cap"].removesuffix("s"))
        if share["cap"] == "memory":
            limit = f"{format_nbytes(n)} in memory"
        if share["kept_for"]:
            busy += f", and a place kept for {share['kept_for']}, which waits for a whole worker"
        return f"its share group {group} has reached its cap of {limit}, with {busy}."
    places = {"": "a free slot", "restricted": "a slot or resources of a worker that may run it"}
    place = places.get(share["place"], f"a slot of {share['place']}, which has its data")
    if share["higher_class"]:
        why = f"groups of a higher priority class than {group} have work"
    elif share["n_others"]:
        why = f"its share group {group} takes turns with {join_names(share['others'])}"
    elif share["outranked"]:
        why = f"queued tasks of its share group {group} have a higher user priority"
    else:
        return f"it waits for {place}."
    return f"{why}. {group} has weight {share['weight']:g}, {busy}. The task waits for {place}."


def _waits_for_memory(facts: Facts) -> str:
    """Describe the result of ``memory_facts``."""
    nbytes, missing = facts["nbytes"], facts["missing_nbytes"]
    takes = "of unknown size" if nbytes is None else f"expected to take {format_nbytes(nbytes)}"
    if missing:
        takes += f" and has to load {format_nbytes(missing)}"
    setting = f"(paceline.scheduler.memory-admission: {facts['share']:g})"
    text = f"it waits for memory: it is {takes}, and"
    if nbytes is None and missing <= facts["free_nbytes"]:
        return f"{text} workers get one such task per thread {setting}."
    free = format_nbytes(facts["free_nbytes"])
    return f"{text} {facts['worker']}, which lacks least, has {free} free of {allowed(facts)}."


def allowed(facts: Facts) -> str:
    """Return what a worker may use according to the result of ``memory_facts``."""
    nbytes, limit = format_nbytes(facts["allowed_nbytes"]), format_nbytes(facts["limit_nbytes"])
    return (
        f"the {nbytes} that it may use (paceline.scheduler.memory-admission: {facts['share']:g} "
        f"of its limit of {limit})"
    )


def statuses(found: Facts) -> str:
    """Count the workers that accept no tasks, by status, and those without a free thread."""
    others = [f"{n} {status}" for status, n in found["statuses"].items() if status != "running"]
    if found["n_occupied"]:
        workers = count(found["n_occupied"], "worker")
        others.insert(0, f"{workers} busy with given-up or second runs")
    return " and ".join(others) + " (workers pause when their memory is nearly full)" * (
        "paused" in found["statuses"]
    ) or ("no worker is connected" if not found["workers"] else "all are running")


def needs(facts: Facts) -> list[str]:
    """Return the resources that the task needs."""
    return [f"{name} >= {n:g}" for name, n in facts["restrictions"]["resources"].items()]


def _lacking(excluded: Iterable[Facts]) -> str:
    """List the resources that the excluded workers lack."""
    found: dict[str, None] = {}
    for each in excluded:
        for reason in each["reasons"]:
            if reason["kind"] == "resource":
                found[f"{reason['resource']} >= {reason['needs']:g}"] = None
    return join_names(found)


def _suppliers(n: int) -> str:
    if not n:
        return "no worker supplies"
    return f"only {count(n, 'worker')} {'supplies' if n == 1 else 'supply'}"


def lasting(facts: Facts) -> str:
    """Return the time in the present state as ``" (for 3.0 s)"``; empty if unknown."""
    span = facts.get("seconds")
    return "" if span is None else f" (for {format_duration(span)})"
