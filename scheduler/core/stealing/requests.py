"""Requests to workers to give tasks back.

A worker receives ``steal-request`` and gives the task back unless it already runs
(``steal-response``, see ``handlers/stealing.py``). If the task finishes, fails, is released or runs
again in between, or one of the workers leaves or pauses, the request is void or the task is
rescheduled.
"""

from __future__ import annotations

from paceline.protocol.messages import StealRequest
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.workers.stealing import InFlightSteal
from paceline.scheduler.core.turn import Turn

#: Requests in flight at a time.
IN_FLIGHT_MAX = 10_000

#: Key of requests that only show that a worker has handled all earlier messages (``Comparison``).
BARRIER_KEY = "paceline-barrier"


def send_steal_request(
    turn: Turn,
    ts: TaskState,
    victim: WorkerState,
    thief: WorkerState | None,
    on_victim: float,
    on_thief: float,
) -> None:
    """Ask ``victim`` to give ``ts`` back, for ``thief``, or to reschedule it if None.

    ``on_victim`` and ``on_thief`` are seconds of work, transfers included.
    """
    stealing_state = turn.state.stealing
    stimulus_id = f"steal-{stealing_state.request_count}"
    stealing_state.request_count += 1
    stealing_state.add(
        ts, InFlightSteal(victim, thief, ts.run_id, on_victim, on_thief, stimulus_id)
    )
    turn.to_worker(victim.address, StealRequest(key=ts.key, stimulus_id=stimulus_id))
