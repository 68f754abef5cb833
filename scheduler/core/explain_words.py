"""What ``explain.py`` found out, in plain English.

Must not know: the state; it reads the facts alone, so that any client can word them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Facts = Mapping[str, Any]

#: Longer texts of errors are cut.
ERROR_TEXT_MAX: Final = 500
#: So many things are named one by one in a sentence.
NAMED_MAX: Final = 3
#: What executes for longer is worth a look at its call stack, seconds.
LONG_SECONDS: Final = 10.0
#: A worker that was not heard of for so long is mentioned, seconds.
SILENT_SECONDS: Final = 15.0


def summary(facts: Facts) -> str:
    """The cause in one sentence or two."""
    if facts["state"] is None:
        return _unknown(facts)
    return SUMMARIES[facts["state"]](facts)


def say(facts: Facts) -> list[str]:
    """All there is to say, the most important first."""
    out = [summary(facts)]
    if facts["state"] is None:
        return out
    out += _where(facts)
    out += _wanted(facts)
    if facts["state"] == "waiting":
        out += _below(facts["waits_for"])
    if facts["state"] == "processing" and (facts["worker"]["executing"] or 0) > LONG_SECONDS:
        out.append("Client.call_stack(keys=[...]) shows what its thread does now.")
    if facts.get("suspicious"):
        out.append(f"Workers died {facts['suspicious']} times while it ran there.")
    out += _cluster(facts["cluster"], facts)
    return out


# ------------------------------------------------------------------ one sentence for each state


def _unknown(facts: Facts) -> str:
    key = show(facts["key"])
    graphs = facts["graphs"]
    if facts["namesakes"]:
        return f"{key} is no task but the name of several, such as {named(map(repr, facts['namesakes']))}: ask for one."
    if graphs["client"] is not None:
        return f"{key} is in a graph of {graphs['client']} that is being taken in."
    if facts.get("compiling"):
        return (
            f"The scheduler does not know {key} yet: it may be in what is being read at this moment, "
            f"{count(facts['compiling'], 'graph')} of clients."
        )
    if facts["story"]:
        return (
            f"The scheduler has forgotten {key}: no client holds a future of it any more "
            "(or what it depends on was lost). Its story is below."
        )
    return (
        f"The scheduler does not know {key}: it was never submitted, or was forgotten longer ago than the "
        "log of transitions goes back, or is written otherwise (mind tuples)."
    )


def _waiting(facts: Facts) -> str:
    waits = facts["waits_for"]
    key = show(facts["key"])
    if not waits["n"]:
        if facts.get("reminder"):
            return (
                f"{key} has all it needs; the scheduler is in the middle of work that comes first."
            )
        return f"{key} has all it needs and is about to be sent to a worker."
    text = f"{key} waits{lasting(facts)} for {waits['n']} of its {count(waits['of'], 'dependency')}"
    cause = waits["cause"]
    if cause is None:
        return text + "."
    return f"{text}. At the bottom: {cause['summary']}"


def _no_worker(facts: Facts) -> str:
    key = show(facts["key"])
    workers = facts["workers"]
    if not workers["n"]:
        return f"{key} can run, but there is no worker{lasting(facts)}: start one."
    if workers["n_able"]:
        return f"{key} found no worker, but {named(workers['able'])} could run it now."
    found = f"{key} can run on none of the {count(workers['n'], 'worker')}{lasting(facts)}"
    reasons = workers["reasons"]
    parts = []
    if reasons.get("resource"):
        lacking = _lacking(workers["excluded"]) or named(_needs(facts))
        parts.append(
            f"it needs {lacking}, which {_so_many(reasons['resource'], workers['n'])} supply"
        )
    if reasons.get("worker"):
        wanted = [*facts["restrictions"]["workers"], *facts["restrictions"]["hosts"]]
        gone = ", and that is not there" if len(workers["absent"]) == len(wanted) else ""
        parts.append(f"it may run on {named(wanted)} alone{gone}")
    if reasons.get("status"):
        parts.append(f"{_statuses(facts['cluster'])}")
    if reasons.get("clogged"):
        parts.append(f"{count(reasons['clogged'], 'worker')} read nothing from the connection")
    return f"{found}: {'; '.join(parts)}." if parts else f"{found}."


def _queued(facts: Facts) -> str:
    queue = facts["queue"]
    key = show(facts["key"])
    if not facts["cluster"]["workers"]:
        return f"{key} can run, but there is no worker{lasting(facts)}: start one."
    if not queue["n_running"]:
        return f"{key} is queued{lasting(facts)}, and no worker takes tasks: {_statuses(facts['cluster'])}."
    text = (
        f"{key} is queued{lasting(facts)}: many tasks of its kind begin anew, and these are held back on the "
        "scheduler until a worker has a slot"
    )
    if queue["n_with_slots"]:
        full = f"{count(queue['n_with_slots'], 'worker')} of {queue['n_running']} have one now"
    else:
        full = (
            f"{count(queue['n_running'], 'worker')} with {number(queue['slots'])} slots have "
            f"{count(queue['tasks_on_workers'], 'task')}"
        )
    knob = f"(distributed.scheduler.worker-saturation: {queue['saturation']})"
    return (
        f"{text}. {full} {knob}. {queue['before']} of {queue['length']} queued tasks go before it."
    )


def _processing(facts: Facts) -> str:
    worker = facts["worker"]
    key = show(facts["key"])
    where = f"{worker['address']}"
    silent = worker["silent_seconds"]
    text = f"{key} was sent to {where}{ago(facts)}"
    if silent > SILENT_SECONDS:
        return (
            f"{text}; that worker has not been heard of for {seconds(silent)}{_given_up(worker)}."
        )
    if worker["seceded"]:
        return f"{text} and runs there, outside of its thread pool (seceded)."
    if worker["executing"] is not None:
        return f"{text} and has been executing for {seconds(worker['executing'])}."
    asked = worker["asked_back"]
    if asked is not None:
        goal = "be placed anew" if asked["thief"] is None else f"go to {asked['thief']}"
        return f"{text}, which was asked to give it back, so that it can {goal}, and has not answered yet."
    if worker["status"] != "running":
        return f"{text}, which is {worker['status']} and starts nothing."
    if worker["clogged"]:
        return f"{text}, which reads nothing from its connection (a task may hold its GIL)."
    if worker["resources_short"]:
        short = ", ".join(
            f"{n} ({number(have)} in all)" for n, (_, have) in worker["resources_short"].items()
        )
        return f"{text}; tasks there share {short}, and it waits for its turn."
    if worker["n_missing"]:
        return (
            f"{text}; it has to fetch {count(worker['n_missing'], 'dependency')} "
            f"({worker['missing_nbytes']} bytes) from {named(worker['holders_of_missing'])} first."
        )
    if len(worker["busy_with"]) >= worker["nthreads"]:
        busy = named(show(each["key"]) for each in worker["busy_with"])
        return f"{text}, whose {count(worker['nthreads'], 'thread')} execute {busy}; it waits for a free one."
    return f"{text}; the last heartbeat did not show it executing."


def _given_up(worker: Facts) -> str:
    """What becomes of a worker that stays silent."""
    ttl = worker["ttl_seconds"]
    if not ttl:
        return " (it stopped, its machine is gone, or a task holds its GIL; nobody gives it up: worker-ttl is off)"
    return f" (it stopped, its machine is gone, or a task holds its GIL); after {seconds(ttl)} it is given up"


def _memory(facts: Facts) -> str:
    held = facts["held_by"]
    return f"{show(facts['key'])} is done: its data ({held['nbytes']} bytes) is on {named(held['workers'])}."


def _erred(facts: Facts) -> str:
    error = facts["error"]
    key = show(facts["key"])
    text = error["text"][:ERROR_TEXT_MAX]
    if error["cause"] != facts["key"]:
        return f"{key} cannot run: {show(error['cause'])}, which it depends on, failed with {text}"
    where = f" on {named(error['erred_on'])}" if error["erred_on"] else ""
    return f"{key} failed{where}{ago(facts)} with {text}"


def _released(facts: Facts) -> str:
    key = show(facts["key"])
    wanted = facts["wanted_by"]
    if facts.get("lost_dependencies"):
        return f"{key} can never run: something it depends on was forgotten."
    if not facts.get("has_run_spec", True):
        return (
            f"{key} is asked for by {named(wanted['clients']) or 'somebody'}, but nobody has sent a graph that makes "
            "it, and data that was scattered under this key is lost."
        )
    if wanted["n_clients"] or wanted["n_dependents"]:
        return f"{key} is wanted and about to be scheduled."
    return (
        f"{key} is not to run: no client holds a future of it, and no task that is to run needs it."
    )


def _forgotten(facts: Facts) -> str:
    return f"{show(facts['key'])} is forgotten."


SUMMARIES: Final[Mapping[str, Callable[[Facts], str]]] = {
    "waiting": _waiting,
    "no-worker": _no_worker,
    "queued": _queued,
    "processing": _processing,
    "memory": _memory,
    "erred": _erred,
    "released": _released,
    "forgotten": _forgotten,
}


# ------------------------------------------------------------------ further sentences


def _where(facts: Facts) -> list[str]:
    """Its restrictions, and what each worker lacks."""
    limits = facts.get("restrictions")
    out = []
    if limits is not None:
        parts = []
        if limits["workers"] or limits["hosts"]:
            parts.append(f"to {named([*limits['workers'], *limits['hosts']])}")
        if limits["resources"]:
            parts.append(f"to workers with {named(_needs(facts))}")
        wish = " (a wish: others may run it too)" if limits["loose"] else ""
        out.append(f"It is restricted {' and '.join(parts)}{wish}.")
    workers = facts.get("workers")
    if workers is None:
        return out
    if workers["absent"]:
        out.append(f"Not there: {named(workers['absent'])}.")
    for each in workers["excluded"]:
        out.append(f"{each['worker']}: {'; '.join(map(_reason, each['reasons']))}.")
    more = workers["n_excluded"] - len(workers["excluded"])
    if more:
        out.append(f"... and {count(more, 'further worker')}.")
    return out


def _reason(reason: Facts) -> str:
    kind = reason["kind"]
    if kind == "status":
        return f"is {reason['status']}"
    if kind == "clogged":
        return "reads nothing from its connection"
    if kind == "worker":
        return "is none of those that it is restricted to"
    return f"has {number(reason['has'])} of {reason['resource']}, {number(reason['needs'])} needed"


def _wanted(facts: Facts) -> list[str]:
    wanted = facts["wanted_by"]
    parts = []
    if wanted["n_clients"]:
        parts.append(named(wanted["clients"], wanted["n_clients"]))
    if wanted["n_dependents"]:
        dependents = [show(key) for key in wanted["dependents"]]
        parts.append(
            f"{count(wanted['n_dependents'], 'task')} that depend on it ({named(dependents)})"
        )
    return [f"Wanted by {' and by '.join(parts)}."] if parts else ["Nobody wants it."]


def _below(waits: Facts) -> list[str]:
    out = []
    examples = [f"{show(each['key'])} ({each['state']})" for each in waits["examples"]]
    if examples:
        out.append(f"It waits for {named(examples, waits['n'])}.")
    if waits["bottom"]:
        counts = ", ".join(f"{n} {state}" for state, n in waits["bottom"].items())
        more = "" if waits["whole"] else " (and more that were not looked at)"
        out.append(f"What these wait for in the end: {counts}{more}.")
    return out


def _cluster(found: Facts, facts: Facts) -> list[str]:
    out: list[str] = []
    if facts["state"] in ("memory", "erred"):
        return out
    for each in found["silent"]:
        out.append(f"{each['worker']} has not been heard of for {seconds(each['seconds'])}.")
    others = {status: n for status, n in found["statuses"].items() if status != "running"}
    if others:
        out.append(f"Of {count(found['workers'], 'worker')}, {_statuses(found)}.")
    return out


def _statuses(found: Facts) -> str:
    """Workers that take nothing, by status."""
    others = [f"{n} {status}" for status, n in found["statuses"].items() if status != "running"]
    return " and ".join(others) + " (a paused worker has too little memory)" * (
        "paused" in found["statuses"]
    ) or ("there is none" if not found["workers"] else "all are running")


def _needs(facts: Facts) -> list[str]:
    return [f"{name} >= {number(n)}" for name, n in facts["restrictions"]["resources"].items()]


def _lacking(excluded: Iterable[Facts]) -> str:
    """Resources that the excluded workers lack."""
    found: dict[str, None] = {}
    for each in excluded:
        for reason in each["reasons"]:
            if reason["kind"] == "resource":
                found[f"{reason['resource']} >= {number(reason['needs'])}"] = None
    return named(found)


def _so_many(n_excluded: int, n: int) -> str:
    left = n - n_excluded
    return "none" if not left else f"only {left}"


# ------------------------------------------------------------------ small parts


def show(key: Any) -> str:
    """A key as people write it."""
    return key if isinstance(key, str) else repr(key)


def named(names: Iterable[Any], n: int | None = None) -> str:
    """A few names, and how many more."""
    listed = [str(name) for name in names]
    total = len(listed) if n is None else max(n, len(listed))
    if total > NAMED_MAX + 1:
        return f"{', '.join(listed[:NAMED_MAX])} and {total - NAMED_MAX} more"
    return ", ".join(listed)


def count(n: float, noun: str) -> str:
    """A number of things."""
    if n == 1:
        return f"{n} {noun}"
    return f"{n} {noun[:-1]}ies" if noun.endswith("y") else f"{n} {noun}s"


def number(value: float) -> str:
    """Without a needless ".0"."""
    return f"{value:g}"


def seconds(value: float) -> str:
    """A span of time as people say it."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.0f} minutes"
    return f"{value / 3600:.1f} hours"


def lasting(facts: Facts) -> str:
    """``" (for 3.0 s)"``, where known."""
    span = facts.get("seconds")
    return "" if span is None else f" (for {seconds(span)})"


def ago(facts: Facts) -> str:
    """``" 3.0 s ago"``, where known."""
    span = facts.get("seconds")
    return "" if span is None else f" {seconds(span)} ago"
