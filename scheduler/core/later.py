"""What earlier turns have put off, taken up again with each ``Continue``.

An entry of the backlog is a reminder, not an order: other stimuli had their turns between, so ``needs.due`` decides
anew when its time comes. The same holds for the tasks of ``let_go``, which somebody needs no longer.

Must not know: who put it off, and why.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from . import departures, restarting
from .needs import Recommendations, due
from .transitions import run

if TYPE_CHECKING:
    from .turn import Turn


def go_on(turn: Turn) -> None:
    """A turn's worth of all that was put off, but for graphs."""
    state = turn.state
    if state.departures:
        departures.run_departures(turn)
    if state.backlog:
        run_backlog(turn)
    if state.let_go:
        run_let_go(turn)
    if state.leaving:
        departures.run_leaving(turn)
    if state.debris:
        restarting.clear_debris(turn)


def run_backlog(turn: Turn) -> None:
    """Go on with recommendations that were put off."""
    backlog = turn.state.backlog
    recs: Recommendations = {}
    for ts, finish in list(islice(backlog.items(), max(turn.budget, 0))):
        if turn.budget <= 0:
            break
        del backlog[ts]
        what = due(turn.state, ts, finish)
        if what is not None:
            recs[ts] = what
            run(turn, recs)
    if backlog:
        turn.wants_continue()


def run_let_go(turn: Turn) -> None:
    """Go on with tasks that somebody needed, and needs no longer."""
    state = turn.state
    recs: Recommendations = {}
    for ts in state.let_go.take(turn.budget):
        what = due(state, ts, "released")
        if what is not None:
            recs[ts] = what
            run(turn, recs)
    if state.let_go:
        turn.wants_continue()
