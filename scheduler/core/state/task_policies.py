"""State of the policies: of each task that has some, and what is due when."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

from paceline.protocol.messages import TaskErred
from paceline.scheduler.core.task_policy import TaskPolicy

#: Number of alarms from which those of forgotten tasks are removed when the number has doubled.
ALARMS_MIN = 1_000


@dataclass(slots=True, eq=False)
class PendingRetry:
    """Keeps a task that failed in state waiting until it is retried.

    Attributes:
        worker: address of the worker on which it failed.
        until: time of the retry, or of the next request to compare the exception.
        failure: the worker's report, while its exception is compared with ``TaskPolicy.retry_on``.
    """

    worker: str
    until: float
    failure: TaskErred | None = None


@dataclass(slots=True, eq=False)
class SecondRun:
    """A second run of a task that takes long; the first result counts.

    Attributes:
        address: address of its worker.
        run_id: number of its ``compute-task`` message.
        sent_at: time of that message.
    """

    address: str
    run_id: int
    sent_at: float


@dataclass(slots=True, eq=False)
class TaskPolicies:
    """The policies of one task, and what they have done.

    Attributes:
        policy: what the user set.
        sent_at: time at which the task was last sent to a worker; 0 before.
        pending_retry: the retry that the task waits for; None if it waits for none.
        failed_runs: number of runs that failed and were retried.
        second: the second run of the task, while it is processing; None otherwise.
        second_failed: whether a second run failed, so that there is no other.
        avoided: addresses of workers on which it is not retried if another one may run it.
        given_up_runs: the run_ids of runs that were given up and may go on.
    """

    policy: TaskPolicy
    sent_at: float = 0.0
    pending_retry: PendingRetry | None = None
    failed_runs: int = 0
    second: SecondRun | None = None
    second_failed: bool = False
    avoided: dict[str, None] = field(default_factory=dict)
    given_up_runs: list[int] = field(default_factory=list)


def second_run(policies: TaskPolicies | None) -> SecondRun | None:
    """Return the second run of the task that has `policies`, or None."""
    return policies.second if policies is not None else None


@dataclass(slots=True, eq=False)
class Policies:
    """The state of the policies of all tasks.

    Attributes:
        has_timeouts: whether any task ever had a timeout.
        has_speculative: whether any task was ever annotated with ``speculative=True``.
        second_runs: tasks with a second run.
        second_run_count: number of second runs ever.
        second_runs_won: number of second runs whose result was used.
        alarms: heap of (time, number, task); a task is checked at the time.
        alarm_count: number of alarms ever.
        alarms_max: number of alarms at which those of forgotten tasks are removed.
    """

    has_timeouts: bool = False
    has_speculative: bool = False
    second_runs: dict[Any, None] = field(default_factory=dict)
    second_run_count: int = 0
    second_runs_won: int = 0
    alarms: list[tuple[float, int, Any]] = field(default_factory=list)
    alarm_count: int = 0
    alarms_max: int = ALARMS_MIN

    def has_second_run(self, address: str) -> bool:
        """Return whether any task has its second run on the worker `address`."""
        runs = [second_run(ts.policies) for ts in self.second_runs]
        return any(run is not None and run.address == address for run in runs)

    def set_alarm(self, when: float, ts: Any) -> None:
        """Check the task `ts` at `when`, in seconds since the epoch."""
        if len(self.alarms) >= self.alarms_max:
            self.alarms = [alarm for alarm in self.alarms if alarm[2].state != "forgotten"]
            heapq.heapify(self.alarms)
            self.alarms_max = max(ALARMS_MIN, 2 * len(self.alarms))
        self.alarm_count += 1
        heapq.heappush(self.alarms, (when, self.alarm_count, ts))

    def due(self, now: float, limit: int) -> list[Any]:
        """Remove and return up to `limit` tasks whose alarm is due, each once."""
        found: dict[Any, None] = {}
        while self.alarms and self.alarms[0][0] <= now and len(found) < limit:
            found[heapq.heappop(self.alarms)[2]] = None
        return list(found)
