"""The load of each worker: which workers have free slots, and which are idle or saturated.

A worker's load changes with every task that starts or ends there. Changed workers are only marked
with ``WorkerLoads.touch``. Free slots are refreshed before each queued task is placed. ``idle`` and
``saturated`` need the worker's occupancy and are refreshed before they are read, and on each tick.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from paceline.scheduler.core.state.containers import LoadBuckets
from paceline.scheduler.core.state.model import WorkerState

#: Load classes; the empty string is neither idle nor saturated.
LoadClass = Literal["idle", "saturated", ""]


def is_available(ws: WorkerState) -> bool:
    """Return whether `ws` can be sent new tasks: it is running, not reserved, and has a thread."""
    if not accepts_data(ws) or ws.reserved_for is not None:
        return False
    return not ws.extra_runs or len(ws.extra_runs) < ws.nthreads


def accepts_data(ws: WorkerState) -> bool:
    """Return whether `ws` can be sent data. It needs no thread, and may be reserved for a task."""
    return ws.status == "running" and not ws.backpressured


def usable_threads(ws: WorkerState) -> int:
    """Return the number of threads of `ws` for the tasks in `processing`, at least 1."""
    return max(1, ws.nthreads - len(ws.extra_runs)) if ws.extra_runs else ws.nthreads


def taken_slots(ws: WorkerState) -> int:
    """Return the number of slots that tasks and extra runs take; seceded tasks take none."""
    return len(ws.processing) - len(ws.long_running) + len(ws.extra_runs)


def has_free_slot(ws: WorkerState) -> bool:
    """Return whether `ws` is available and has a slot that is not taken."""
    return taken_slots(ws) < ws.task_slots and is_available(ws)


class WorkerLoads:
    """Registered workers by load.

    Attributes:
        idle: workers with too little to do (fewer tasks than threads, or less than half of the
            average occupancy).
        saturated: workers with much more to do than the average, the latest to become so last.
        idle_task_count: workers with a free slot, by taken slots per thread.
        touched: workers that have changed since a reader cleared it, as of the last refresh.
    """

    def __init__(self, workers: dict[str, WorkerState]) -> None:
        """Hold the loads of `workers`, the table of registered workers (address -> WorkerState)."""
        self._workers = workers
        self._slots_dirty: dict[WorkerState, None] = {}
        self._load_dirty: dict[WorkerState, None] = {}
        self.idle: dict[WorkerState, None] = {}
        self.saturated: dict[WorkerState, None] = {}
        self.idle_task_count: LoadBuckets[WorkerState] = LoadBuckets()
        self.touched: dict[WorkerState, None] = {}

    def touch(self, ws: WorkerState) -> None:
        """Mark `ws` as changed."""
        self._slots_dirty[ws] = None

    def is_dirty(self, ws: WorkerState) -> bool:
        """Return whether `ws` has changed since `idle` and `saturated` were refreshed."""
        return ws in self._slots_dirty or ws in self._load_dirty

    def are_slots_dirty(self, ws: WorkerState) -> bool:
        """Return whether `ws` has changed since `idle_task_count` was refreshed."""
        return ws in self._slots_dirty

    def update(self, ws: WorkerState, load: LoadClass) -> None:
        """Enter `ws`, whose load class is `load`, or its changes, at once."""
        self._update_slots(ws)
        self._reclassify(ws, load)

    def remove(self, ws: WorkerState) -> None:
        """Remove `ws`: it left, or it is not available."""
        self.idle.pop(ws, None)
        self.saturated.pop(ws, None)
        self.idle_task_count.discard(ws)
        self._slots_dirty.pop(ws, None)
        self._load_dirty.pop(ws, None)
        self.touched.pop(ws, None)

    def refresh(self, load_class: Callable[[WorkerState], LoadClass]) -> None:
        """Update everything for the workers that have changed; `load_class` classifies a worker."""
        self._refresh_slots()
        if self._load_dirty:
            for ws in self._load_dirty:
                if self._workers.get(ws.address) is ws:
                    self._reclassify(ws, load_class(ws))
            self.touched.update(self._load_dirty)
            self._load_dirty.clear()

    def least_loaded(self) -> WorkerState | None:
        """Return the worker with a free slot and the fewest taken slots per thread, or None."""
        self.refresh_slots()
        return self.idle_task_count.least()

    def has_free_slots(self) -> bool:
        """Return whether any worker has a free slot."""
        self.refresh_slots()
        return bool(self.idle_task_count.loads)

    def refresh_slots(self) -> None:
        """Update `idle_task_count` for the workers that have changed."""
        if self._slots_dirty:
            self._refresh_slots()

    def _refresh_slots(self) -> None:
        for ws in self._slots_dirty:
            if self._workers.get(ws.address) is ws:
                self._update_slots(ws)
        self._load_dirty.update(self._slots_dirty)
        self._slots_dirty.clear()

    def _update_slots(self, ws: WorkerState) -> None:
        if has_free_slot(ws):
            self.idle_task_count.put(ws, taken_slots(ws) / ws.nthreads)
        else:
            self.idle_task_count.discard(ws)

    def _reclassify(self, ws: WorkerState, load: LoadClass) -> None:
        if load == "idle":
            self.idle[ws] = None
        else:
            self.idle.pop(ws, None)
        self.saturated.pop(ws, None)  # a worker that is saturated again comes last
        if load == "saturated":
            self.saturated[ws] = None
