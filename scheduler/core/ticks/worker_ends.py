"""Workers that end: learn when, and recall tasks that they cannot finish.

A worker reports the seconds that it has left as the metric ``ends_in`` of its heartbeats, so that
clocks need not agree. Stock workers do with the plugin in ``workers_compat/worker_end.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from paceline.scheduler.core.lifecycle.availability import use_worker
from paceline.scheduler.core.policy.worker_ends import without_time
from paceline.scheduler.core.state.model import WorkerState
from paceline.scheduler.core.stealing.recall import recall_tasks
from paceline.scheduler.core.turn import Turn

#: The metric: seconds until the worker ends, or None.
METRIC = "ends_in"


def learn_end(turn: Turn, ws: WorkerState, metrics: Mapping[str, Any]) -> None:
    """Update the end of `ws` from the `metrics` of its registration or heartbeat."""
    seconds = metrics.get(METRIC)
    if isinstance(seconds, int | float) and isfinite(seconds):
        turn.state.worker_ends.learn(ws, turn.now + max(0.0, seconds))
    elif ws.ends_at:
        turn.state.worker_ends.learn(ws, 0.0)


def end_changed(turn: Turn, ws: WorkerState, before: float) -> None:
    """Schedule tasks on `ws` again, whose end was `before`, or recall those without time."""
    if before and (not ws.ends_at or ws.ends_at > before):
        use_worker(turn, ws)
    else:
        recall_tasks(turn, ws, without_time(turn.state, ws))


def check_ends(turn: Turn) -> None:
    """Recall the tasks that their workers have not begun and cannot finish any more."""
    for ws in turn.state.worker_ends.workers:
        if ws.processing:
            tasks = without_time(turn.state, ws)
            if tasks:
                recall_tasks(turn, ws, tasks)
