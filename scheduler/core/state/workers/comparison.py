"""The comparison of a worker's state with the scheduler's, and the stimuli that it consists of.

See ``handlers/reconciliation.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from paceline.scheduler.core.state.model import TaskState

#: State of a task on a worker, its state after that if it is "resumed", and its run_id, which is
#: negative if the worker was not asked to compute it.
ReportedTask: TypeAlias = tuple[str, str | None, int]


@dataclass(slots=True)
class SettleWorker:
    """Prepare a comparison with a worker's state. Replies when the worker may make its report.

    Attributes:
        address: address of the worker.
    """

    address: str


@dataclass(slots=True)
class WorkerReport:
    """A worker's state, to be compared after ``SettleWorker``. Replies when that is done.

    Attributes:
        address: address of the worker.
        tasks: the tasks that the worker knows.
        keys: results that it holds, except actors.
    """

    address: str
    tasks: dict[Any, ReportedTask]
    keys: list[Any]


@dataclass(slots=True)
class EndComparison:
    """Forget the comparison with a worker, which does not answer.

    Attributes:
        address: address of the worker.
    """

    address: str


@dataclass(slots=True, eq=False)
class Comparison:
    """The scheduler's view of a worker before it requested the worker's report.

    Attributes:
        processing: task that was sent to the worker -> its run_id.
        has_what: tasks whose results the worker held.
        report: the worker's report, once it has arrived.
        barriers: functions that are called with a turn when the worker answers the requests with
            ``stealing.requests.BARRIER_KEY``, in order.
    """

    processing: dict[TaskState, int] = field(default_factory=dict)
    has_what: dict[TaskState, None] = field(default_factory=dict)
    report: WorkerReport | None = None
    barriers: deque[Callable[[Any], None]] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class Comparisons:
    """The comparisons that are under way.

    Attributes:
        by_worker: address of the worker -> comparison.
        repair_counts: kind -> number of repairs ever.
    """

    by_worker: dict[str, Comparison] = field(default_factory=dict)
    repair_counts: dict[str, int] = field(default_factory=dict)
