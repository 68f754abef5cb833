"""Tasks whose worker ran out of memory, and the workers that are reserved for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.scheduler.core.state.admission import UNLIMITED_NBYTES
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.sharing.accounts import ShareGroup

#: Share of its memory limit that a lost worker used at its last heartbeat if it ran out of memory.
#: Workers pause there, and nannies restart them at 0.95 (``distributed.worker.memory``).
MEMORY_SHARE = 0.8
#: Seconds after the loss of a worker in which a report of its nanny counts.
REPORT_SECONDS = 10.0
#: Reports, and lost workers, that are kept.
KEPT_MAX = 1_000
#: States of tasks that are not to run.
ENDED_STATES = frozenset(("memory", "erred", "released", "forgotten"))


@dataclass(slots=True, eq=False)
class LostWorker:
    """A lost worker whose nanny may still report that it had used too much memory.

    Attributes:
        lost_at: time of the loss, in seconds since the epoch.
        blamed: the tasks that were blamed.
        nbytes: bytes that tasks on it were expected to use at most.
    """

    lost_at: float
    blamed: list[TaskState]
    nbytes: float = float(UNLIMITED_NBYTES)


@dataclass(slots=True, eq=False)
class WholeWorkers:
    """Tasks that run alone on a worker, because a worker of theirs ran out of memory.

    Attributes:
        due: these tasks until they end; those in state no-worker wait for a whole worker.
        retried: tasks that were sent to a whole worker. Further losses of workers count for them.
        reserved: worker that is sent nothing else -> its task.
        first: share group with a cap -> the first of these tasks, for which it keeps a place.
        reported: address of a worker whose nanny restarts it because of its memory -> time of the
            report, in seconds since the epoch.
        lost: address -> a worker that was lost recently, of which nothing is known.
        sent_count: number of times that a task was sent to a whole worker.
    """

    due: dict[TaskState, None] = field(default_factory=dict)
    retried: dict[TaskState, None] = field(default_factory=dict)
    reserved: dict[WorkerState, TaskState] = field(default_factory=dict)
    first: dict[ShareGroup, TaskState] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)
    lost: dict[str, LostWorker] = field(default_factory=dict)
    sent_count: int = 0

    def __bool__(self) -> bool:
        known = self.due or self.retried or self.reserved or self.first
        return bool(known or self.reported or self.lost)

    def is_memory_loss(self, ws: WorkerState) -> bool:
        """Return whether `ws`, which is lost unexpectedly, most likely ran out of memory.

        Its nanny has reported it, it was paused, or its last heartbeat reported that its process
        used ``MEMORY_SHARE`` of the limit.
        """
        if self.reported.pop(ws.address, None) is not None:
            return True
        if not ws.memory_limit:
            return False
        memory = float(ws.metrics.get("memory", 0))
        return ws.status == "paused" or memory >= MEMORY_SHARE * ws.memory_limit

    def worker_of(self, ts: TaskState) -> WorkerState | None:
        """Return the worker that is reserved for `ts`, or None."""
        return next((ws for ws, other in self.reserved.items() if other is ts), None)

    def n_kept(self, share: ShareGroup, ts: TaskState | None = None) -> int:
        """Return the number of places below its caps that `share` does not give to `ts`.

        They are kept for a task that waits for a whole worker. Without `ts`, return those that it
        does not give to its queued tasks.
        """
        first = self.first.get(share)
        return int(first is not None and first.state == "no-worker" and ts not in self.due)

    def note_report(self, address: str, now: float) -> None:
        """Record that the nanny of the worker `address` restarts it because of its memory."""
        self.reported[address] = now
        if len(self.reported) > KEPT_MAX:
            del self.reported[next(iter(self.reported))]

    def note_loss(
        self, ws: WorkerState, blamed: list[TaskState], nbytes: float, now: float
    ) -> None:
        """Record the loss of `ws`, for which `blamed` were blamed; they may use `nbytes` bytes."""
        if ws.nanny and ws.memory_limit and blamed:
            self.lost[ws.address] = LostWorker(now, blamed, nbytes)
            if len(self.lost) > KEPT_MAX:
                del self.lost[next(iter(self.lost))]

    def forget_old(self, now: float) -> None:
        """Drop what is no longer needed at `now`: old losses and reports, and ended tasks."""
        for address in [a for a, at in self.reported.items() if now > at + REPORT_SECONDS]:
            del self.reported[address]
        for address in [a for a, it in self.lost.items() if now > it.lost_at + REPORT_SECONDS]:
            del self.lost[address]
        for ts in [ts for ts in self.due if ts.state in ENDED_STATES]:
            del self.due[ts]
        for ts in [ts for ts in self.retried if ts.state == "forgotten"]:
            del self.retried[ts]

    def clear(self) -> None:
        """Forget all tasks."""
        self.due.clear()
        self.retried.clear()
        self.reserved.clear()
        self.first.clear()
        self.lost.clear()
