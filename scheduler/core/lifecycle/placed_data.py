"""Data that was not computed: scatter and update_data put it on workers."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.scheduler.core.policy import second_copies
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.turn import Turn

from . import accounting, steps
from .failures import clear_failure
from .recommendations import (
    end_fire_and_forget,
    recommend_ready_dependents,
    release_unneeded_dependencies,
)


def become_data(
    turn: Turn, ts: TaskState, nbytes: int, workers: Iterable[WorkerState], recs: Recs
) -> None:
    """Move `ts` to memory without running it: its data was put on workers.

    This follows scatter and update_data. If the task is running, waiting or erred, the data
    replaces its result. `nbytes` is -1 if the size is unknown.
    """
    state = turn.state
    start = ts.state
    holders = dict.fromkeys(workers)
    if start == "processing":
        ws = steps.leave_worker(turn, ts)
        if ws is not None and ws not in holders:
            turn.free_keys(ws.address, ts.key)
    elif start == "erred":
        clear_failure(turn, ts, recs, holders)
    state.queued.discard(ts)
    state.unrunnable.pop(ts, None)
    if nbytes >= 0:
        accounting.set_nbytes(state, ts, nbytes)
    for ws in holders:
        accounting.add_replica(state, ts, ws)
    if start != "memory":
        steps.enter(ts, "memory")
        if state.second_copies.is_active:
            second_copies.note_result(state, ts, turn.now)
        steps.count_move(ts.group, start, "memory")
        release_unneeded_dependencies(turn, ts, recs)
        state.transition_counter += 1
        state.transition_log.append((ts.key, start, "memory", {}, turn.stimulus_id, turn.now))
    recommend_ready_dependents(ts, recs)
    end_fire_and_forget(state, ts, recs)
