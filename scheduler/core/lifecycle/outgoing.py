"""Messages about a task to workers and clients, built from its state."""

from __future__ import annotations

from typing import Any

from paceline.protocol.flat_map import FlatMap
from paceline.protocol.messages import (
    CancelledKeys,
    ComputeTask,
    KeyInMemory,
    Message,
    TaskErredReport,
)
from paceline.protocol.payload import Payload
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.small_set import SmallSet
from paceline.scheduler.core.turn import Turn

#: Dependencies of a message are sent as FlatMap beyond this number.
FLAT_MIN = 1_000


def compute_message(turn: Turn, ts: TaskState) -> ComputeTask:
    """Return the ``compute-task`` message for `ts`, with a new run_id."""
    ts.run_id = next(turn.state.run_ids)
    run_spec = ts.run_spec
    if isinstance(run_spec, bytes):
        run_spec = Payload("pickled", run_spec, ())
    assert ts.priority is not None, ts
    who_has: Any = {}
    nbytes: Any = {}
    dependencies = ts.dependencies
    if len(dependencies) > FLAT_MIN:
        keys = [dts.key for dts in dependencies]
        who_has = FlatMap.of(keys, _addresses([dts.who_has for dts in dependencies]))
        nbytes = FlatMap.of(keys, [dts.nbytes for dts in dependencies])
        dependencies = ()
    for dts in dependencies:
        holders = dts.who_has
        key = dts.key
        if len(holders) == 1:
            (ws,) = holders
            who_has[key] = ws.address_tuple
        else:
            who_has[key] = tuple([ws.address for ws in holders])
        nbytes[key] = dts.nbytes
    details = ts.details
    return ComputeTask(
        key=ts.key,
        run_id=ts.run_id,
        priority=ts.priority,
        stimulus_id=turn.compute_id,
        who_has=who_has,
        nbytes=nbytes,
        run_spec=run_spec,
        resource_restrictions=details.resource_restrictions if details is not None else None,
        actor=ts.actor,
        annotations=ts.annotations or {},
        span_id=ts.group.span_id,
    )


def _addresses(all_holders: list[SmallSet[WorkerState]]) -> list[tuple[str, ...]]:
    return [
        holders[0].address_tuple
        if type(holders) is tuple and len(holders) == 1
        else tuple([ws.address for ws in holders])
        for holders in all_holders
    ]


def report_message(ts: TaskState) -> Message | None:
    """Return the message about the state of `ts` for a client that wants it, or None."""
    if ts.state == "memory":
        return KeyInMemory(key=ts.key)
    if ts.state == "erred":
        blame = ts.exception_blame
        assert blame is not None, ts
        return TaskErredReport(key=ts.key, exception=blame.exception, traceback=blame.traceback)
    if ts.state == "forgotten":
        return CancelledKeys(keys=[ts.key], reason="already forgotten")
    return None


def report_to(turn: Turn, ts: TaskState, client: str) -> None:
    """Tell a client of a task's state, where that is final."""
    if ts.state in ("memory", "erred"):
        message = report_message(ts)
        if message is not None:
            turn.to_client(client, message)
