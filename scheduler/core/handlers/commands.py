"""What plugins and functions that clients run here write: attributes of tasks, restrictions, states.

A command is a stimulus of its own, or (``write_task`` only) takes effect within the hook that gave it; then the
journal has it beside the stimulus whose turn called the hook, and a replay applies it at the same call.

Must not know: plugins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .. import mirrors, placement, transitions
from ..impossible import IMPOSSIBLE
from ..queries import address_or_host
from ..state import SchedulerState, TaskState
from ..stimuli import Configure, MakeTransitions, Stimulus, WriteTask
from ..turn import Turn

#: What may be written on a task; all else is the scheduler's own.
WRITABLE = (
    "annotations",
    "host_restrictions",
    "loose_restrictions",
    "metadata",
    "priority",
    "queueable",
    "resource_restrictions",
    "retries",
    "worker_restrictions",
)
#: States that a command may send a task to; the others need to know a cause.
ASKABLE = ("forgotten", "processing", "released", "waiting")
#: Knobs that may be turned while the scheduler runs.
CONFIGURABLE = (
    "allowed_failures",
    "idle_timeout_seconds",
    "memory_recent_to_old_seconds",
    "no_workers_timeout_seconds",
    "rebalance_gap",
    "rebalance_measure",
    "rebalance_recipient_max",
    "rebalance_sender_min",
    "rootish_taskgroup",
    "rootish_taskgroup_dependencies",
    "unknown_task_duration_seconds",
    "validate",
    "watch_idle",
    "watch_no_workers",
    "watch_worker_ttl",
    "worker_saturation",
    "worker_ttl_seconds",
)
#: Attributes that every task has; the others are among its details.
_ON_TASK = frozenset(("annotations", "priority", "queueable", "retries"))


def handle_write_task(turn: Turn, stimulus: Stimulus) -> None:
    """Write an attribute of a task, between turns."""
    write_task(turn.state, stimulus.message)


def write_task(state: SchedulerState, write: WriteTask) -> None:
    """Write an attribute of a task. What is placed already stays where it is."""
    ts = state.tasks.get(write.key)
    if ts is None:
        return
    if write.field not in WRITABLE:
        raise AssertionError(f"a command writes {write.field!r}")
    value = write.value
    if write.field == "priority":
        _write_priority(state, ts, tuple(value))
    elif write.field in _ON_TASK:
        setattr(ts, write.field, value)
    elif write.field == "worker_restrictions":
        _restrict(state, ts, value)
    elif write.field == "resource_restrictions":
        mirrors.set_resource_restrictions(ts, value)
    elif write.field == "host_restrictions":
        ts.ensure_details().host_restrictions = dict.fromkeys(value or ()) or None
    else:
        setattr(ts.ensure_details(), write.field, value)


def _write_priority(state: SchedulerState, ts: TaskState, priority: Any) -> None:
    """A queued task moves to its new place in the queue."""
    queued = ts in state.queued
    if queued:
        state.queued.discard(ts)
    ts.priority = priority
    if queued:
        state.queued.add(ts)


def _restrict(state: SchedulerState, ts: TaskState, addresses: Any) -> None:
    if isinstance(addresses, str):
        addresses = [addresses]
    named = [address_or_host(state, a) or str(a) for a in addresses or ()]
    if named or ts.details is not None:
        ts.ensure_details().worker_restrictions = dict.fromkeys(named) or None


def handle_set_restrictions(turn: Turn, stimulus: Stimulus) -> None:
    """Where tasks may run from now on. Those that wait for a worker look for one anew; those that have one keep it."""
    state = turn.state
    recs: transitions.Recommendations = {}
    for key, addresses in stimulus.message.restrictions.items():
        ts = state.tasks.get(key)
        if ts is None:
            continue
        _restrict(state, ts, addresses)
        if ts.state == "queued" and ts.worker_restrictions:
            recs[ts] = "waiting"
        elif ts.state == "no-worker":
            recs[ts] = "processing"
    transitions.run(turn, recs)


def handle_make_transitions(turn: Turn, stimulus: Stimulus) -> None:
    """Tasks go to other states because somebody says so.

    All of them do in this turn, whatever its budget: that somebody wanted it is written nowhere in the state,
    so a later turn could not tell that it is due. Who gives the command keeps it short (``turn_tasks_max``).
    """
    command: MakeTransitions = stimulus.message
    tasks = turn.state.tasks
    for key, finish in reversed(command.recommendations.items()):
        ts = tasks.get(key)
        if ts is None or ts.state == finish:
            continue
        if finish not in ASKABLE or (ts.state, finish) in IMPOSSIBLE:
            turn.log(
                30, f"Task {key!r} cannot go from {ts.state} to {finish} because a plugin says so"
            )
            continue
        recs: transitions.Recommendations = {}
        transitions.transition(turn, ts, finish, recs)
        transitions.run(turn, recs)
    transitions.fill_slots(turn)


def check_knob(state: SchedulerState, field: str, value: Any) -> None:
    """Whether a knob may have this value.

    Raises:
        AttributeError: it cannot be turned while the scheduler runs.
        ValueError: the value is out of its range.
    """
    if field not in CONFIGURABLE:
        raise AttributeError(f"{field} is fixed when the scheduler starts")
    replace(state.config, **{field: value}).check()


def handle_configure(turn: Turn, stimulus: Stimulus) -> None:
    """Another value for a knob; what was derived from it follows. Tasks that were queued when all may go at once are sent now."""
    command: Configure = stimulus.message
    state = turn.state
    check_knob(state, command.field, command.value)
    if command.field == "unknown_task_duration_seconds":
        longer = command.value - state.config.unknown_task_duration_seconds
        state.compute_occupancy += longer * sum(ws.unknown_total for ws in state.workers.values())
    setattr(state.config, command.field, command.value)
    if command.field == "validate":
        state.validate = command.value
    elif command.field == "worker_saturation":
        for ws in state.workers.values():
            ws.task_slots = placement.task_slots(state, ws.nthreads)
            placement.update_idle(state, ws)
        transitions.fill_slots(turn)
