"""Run the work that earlier turns have deferred, with each ``Continue``.

A deferred recommendation is a reminder, not an order: other stimuli were handled in between, so
``recommendations.due`` decides again. The same holds for deferred releases.
"""

from __future__ import annotations

from itertools import islice

from paceline.scheduler.core.state.containers import take
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.turn import Turn

from . import removal, restart
from .recommendations import due
from .transitions import run


def run_deferred(turn: Turn) -> None:
    """Run a turn's worth of all deferred work except graph commits."""
    removal.continue_worker_removals(turn)
    run_deferred_recommendations(turn)
    run_deferred_releases(turn)
    removal.continue_client_removals(turn)
    restart.run_deferred_teardown(turn)


def run_deferred_recommendations(turn: Turn) -> None:
    """Run deferred recommendations."""
    queue = turn.state.deferred.recommendations
    recs: Recs = {}
    for ts, finish in list(islice(queue.items(), max(turn.budget, 0))):
        if turn.budget <= 0:
            break
        del queue[ts]
        finish_now = due(turn.state, ts, finish)
        if finish_now is not None:
            recs[ts] = finish_now
            run(turn, recs)
    if queue:
        turn.wants_continue()


def run_deferred_releases(turn: Turn) -> None:
    """Check tasks that a dependent or client no longer needs."""
    state = turn.state
    recs: Recs = {}
    for ts in take(state.deferred.releases, turn.budget):
        finish_now = due(state, ts, "released")
        if finish_now is not None:
            recs[ts] = finish_now
            run(turn, recs)
    if state.deferred.releases:
        turn.wants_continue()
