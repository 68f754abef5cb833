"""Workers and clients that are gone, while what they leave behind is looked at: a turn's worth of tasks at a time.

A worker's data is gone at once. The tasks that it processed stay with it until their time comes: each is released,
or errs where it was blamed too often. A client's wishes stay until their time comes.

Must not know: what a departure tells others; connections.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from . import mirrors
from .failures import Failure
from .needs import Recommendations, release_wish
from .state import ClientState, SchedulerState, TaskState, WorkerState
from .transitions import run, transition

if TYPE_CHECKING:
    from paceline.protocol.keys import Key

    from .turn import Turn

#: A task that was there at this many times ``allowed_failures + 1`` unexpected deaths errs, blamed or not.
WITNESS_FACTOR = 3


@dataclass(slots=True, eq=False)
class Departure:
    """A worker that is gone.

    Attributes:
        ws: the worker; in no table any more.
        expected: it said goodbye: nobody is blamed.
        tasks: what it processed, in its order.
        done: how many of them have been looked at.
    """

    ws: WorkerState
    expected: bool
    tasks: list[TaskState]
    done: int = 0


# ------------------------------------------------------------------ workers: what they processed


def part_with_worker(turn: Turn, departure: Departure, recs: Recommendations) -> None:
    """The first turn of a departure: blame, then as many of its tasks as this turn takes.

    Args:
        recs: what is to become of those tasks is added here.
    """
    state = turn.state
    if not departure.expected:
        for ts in blamed_tasks(departure.ws):
            ts.suspicious += 1
            ts.group.prefix.suspicious += 1
    _leave(turn, departure, recs)
    if departure.done < len(departure.tasks):
        state.departures.append(departure)
        turn.wants_continue()


def run_departures(turn: Turn) -> None:
    """Go on with the tasks of workers that are gone."""
    departures = turn.state.departures
    while departures and turn.budget > 0:
        departure = departures[0]
        recs: Recommendations = {}
        _leave(turn, departure, recs)
        if departure.done >= len(departure.tasks):
            departures.popleft()
        run(turn, recs)
    if departures:
        turn.wants_continue()


def _leave(turn: Turn, departure: Departure, recs: Recommendations) -> None:
    """The next tasks of a departure leave the worker."""
    first = departure.done
    departure.done = first + max(turn.budget, 1)
    ws = departure.ws
    # what has been taken back meanwhile is elsewhere
    tasks = [ts for ts in departure.tasks[first : departure.done] if ts.processing_on is ws]
    for ts in reversed(tasks):
        recs[ts] = "released"
    if not departure.expected:
        for ts in tasks:
            _bear_witness(turn, ws, ts, recs)


def blamed_tasks(ws: WorkerState) -> list[TaskState]:
    """Tasks that can have killed the worker: those its last heartbeat showed executing, and as many of the
    best placed others as it has threads, which can have started since.

    Stock blames everything that was assigned to the worker.
    """
    executing = [ts for ts in ws.executing if ts in ws.processing]
    others = (ts for ts in ws.processing if ts not in ws.executing)
    return executing + heapq.nsmallest(ws.nthreads, others, key=_priority)


def _priority(ts: TaskState) -> Any:
    return ts.priority or ()


def _bear_witness(turn: Turn, ws: WorkerState, ts: TaskState, recs: Recommendations) -> None:
    """The task was there when a worker died. Once too often, or blamed once too often, and it errs."""
    state = turn.state
    details = ts.ensure_details()
    details.witnessed_deaths += 1
    allowed = state.config.allowed_failures
    witnessed = details.witnessed_deaths
    if ts.suspicious <= allowed and witnessed < WITNESS_FACTOR * (allowed + 1):
        return
    del recs[ts]
    failure = Failure(
        cause=ts,
        worker=ws.address,
        exception=state.errors.killed_worker(ts.key, worker_facts(ws), allowed),
        exception_text="KilledWorker",
    )
    turn.log(
        40,
        f"Task {ts.key!s} marked as failed because {max(ts.suspicious, witnessed)} workers died"
        " while trying to run it",
    )
    transition(turn, ts, "erred", recs, failure)


def worker_facts(ws: WorkerState) -> dict[str, Any]:
    """What an error or an event tells of a worker."""
    return {
        "address": ws.address,
        "name": ws.name,
        "status": ws.status,
        "nthreads": ws.nthreads,
        "memory_limit": ws.memory_limit,
        "local_directory": ws.local_directory,
        "services": ws.services,
        "nanny": ws.nanny,
        "pid": ws.pid,
        "server_id": ws.server_id,
        "extra": ws.extra,
        "last_seen": ws.last_seen,
    }


# ------------------------------------------------------------------ workers: what they held


def lose_data(turn: Turn, ws: WorkerState, recs: Recommendations) -> tuple[list[Key], list[Key]]:
    """Take the worker out of who_has. Returns keys to be made again, and keys of data that is lost.

    What follows for tasks of which nobody has the data is added to ``recs``; where they are very many, it is left
    to later turns.
    """
    actors = [ts for ts in ws.actors if ts in ws.has_what]
    alone = mirrors.remove_all_data(turn.state, ws)
    if actors:
        recs.update(dict.fromkeys(actors, "erred"))
        alone = [ts for ts in alone if ts not in ws.actors]
    recomputed = [ts.key for ts in alone if ts.run_spec is not None]
    lost = [ts.key for ts in alone if ts.run_spec is None]
    if len(alone) > max(turn.budget, 0):
        turn.state.let_go.add(alone)
        turn.wants_continue()
    else:
        for ts in alone:
            recs[ts] = "forgotten" if ts.run_spec is None else "released"
    return recomputed, lost


# ------------------------------------------------------------------ clients


def part_with_client(turn: Turn, cs: ClientState) -> None:
    """The client's wishes end, the last of them first."""
    turn.state.leaving.append(cs)
    run_leaving(turn)


def run_leaving(turn: Turn) -> None:
    """Go on with the wishes of clients that are gone."""
    leaving = turn.state.leaving
    while leaving and turn.budget > 0:
        cs = leaving[0]
        recs: Recommendations = {}
        for ts in list(islice(reversed(cs.wants_what), turn.budget)):
            release_wish(ts, cs, recs)
        if not cs.wants_what:
            leaving.popleft()
        run(turn, recs)
        turn.budget -= 1
    if leaving:
        turn.wants_continue()


def forget_departures(state: SchedulerState) -> None:
    """Everything is forgotten at once: nothing is left to be looked at."""
    state.departures.clear()
    state.leaving.clear()
