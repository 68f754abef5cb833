"""Sentences that describe the facts about a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from paceline.scheduler.core.text import (
    NAMED_MAX,
    count,
    format_duration,
    format_key,
    format_megabytes,
    format_nbytes,
    join_names,
)

from .facts import SILENT_SECONDS

Facts = Mapping[str, Any]

#: Characters of an error text; longer ones are cut.
ERROR_TEXT_MAX: Final = 500
#: Execution time in seconds from which the text recommends the call stack.
LONG_SECONDS: Final = 10.0


def summary(facts: Facts) -> str:
    """Return the cause in one or two sentences."""
    return SUMMARIES[facts["state"]](format_key(facts["key"]), facts)


def describe(facts: Facts) -> list[str]:
    """Return all sentences about the task, the most important first."""
    out = [summary(facts)]
    if facts["state"] is None:
        return out
    out += _restrictions(facts)
    out += _policies(facts.get("policies"))
    out += _wanted(facts)
    if facts["state"] == "waiting":
        out += _root_causes(facts["waits_for"])
    out += _exceeds_memory(facts.get("excess"))
    if facts["state"] == "processing" and (facts["worker"]["executing"] or 0) > LONG_SECONDS:
        out.append("Client.call_stack(keys=[...]) shows the code that it is executing.")
    if facts.get("suspicious"):
        out.append(f"Workers died {count(facts['suspicious'], 'time')} while they were running it.")
    out += _cluster(facts["cluster"], facts)
    return out


# ------------------------------------------------------------------ one sentence for each state


def _unknown(key: str, facts: Facts) -> str:
    graphs = facts["graphs"]
    if facts["namesakes"]:
        return (
            f"{key} is the name of a task group or prefix, not a task. Pass one of its keys, "
            f"for example {', '.join(map(repr, facts['namesakes'][:NAMED_MAX]))}."
        )
    if graphs["client"] is not None:
        return f"{key} is in a graph of {graphs['client']} that is being processed."
    if facts.get("compiling"):
        return (
            f"The scheduler does not know {key} yet. It may be in a graph that is being compiled "
            f"({count(facts['compiling'], 'graph')})."
        )
    if facts["story"]:
        return (
            f"The scheduler has forgotten {key}: no client holds a future for it any more, or a "
            "dependency was lost. Its story is below."
        )
    return (
        f"The scheduler does not know {key}. It was never submitted, was forgotten before the "
        "transition log begins, or is spelled differently (write a tuple as in Python)."
    )


def _waiting(key: str, facts: Facts) -> str:
    waits = facts["waits_for"]
    if not waits["n"]:
        policies = facts.get("policies")
        if policies is not None and policies["failed_on"] is not None:
            return _waits_for_retry(key, policies)
        if facts.get("reminder"):
            return f"{key} has all its dependencies; the scheduler finishes other work first."
        return f"{key} has all its dependencies and is about to be sent to a worker."
    text = f"{key} waits{lasting(facts)} for {waits['n']} of its {count(waits['of'], 'dependency')}"
    cause = waits["cause"]
    if cause is None:
        return text + "."
    return f"{text}. Root cause: {cause['summary']}"


def _waits_for_retry(key: str, policies: Facts) -> str:
    text = f"{key} failed on {policies['failed_on']}"
    if policies["retried_in"] is None:
        return f"{text}; its exception is being compared with {join_names(policies['retry_on'])}."
    return f"{text} and is retried in {format_duration(max(0.0, policies['retried_in']))}."


def _no_worker(key: str, facts: Facts) -> str:
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
        lacking = _lacking(workers["excluded"]) or join_names(_needs(facts))
        parts.append(f"it needs {lacking}, which {_suppliers(workers['n'] - reasons['resource'])}")
    if reasons.get("worker"):
        wanted = [*facts["restrictions"]["workers"], *facts["restrictions"]["hosts"]]
        absent = ""
        if len(workers["absent"]) == len(wanted):
            absent = f", {'which is not' if len(wanted) == 1 else 'none of which is'} connected"
        parts.append(f"it is restricted to {join_names(wanted)}{absent}")
    if reasons.get("status") or reasons.get("occupied"):
        parts.append(_statuses(facts["cluster"]))
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
    needs = f" with {join_names(_needs(facts))}" if limits and limits["resources"] else ""
    return f" Start a worker{needs}."


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


def _queued(key: str, facts: Facts) -> str:
    queue = facts["queue"]
    if not facts["cluster"]["workers"]:
        return f"{key} can run, but no worker is connected{lasting(facts)}.{_advice(facts)}"
    if not queue["n_running"]:
        others = _statuses(facts["cluster"])
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
        n = int(share["limit"])
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


def _processing(key: str, facts: Facts) -> str:
    worker = facts["worker"]
    text = f"{key} was sent to {worker['address']}{ago(facts)}"
    if worker["silent_seconds"] > SILENT_SECONDS:
        silent = f"has not sent a heartbeat for {format_duration(worker['silent_seconds'])}"
        return f"{text}, but that worker {silent}. {_removal(worker)}"
    if worker["seceded"]:
        return f"{text} and runs there outside of the thread pool (it seceded)."
    if worker["executing"] is not None:
        return f"{text} and has been executing for {format_duration(worker['executing'])}."
    asked = worker["asked_back"]
    if asked is not None:
        goal = "elsewhere" if asked["thief"] is None else f"to {asked['thief']}"
        asked_back = f"was asked to give it back so that it can move {goal}"
        return f"{text}, which {asked_back} and has not answered yet."
    if worker["status"] != "running":
        return f"{text}, which is {worker['status']} and does not start tasks."
    if worker["backpressured"]:
        return f"{text}, which does not read from its connection (a task may hold its GIL)."
    if worker["resources_short"]:
        short = ", ".join(
            f"{n} ({have:g} in total)" for n, (_, have) in worker["resources_short"].items()
        )
        return f"{text} and waits for resources that other tasks use there: {short}."
    if worker["n_missing"]:
        return (
            f"{text}, which first has to fetch {count(worker['n_missing'], 'dependency')} "
            f"({worker['missing_nbytes']} bytes) from {join_names(worker['holders_of_missing'])}."
        )
    if len(worker["busy_with"]) >= worker["nthreads"]:
        busy = join_names(format_key(each["key"]) for each in worker["busy_with"])
        threads = count(worker["nthreads"], "thread")
        return f"{text} and waits for a free thread ({threads} busy with {busy})."
    return f"{text}; the last heartbeat did not report it as executing."


def _removal(worker: Facts) -> str:
    """Return why a worker may be silent, and when the scheduler removes it."""
    ttl = worker["ttl_seconds"]
    causes = "It was stopped, its machine is gone, or a task holds its GIL."
    if not ttl:
        return f"{causes} It is not removed because distributed.scheduler.worker-ttl is off."
    limit = f"{format_duration(ttl)} (distributed.scheduler.worker-ttl)"
    return f"{causes} It is removed after {limit}."


def _memory(key: str, facts: Facts) -> str:
    data = facts["held_by"]
    text = f"{key} is in memory ({data['nbytes']} bytes) on {join_names(data['workers'])}."
    if data["has_second_copy"]:
        text += " Two copies are kept, because it took long to compute and workers may be lost."
    return text


def _erred(key: str, facts: Facts) -> str:
    error = facts["error"]
    text = error["text"][:ERROR_TEXT_MAX]
    if error["cause"] != facts["key"]:
        cause = format_key(error["cause"])
        return f"{key} cannot run because {cause}, which it depends on, failed with {text}"
    where = f" on {join_names(error['erred_on'])}" if error["erred_on"] else ""
    return f"{key} failed{where}{ago(facts)} with {text}"


def _released(key: str, facts: Facts) -> str:
    wanted = facts["wanted_by"]
    if facts.get("lost_dependencies"):
        return f"{key} can never run: one of its dependencies was forgotten."
    if not facts.get("has_run_spec", True):
        return (
            f"{key} is wanted by {join_names(wanted['clients']) or 'a client'}, but no graph with "
            "this key was submitted, or the data scattered under this key is lost."
        )
    if wanted["n_clients"] or wanted["n_dependents"]:
        return f"{key} is wanted and about to be scheduled."
    text = "no client holds a future for it and no scheduled task needs it"
    if facts.get("has_finished"):
        return f"{key} has finished, and its result was released{ago(facts)}: {text}."
    return f"{key} does not run: {text}."


#: State -> the function that describes its cause, given the key as text; None: the key is unknown.
SUMMARIES: Final[Mapping[str | None, Callable[[str, Facts], str]]] = {
    None: _unknown,
    "waiting": _waiting,
    "no-worker": _no_worker,
    "queued": _queued,
    "processing": _processing,
    "memory": _memory,
    "erred": _erred,
    "released": _released,
}


# ------------------------------------------------------------------ further sentences


def _restrictions(facts: Facts) -> list[str]:
    """Describe the restrictions of the task and why each worker is excluded."""
    limits = facts.get("restrictions")
    out = []
    if limits is not None:
        parts = []
        if limits["workers"] or limits["hosts"]:
            parts.append(f"to {join_names([*limits['workers'], *limits['hosts']])}")
        if limits["resources"]:
            parts.append(f"to workers with {join_names(_needs(facts))}")
        wish = " if possible (other workers may run it too)" if limits["loose"] else ""
        out.append(f"It is restricted {' and '.join(parts)}{wish}.")
    workers = facts.get("workers")
    if workers is None:
        return out
    if workers["absent"]:
        out.append(f"Not connected: {join_names(workers['absent'])}.")
    for each in workers["excluded"]:
        out.append(f"{each['worker']}: {'; '.join(map(_reason, each['reasons']))}.")
    more = workers["n_excluded"] - len(workers["excluded"])
    if more:
        out.append(f"... and {count(more, 'further worker')}.")
    return out


def _policies(policies: Facts | None) -> list[str]:
    """Describe what the policies of the task do next."""
    out: list[str] = []
    if policies is None:
        return out
    if policies["timeout_seconds"]:
        timeout = format_duration(policies["timeout_seconds"])
        text = f"It fails when it has been executing for {timeout}"
        left = policies["times_out_in"]
        out.append(f"{text}." if left is None else f"{text}, in {format_duration(max(0.0, left))}.")
    if policies["deadline"]:
        left = format_duration(max(0.0, policies["deadline_in"]))
        out.append(f"It fails at its deadline, {policies['deadline']}, in {left}.")
    if policies["second_run"]:
        out.append(f"It takes long, so it has a second run on {policies['second_run']}.")
    if policies["avoided"]:
        avoided = join_names(policies["avoided"])
        out.append(f"It failed on {avoided} and runs elsewhere if possible.")
    return out


def _exceeds_memory(facts: Facts | None) -> list[str]:
    """Describe the result of ``excess_facts``."""
    if facts is None:
        return []
    return [
        f"{facts['worker']} is expected to use {format_megabytes(facts['expected_nbytes'])} of "
        f"{format_megabytes(facts['limit_nbytes'])} (paceline.scheduler.memory-admission: "
        f"{facts['share']:g}) and may spill: nothing fits, and no task is expected to free "
        "memory, or the tasks there take more than was expected."
    ]


def _waits_for_memory(facts: Facts) -> str:
    """Describe the result of ``memory_facts``."""
    nbytes, missing = facts["nbytes"], facts["missing_nbytes"]
    takes = "of unknown size" if nbytes is None else f"expected to take {format_megabytes(nbytes)}"
    if missing:
        takes += f" and has to fetch {format_megabytes(missing)}"
    setting = f"(paceline.scheduler.memory-admission: {facts['share']:g})"
    text = f"it waits for memory: it is {takes}, and"
    if nbytes is None and missing <= facts["free_nbytes"]:
        return f"{text} workers get one such task per thread {setting}."
    free, limit = format_megabytes(facts["free_nbytes"]), format_megabytes(facts["limit_nbytes"])
    return f"{text} {facts['worker']}, which lacks least, has {free} free of {limit} {setting}."


def _reason(reason: Facts) -> str:
    kind = reason["kind"]
    if kind == "status":
        return f"is {reason['status']}"
    if kind == "backpressured":
        return "does not read from its connection"
    if kind == "occupied":
        keys = join_names(map(format_key, reason["keys"]))
        return f"executes only given-up and second runs: {keys}"
    if kind == "reserved":
        return f"is reserved for {format_key(reason['key'])}, whose worker ran out of memory"
    if kind == "ends":
        left, needs = format_duration(reason["seconds_left"]), format_duration(reason["needs"])
        return f"ends in {left}; the task is expected to take {needs}"
    if kind == "worker":
        return "is not among the workers that the task is restricted to"
    return f"has {reason['has']:g} of {reason['resource']}, {reason['needs']:g} needed"


def _wanted(facts: Facts) -> list[str]:
    wanted = facts["wanted_by"]
    parts = []
    if wanted["n_clients"]:
        parts.append(join_names(wanted["clients"], wanted["n_clients"]))
    if wanted["n_dependents"]:
        dependents = [format_key(key) for key in wanted["dependents"]]
        n = wanted["n_dependents"]
        depend = "depends" if n == 1 else "depend"
        parts.append(f"{count(n, 'task')} that {depend} on it ({join_names(dependents, n)})")
    return [f"Wanted by {' and by '.join(parts)}."] if parts else ["No client or task wants it."]


def _root_causes(waits: Facts) -> list[str]:
    out = []
    examples = [f"{format_key(each['key'])} ({each['state']})" for each in waits["examples"]]
    if examples:
        out.append(f"It waits for {join_names(examples, waits['n'])}.")
    if waits["bottom"]:
        counts = ", ".join(f"{n} {state}" for state, n in waits["bottom"].items())
        more = "" if waits["whole"] else " (the search stopped before it reached all of them)"
        out.append(f"Tasks at the root of these: {counts}{more}.")
    return out


def _cluster(found: Facts, facts: Facts) -> list[str]:
    out: list[str] = []
    if facts["state"] in ("memory", "erred"):
        return out
    for each in found["silent"]:
        silence = format_duration(each["seconds"])
        out.append(f"{each['worker']} has not sent a heartbeat for {silence}.")
    if found["n_occupied"] or found["statuses"].keys() - {"running"}:
        out.append(f"Of {count(found['workers'], 'worker')}, {_statuses(found)}.")
    return out


def _statuses(found: Facts) -> str:
    """Count the workers that accept no tasks, by status, and those without a free thread."""
    others = [f"{n} {status}" for status, n in found["statuses"].items() if status != "running"]
    if found["n_occupied"]:
        workers = count(found["n_occupied"], "worker")
        others.insert(0, f"{workers} busy with given-up or second runs")
    return " and ".join(others) + " (workers pause when their memory is nearly full)" * (
        "paused" in found["statuses"]
    ) or ("no worker is connected" if not found["workers"] else "all are running")


def _needs(facts: Facts) -> list[str]:
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


# ------------------------------------------------------------------ small parts


def lasting(facts: Facts) -> str:
    """Return the time in the present state as ``" (for 3.0 s)"``; empty if unknown."""
    span = facts.get("seconds")
    return "" if span is None else f" (for {format_duration(span)})"


def ago(facts: Facts) -> str:
    """Return the time since the last transition as ``" 3.0 s ago"``; empty if unknown."""
    span = facts.get("seconds")
    return "" if span is None else f" {format_duration(span)} ago"
