"""Messages about a task to workers and clients, built from its state."""

from __future__ import annotations

from typing import Any

from paceline.protocol.flat_map import FlatMap
from paceline.protocol.keys import Key
from paceline.protocol.messages import ComputeTask, KeyInMemory, TaskErredReport
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.small_set import SmallSet
from paceline.scheduler.core.turn import Turn

#: Dependencies of a message are sent as FlatMap beyond this number.
FLAT_MIN = 1_000


def compute_message(turn: Turn, ts: TaskState) -> ComputeTask:
    """Return the ``compute-task`` message for `ts`, with a new run_id."""
    ts.run_id = next(turn.state.run_ids)
    assert ts.priority is not None, ts
    keys = [dts.key for dts in ts.dependencies]
    mapping = FlatMap.of if len(keys) > FLAT_MIN else _dict
    return ComputeTask(
        key=ts.key,
        run_id=ts.run_id,
        priority=ts.priority,
        stimulus_id=turn.compute_id,
        who_has=mapping(keys, [_addresses(dts.who_has) for dts in ts.dependencies]),
        nbytes=mapping(keys, [dts.nbytes for dts in ts.dependencies]),
        run_spec=ts.run_spec_payload(),
        resource_restrictions=ts.resource_restrictions,
        actor=ts.actor,
        annotations=ts.annotations or {},
        span_id=ts.group.span_id,
    )


def _dict(keys: list[Key], values: list[Any]) -> dict[Key, Any]:
    return dict(zip(keys, values))


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
