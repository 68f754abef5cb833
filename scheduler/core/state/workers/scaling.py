"""State kept between the requests of an adaptive cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.scheduler.core.state.model import WorkerState


@dataclass(slots=True, eq=False)
class WorkerUse:
    """The use of a worker.

    Attributes:
        joined_at: time at which it was first seen, in seconds since the epoch.
        busy_at: time at which it was last seen to have a task; 0 before its first.
        lifetime_seconds: time from then until its end, infinite without one; 0 if it joined while
            no further worker was expected.
    """

    joined_at: float
    busy_at: float = 0.0
    lifetime_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Scaling:
    """Requests of an adaptive cluster, and the workers that followed. Times are since the epoch.

    Attributes:
        asked: the number of workers that the last reply recommended; 0 before the first request.
        asked_at: time of the last request; 0 before the first.
        raised_at: time at which a reply first recommended more workers than there were; 0 if no
            further worker is expected.
        grown_at: time at which the recommended number last grew, or a worker joined.
        joined_at: time at which a worker last registered; 0 if none has.
        n_raised: number of workers at ``raised_at``.
        arrived: whether there have been more workers since ``raised_at``.
        ceiling: number of workers that the cluster did not exceed when more were recommended; 0 if
            unknown.
        startup_seconds: time from ``raised_at`` until the first worker joined; 0 if unknown.
        wanted_at: time at which all workers were last needed.
        worked_at: time at which the scheduler last had unfinished tasks.
        nthreads: average number of threads of a worker.
        is_tail: whether, at the last request, tasks were running and no others were waiting.
        n_when_full: number of workers when their memory became nearly full; 0 if it is not.
        uses: worker -> its use.
    """

    asked: int = 0
    asked_at: float = 0.0
    raised_at: float = 0.0
    grown_at: float = 0.0
    joined_at: float = 0.0
    n_raised: int = 0
    arrived: bool = False
    ceiling: int = 0
    startup_seconds: float = 0.0
    wanted_at: float = 0.0
    worked_at: float = 0.0
    nthreads: float = 1.0
    is_tail: bool = False
    n_when_full: int = 0
    uses: dict[WorkerState, WorkerUse] = field(default_factory=dict)
