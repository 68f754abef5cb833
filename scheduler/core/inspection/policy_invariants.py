"""Checks of the policies of tasks, and of the ends of workers, for the invariants."""

from __future__ import annotations

from math import inf

from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_policies import second_run


def check_retries(_view: object, state: SchedulerState) -> None:
    """Check that only waiting tasks wait for a retry, and that an alarm is set for it."""
    alarms = {(ts, when) for when, _, ts in state.policies.alarms}
    for ts in state.tasks.values():
        retry = ts.policies.pending_retry if ts.policies is not None else None
        if retry is not None:
            assert ts.state == "waiting", f"{ts!r} waits for a retry"
            assert (ts, retry.until) in alarms, f"no alarm is set for the retry of {ts!r}"


def check_second_runs(_view: object, state: SchedulerState) -> None:
    """Check that second runs are of processing tasks, on another worker, and occupy a thread."""
    found = [ts for ts in state.tasks.values() if second_run(ts.policies) is not None]
    known = state.policies.second_runs
    assert all(ts in known for ts in found) and len(found) == len(known), f"{found}, not {known}"
    for ts in found:
        second = second_run(ts.policies)
        assert second is not None and ts.processing_on is not None, f"{ts!r} is not processing"
        assert second.address != ts.processing_on.address, f"{ts!r} runs twice on a worker"
        ws = state.workers.get(second.address)
        assert ws is not None, f"{ts!r} has its second run on an unknown worker"
        assert ts.key in ws.extra_runs, f"{ts!r} occupies no thread of {ws!r}"
        assert second.run_id != ts.run_id, f"both runs of {ts!r} have the same number"


def check_ends(_view: object, state: SchedulerState) -> None:
    """Check that the workers that end, and those that are reserved, are listed."""
    found = [ws for ws in state.workers.values() if ws.ends_at]
    known = state.ends.workers
    assert all(ws in known for ws in found) and len(found) == len(known), f"{found}, not {known}"
    soonest = min([ws.ends_at for ws in found], default=inf)
    assert state.ends.soonest == soonest, f"the soonest end is {soonest}, not {state.ends.soonest}"
    reserved = state.whole.reserved
    for ws in state.workers.values():
        assert ws.reserved_for is reserved.get(ws), f"{ws!r} is reserved for {ws.reserved_for!r}"
        task = ws.reserved_for
        if task is not None and task in ws.processing:
            later = [ts for ts in ws.processing if ts.run_id > task.run_id]
            assert not later, f"{later} were sent after {task!r}"
    assert all(state.workers.get(ws.address) is ws for ws in reserved), f"{reserved}"
    for ts in state.whole.due:
        assert ts.state != "queued", f"{ts!r} waits for a whole worker in the queue"
