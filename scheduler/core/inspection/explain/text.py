"""Sentences that describe the facts about a task; those of held tasks are in ``held_text``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from paceline.scheduler.core.text import (
    NAMED_MAX,
    count,
    format_duration,
    format_key,
    format_nbytes,
    join_names,
)

from .facts import SILENT_SECONDS
from .held_text import Facts, allowed, lasting, needs, no_worker, queued, statuses

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
        size = format_nbytes(worker["missing_nbytes"])
        return (
            f"{text}, which first has to fetch {count(worker['n_missing'], 'dependency')} "
            f"({size}) from {join_names(worker['holders_of_missing'])}."
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
    text = f"{key} is in memory ({format_nbytes(data['nbytes'])}) on {join_names(data['workers'])}."
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
    "no-worker": no_worker,
    "queued": queued,
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
            parts.append(f"to workers with {join_names(needs(facts))}")
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
        f"{facts['worker']} is expected to use {format_nbytes(facts['expected_nbytes'])}, more "
        f"than {allowed(facts)}, and may spill: nothing fits, and no task there is expected to "
        "free memory, or the tasks there take more than was expected."
    ]


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
        if not reason["seconds_left"]:
            return "its end has passed"
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
        out.append(f"Of {count(found['workers'], 'worker')}, {statuses(found)}.")
    return out


# ------------------------------------------------------------------ small parts


def ago(facts: Facts) -> str:
    """Return the time since the last transition as ``" 3.0 s ago"``; empty if unknown."""
    span = facts.get("seconds")
    return "" if span is None else f" {format_duration(span)} ago"
