"""Commands of plugins and of functions run on the scheduler.

They write tasks, restrictions, states and settings. A command is a stimulus. Only ``write_task``
may also take effect within a plugin hook; the journal then records it with the stimulus whose turn
called the hook, and a replay applies it at the same call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.scheduler.core.lifecycle import accounting, slots, transitions
from paceline.scheduler.core.policy import fairness, placement
from paceline.scheduler.core.state.addresses import address_or_host
from paceline.scheduler.core.state.deferred import Recs
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import IMPOSSIBLE
from paceline.scheduler.core.stimuli import (
    Configure,
    LogEventCommand,
    MakeTransitions,
    MetadataSet,
    RestrictionsSet,
    WriteTask,
)
from paceline.scheduler.core.turn import WARNING, Registry, Turn

#: Attributes of a task that commands may write.
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
#: States that a command may move a task to; the others need a cause.
COMMANDED_STATES = ("forgotten", "processing", "released", "waiting")
#: Settings that can change while the scheduler runs.
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
#: Writable attributes stored on the task itself; the others are in its details.
_ON_TASK = frozenset(("annotations", "priority", "queueable", "retries"))


def handle_write_task(turn: Turn, message: WriteTask) -> None:
    """Write an attribute of a task, as a stimulus."""
    write_task(turn.state, message)


def write_task(state: SchedulerState, write: WriteTask) -> None:
    """Write an attribute of a task. A task that already has a worker stays there.

    Raises:
        AssertionError: the attribute is not in ``WRITABLE``.
    """
    ts = state.tasks.get(write.key)
    if ts is None:
        return
    if write.field not in WRITABLE:
        raise AssertionError(f"commands cannot write the attribute {write.field!r} of a task")
    _change(state, ts, partial(_write, state, ts, write))


def _change(state: SchedulerState, ts: TaskState, change: Callable[[], None]) -> None:
    """Call `change`, and move `ts` to its new position if it is queued."""
    queued, held = ts in state.queued, state.queued.is_held(ts)
    if queued:
        state.queued.discard(ts)
    change()
    if not queued:
        return
    place = fairness.place_of(state, ts)
    if held or isinstance(place, tuple):
        state.queued.hold(ts, place)
    else:
        state.queued.add(ts)


def _write(state: SchedulerState, ts: TaskState, write: WriteTask) -> None:
    value = write.value
    if write.field == "priority":
        before = ts.priority
        ts.priority = tuple(value)
        state.shares.n_prioritized += bool(ts.priority[0]) - bool(before and before[0])
    elif write.field in _ON_TASK:
        setattr(ts, write.field, value)
    elif write.field == "worker_restrictions":
        _restrict(state, ts, value)
    elif write.field == "resource_restrictions":
        accounting.set_resource_restrictions(ts, value)
    elif write.field == "host_restrictions":
        ts.ensure_details().host_restrictions = dict.fromkeys(value or ()) or None
    else:
        setattr(ts.ensure_details(), write.field, value)


def _restrict(state: SchedulerState, ts: TaskState, addresses: Any) -> None:
    if isinstance(addresses, str):
        addresses = [addresses]
    named = [address_or_host(state, a) or str(a) for a in addresses or ()]
    if named or ts.details is not None:
        ts.ensure_details().worker_restrictions = dict.fromkeys(named) or None


def handle_set_restrictions(turn: Turn, message: RestrictionsSet) -> None:
    """Restrict tasks to workers.

    Tasks without a worker are scheduled again; others stay on their worker.
    """
    state = turn.state
    recs: Recs = {}
    for key, addresses in message.restrictions.items():
        ts = state.tasks.get(key)
        if ts is None:
            continue
        _change(state, ts, partial(_restrict, state, ts, addresses))
        if ts.state == "queued" and ts.worker_restrictions:
            recs[ts] = "waiting"
        elif ts.state == "no-worker":
            recs[ts] = "processing"
    transitions.run(turn, recs)
    slots.fill_slots(turn)


def handle_make_transitions(turn: Turn, command: MakeTransitions) -> None:
    """Move tasks to the states that a plugin recommends.

    All transitions are made in this turn, whatever its budget, because the state does not record
    the request, so that a later turn could not continue it. The caller limits the number of tasks
    (``turn_tasks_max``).
    """
    tasks = turn.state.tasks
    for key, finish in reversed(command.recommendations.items()):
        ts = tasks.get(key)
        if ts is None or ts.state == finish:
            continue
        if finish not in COMMANDED_STATES or (ts.state, finish) in IMPOSSIBLE:
            turn.log(
                WARNING,
                f"Ignoring the transition of {key!r} from {ts.state} to {finish} "
                "that a plugin recommends",
            )
            continue
        recs: Recs = {}
        transitions.transition(turn, ts, finish, recs)
        transitions.run(turn, recs)
    slots.fill_slots(turn)


def handle_set_metadata(turn: Turn, message: MetadataSet) -> None:
    """``Client.set_metadata``: store a value under a path of keys, creating dicts as needed."""
    metadata: Any = turn.state.task_metadata
    *path, last = message.keys
    for key in path:
        inner = metadata.get(key)
        if not isinstance(inner, dict):
            metadata[key] = inner = {}
        metadata = inner
    metadata[last] = message.value


def handle_log_event(turn: Turn, message: LogEventCommand) -> None:
    """Log an event from the server or a plugin."""
    turn.log_event(message.topics, message.event)


def check_setting(state: SchedulerState, field: str, value: Any) -> None:
    """Check that the setting ``field`` can be changed to ``value``.

    Raises:
        AttributeError: the setting cannot change while the scheduler runs.
        ValueError: the value is out of range.
    """
    if field not in CONFIGURABLE:
        raise AttributeError(f"{field} cannot be changed while the scheduler runs")
    replace(state.config, **{field: value}).check()


def handle_configure(turn: Turn, command: Configure) -> None:
    """Change a setting and the values derived from it, and send queued tasks that it now allows."""
    state = turn.state
    check_setting(state, command.field, command.value)
    if command.field == "unknown_task_duration_seconds":
        longer = command.value - state.config.unknown_task_duration_seconds
        state.compute_occupancy += longer * sum(
            ws.unknown_duration_total for ws in state.workers.values()
        )
    setattr(state.config, command.field, command.value)
    if command.field == "worker_saturation":
        for ws in state.workers.values():
            ws.task_slots = placement.task_slots(state, ws.nthreads)
            placement.update_idle(state, ws)
        slots.fill_slots(turn)


#: Message class -> handler.
HANDLERS: Registry = {
    WriteTask: handle_write_task,
    RestrictionsSet: handle_set_restrictions,
    MakeTransitions: handle_make_transitions,
    MetadataSet: handle_set_metadata,
    LogEventCommand: handle_log_event,
    Configure: handle_configure,
}
