"""Checks of the policies of tasks, for the invariants."""

from __future__ import annotations

from paceline.scheduler.core.state.scheduler_state import SchedulerState


def check_holds(state: SchedulerState) -> None:
    """Check that only waiting tasks are held, and that an alarm ends each hold."""
    alarms = {(ts, when) for when, _, ts in state.policies.alarms}
    for ts in state.tasks.values():
        hold = ts.policies.hold if ts.policies is not None else None
        if hold is not None:
            assert ts.state == "waiting", f"{ts!r} is held"
            assert (ts, hold.until) in alarms, f"no alarm ends the hold of {ts!r}"
