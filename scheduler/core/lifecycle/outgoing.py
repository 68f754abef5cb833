"""Messages about a task to workers and clients, built from its state."""

from __future__ import annotations

from typing import Any, Final

from paceline.protocol.flat_map import FlatMap
from paceline.protocol.messages import ComputeTask, KeyInMemory, TaskErredReport
from paceline.scheduler.core.state.containers import SmallSet
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.turn import Turn

#: Dependencies of a message are sent as FlatMap beyond this number.
FLAT_MIN: Final = 1_000


def compute_message(turn: Turn, ts: TaskState) -> ComputeTask:
    """Return the ``compute-task`` message for `ts`, with a new run_id."""
    ts.run_id = next(turn.state.run_ids)
    assert ts.priority is not None, ts
    who_has: Any = {}
    nbytes: Any = {}
    dependencies = ts.dependencies
    if len(dependencies) > FLAT_MIN:
        keys = [dts.key for dts in dependencies]
        who_has = FlatMap.of(keys, [_addresses(dts.who_has) for dts in dependencies])
        nbytes = FlatMap.of(keys, [dts.nbytes for dts in dependencies])
        dependencies = ()
    for dts in dependencies:
        holders = dts.who_has
        key = dts.key
        if len(holders) == 1:
            (ws,) = holders
            who_has[key] = ws.address_tuple
        else:
            who_has[key] = _addresses(holders)
        nbytes[key] = dts.nbytes
    details = ts.details
    if details is not None and details.policies is not None:
        details.policies.sent_at = turn.now
    return ComputeTask(
        key=ts.key,
        run_id=ts.run_id,
        priority=ts.priority,
        stimulus_id=turn.compute_id,
        who_has=who_has,
        nbytes=nbytes,
        run_spec=ts.run_spec_payload(),
        resource_restrictions=details.resource_restrictions if details is not None else None,
        actor=ts.actor,
        annotations=ts.annotations or {},
        span_id=ts.group.span_id,
    )


def _addresses(holders: SmallSet[WorkerState]) -> tuple[str, ...]:
    if type(holders) is tuple and len(holders) == 1:
        return holders[0].address_tuple
    return tuple([ws.address for ws in holders])


def report_to(turn: Turn, ts: TaskState, client: str) -> None:
    """Report the state of `ts` to `client` if it is final."""
    if ts.state == "memory":
        turn.to_client(client, KeyInMemory(key=ts.key))
    elif ts.state == "erred":
        blame = ts.exception_blame
        assert blame is not None, ts
        report = TaskErredReport(key=ts.key, exception=blame.exception, traceback=blame.traceback)
        turn.to_client(client, report)
