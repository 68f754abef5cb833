"""Learn what tasks take in memory, and notice when workers may run short of it."""

from __future__ import annotations

from paceline.scheduler.core.state.admission import TaskMemory
from paceline.scheduler.core.state.estimates import task_memory
from paceline.scheduler.core.state.model import TaskGroup, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState


def learn_result(state: SchedulerState, group: TaskGroup, nbytes: int) -> None:
    """Learn from the size of a result of `group`, which may turn out to differ from its prefix."""
    memory = group.prefix.memory
    if group.own_memory is None and memory.n_results and not memory.is_similar(nbytes):
        group.own_memory = TaskMemory(peak_nbytes=memory.peak_nbytes)
        memory.groups_differ = True
    if group.own_memory is not None:
        group.own_memory.add_result(nbytes)
    memory.add_result(nbytes)
    check_task_size(state, group)


def learn_peak(group: TaskGroup, nbytes: float) -> None:
    """Learn that a running task of `group` took `nbytes` bytes besides results."""
    group.prefix.memory.add_peak(nbytes)
    if group.own_memory is not None:
        group.own_memory.add_peak(nbytes)


def check_task_size(state: SchedulerState, group: TaskGroup) -> None:
    """Set `is_short` if a task of `group` may not fit on some worker that is not watched."""
    if task_memory(group).task_nbytes > state.admission.unchecked_nbytes:
        state.admission.is_short = True


def expect_results(state: SchedulerState, group: TaskGroup, ws: WorkerState) -> None:
    """Set `is_short` if `ws` would run short of memory, were its tasks all of `group`."""
    if task_memory(group).task_nbytes * len(ws.processing) + ws.nbytes > ws.watched_nbytes:
        state.admission.is_short = True
