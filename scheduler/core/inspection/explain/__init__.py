"""Explain why a task is not running: ``facts`` finds the cause, ``text`` describes it.

Used by the RPC ``explain`` and the command ``paceline explain``. Stock has no counterpart.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from paceline.protocol.keys import Key
from paceline.scheduler.core.inspection.queries import prefix_states, story
from paceline.scheduler.core.state.containers import add_up
from paceline.scheduler.core.state.scheduler_state import SchedulerState

from .facts import (
    EXAMPLES_MAX,
    cluster,
    namesakes,
    pending_graphs,
    state_duration,
    state_facts,
    wanted_by,
)
from .text import describe, summary

#: Logged transitions in a result; the last ones are kept.
STORY_MAX: Final = 50


def explain(state: SchedulerState, key: Key, now: float, compiling: int = 0) -> dict[str, Any]:
    """Explain why the task ``key`` is in its state.

    The key may be in one of the graphs of which ``compiling`` are being compiled.

    Returns:
        "key", "state" (None if the key is unknown), "since" and "seconds" (see ``state_duration``),
        "wanted_by", "priority", "story", and "summary" and "words": one sentence and all of them.
        By state: "waits_for" (waiting), "workers" and "restrictions" (no-worker, tasks with
        restrictions, and queued ones for which a worker ends too soon), "queue" (queued), "worker"
        (processing), "error" (erred), "held_by" (memory).
    """
    ts = state.tasks.get(key)
    out: dict[str, Any] = {"key": key, "state": None if ts is None else ts.state}
    if ts is None:
        out["graphs"] = pending_graphs(state, key)
        out["compiling"] = compiling
        out["namesakes"] = namesakes(state, key)
    else:
        out.update(state_duration(state, ts, now))
        out["priority"] = ts.priority
        out["wanted_by"] = wanted_by(ts)
        out["retries_left"] = ts.retries
        out["suspicious"] = ts.suspicious
        out.update(state_facts(state, ts, now))
    out["cluster"] = cluster(state, now)
    out["story"] = story(state, key)[-STORY_MAX:]
    cause = out["waits_for"]["cause"] if "waits_for" in out else None
    if cause is not None:
        cause["summary"] = summary(cause)
    out["summary"] = summary(out)
    out["words"] = describe(out)
    return out


def explain_all(state: SchedulerState, now: float) -> dict[str, Any]:
    """Explain what blocks the cluster as a whole.

    Returns:
        "states" (state -> number of tasks), "cluster", "suspects": summaries of the tasks that most
        likely block others, the most serious first.
    """
    states: dict[str, int] = {}
    for counts in prefix_states(state).values():
        add_up(states, counts)
    # the tasks that were sent to workers longest ago, one per worker
    processing = [next(iter(ws.processing)) for ws in state.workers.values() if ws.processing]
    processing.sort(key=lambda ts: ts.run_id)
    suspects = [
        *islice(state.unrunnable, EXAMPLES_MAX),
        *processing[: EXAMPLES_MAX // 2],
        *islice(state.queued, 1),
    ]
    found = [
        {"key": ts.key, "state": ts.state, "summary": explain(state, ts.key, now)["summary"]}
        for ts in suspects
    ]
    return {"states": states, "cluster": cluster(state, now), "suspects": found}
