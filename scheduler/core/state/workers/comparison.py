"""The comparison of a worker's state with the scheduler's.

See ``handlers/reconciliation.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.stimuli import WorkerReport


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
