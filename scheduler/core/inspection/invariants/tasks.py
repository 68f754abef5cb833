"""Checks of tasks, and of the clients that want them."""

from __future__ import annotations

from paceline.scheduler.core.lifecycle.recommendations import waits_for_retry
from paceline.scheduler.core.policy import fairness
from paceline.scheduler.core.state.model import ClientState, TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_policies import second_run
from paceline.scheduler.core.state.task_states import ACTIVE_STATES, TASK_STATES

from .view import View


def check_known(view: View, ts: TaskState) -> None:
    """Check that a task is in state.tasks under its key, its group in task_groups."""
    assert view.is_known(ts), "not in state.tasks under its key"
    assert ts.state in TASK_STATES and ts.state != "forgotten", f"state is {ts.state}"
    assert view.state.task_groups.get(ts.group.name) is ts.group, "its group is unknown"


def check_edges(view: View, ts: TaskState) -> None:
    """Check that dependencies and dependents mirror each other, among known tasks."""
    assert len(set(map(id, ts.dependencies))) == len(ts.dependencies), "a dependency occurs twice"
    for dts in ts.dependencies:
        assert ts in dts.dependents, f"{dts!r} does not have it as dependent"
        assert view.is_known(dts), f"depends on {dts!r}, which is unknown"
    for dts in ts.dependents:
        assert ts in dts.dependencies, f"{dts!r} does not depend on it"
        assert view.is_known(dts), f"has the dependent {dts!r}, which is unknown"


def check_desires(view: View, ts: TaskState) -> None:
    """Check that who_wants mirrors wants_what of known or leaving clients, and pins."""
    state = view.state
    for cs in ts.who_wants:
        assert ts in cs.wants_what, f"{cs!r} does not want it"
        known = state.clients.get(cs.client_key) is cs or cs in state.deferred.client_removals
        assert known or cs in view.pins, f"wanted by {cs!r}, which is unknown"


def check_holders(view: View, ts: TaskState) -> None:
    """Check that who_has mirrors has_what of known workers; more than one is replicated."""
    state = view.state
    for ws in ts.who_has:
        assert ts in ws.has_what, f"{ws!r} does not have it"
        assert state.workers.get(ws.address) is ws, f"held by {ws!r}, which is unknown"
    replicated = ts in state.replicated_tasks
    assert replicated == (len(ts.who_has) > 1), f"{len(ts.who_has)} replicas, {replicated=}"


def check_counts(view: View, ts: TaskState) -> None:
    """Check that waiting_count and waiters_count are the numbers of such tasks."""
    waiting = sum(not d.who_has for d in ts.dependencies) if ts.state == "waiting" else 0
    assert ts.waiting_count == waiting, f"waiting_count is {ts.waiting_count}, not {waiting}"
    waiters = sum(d.state in ACTIVE_STATES for d in ts.dependents)
    assert ts.waiters_count == waiters, f"waiters_count is {ts.waiters_count}, not {waiters}"


def check_placed(view: View, ts: TaskState) -> None:
    """Check that processing_on is set exactly in processing, on a known worker."""
    ws = ts.processing_on
    assert (ws is not None) == (ts.state == "processing"), f"processing_on is {ws!r}"
    if ws is not None:
        assert ts in ws.processing, f"{ws!r} does not process it"
        known = view.state.workers.get(ws.address) is ws
        assert known or ts in view.pending, f"processing on {ws!r}, which is gone"
        assert ts.run_id, "it was sent without a run_id"


def check_collections(view: View, ts: TaskState) -> None:
    """Check that queued and unrunnable hold exactly the tasks in queued and no-worker."""
    assert (ts in view.state.queued) == (ts.state == "queued"), "queued differs"
    assert (ts in view.state.unrunnable) == (ts.state == "no-worker"), "unrunnable differs"
    if ts.state == "queued":
        place = view.state.queued.place(ts)
        found = place[:-1] if isinstance(place, tuple) else fairness.NO_RESTRICTIONS
        expected = fairness.restrictions_of(ts)
        assert found == expected, f"restricted to {expected}, and queued for {found}"


def check_runnable(view: View, ts: TaskState) -> None:
    """Check that a task that is to run has a run_spec, a priority and all its dependencies."""
    is_active = ts.state in ACTIVE_STATES
    assert not is_active or ts.run_spec is not None, "it has no run_spec"
    if is_active or ts.state == "memory":
        assert ts.run_spec is None or ts.priority is not None, "it has a run_spec and no priority"
    lost = ts.has_lost_dependencies and ts not in view.pending
    assert not (is_active and lost), "it lost a dependency, and is not forgotten"


def check_has_data(view: View, ts: TaskState) -> None:
    """Check that exactly the tasks in memory have data on a worker."""
    if ts.state == "memory":
        assert ts.who_has or ts in view.pending, "no worker has its data, and it is not released"
    else:
        assert not ts.who_has, "a worker has its data"


def check_blamed(view: View, ts: TaskState) -> None:
    """Check that exactly an erred task blames a task, and that has erred."""
    blame = ts.exception_blame
    if ts.state != "erred":
        assert blame is None or ts in view.pending, f"blames {blame!r}"
        return
    assert blame is not None, "no task is blamed"
    if blame.state == "erred":
        assert view.is_known(blame), f"blames {blame!r}, which is unknown"
    else:  # the blamed task may have been retried, and even forgotten, before the rest
        assert view.retry_is_coming(ts), f"blames {blame!r}, which has not erred"


def _is_scattered(ts: TaskState) -> bool:
    return ts.run_spec is None and ts.state == "memory"


def check_needed(view: View, ts: TaskState) -> None:
    """Check that a task that runs, waits or is in memory is wanted."""
    if (ts.state in ACTIVE_STATES or ts.state == "memory") and not _is_scattered(ts):
        checked = any(each in view.pending for each in (ts, *ts.dependents))
        assert checked or ts.who_wants or view.is_wanted(ts), "no client or task wants it"


def check_kept(view: View, ts: TaskState) -> None:
    """Check that a task without clients and dependents is forgotten."""
    kept = ts.who_wants or ts.dependents or ts in view.pending or _is_scattered(ts)
    assert kept, "no client wants it, nothing depends on it, and it is not forgotten"


def check_waits_for_something(view: View, ts: TaskState) -> None:
    """Check that a wanted task waits for something that is being done."""
    if ts in view.pending:
        return
    if ts.state == "waiting":
        assert ts.waiting_count or waits_for_retry(ts), "it waits for nothing, and is not placed"
        for dts in ts.dependencies:
            coming = dts.state in ACTIVE_STATES or dts in view.pending
            if dts.state == "erred":
                coming = view.retry_is_coming(dts)
            assert dts.who_has or coming, f"it waits for {dts!r}, for which nothing is done"
    elif ts.state == "released" and ts.run_spec is not None:
        assert not view.is_wanted(ts), "it is wanted, and nothing is done"


def check_inputs_there(view: View, ts: TaskState) -> None:
    """Check that a task in queued, no-worker or processing has its inputs in memory."""
    if ts.state in ("queued", "no-worker", "processing") and ts not in view.pending:
        for dts in ts.dependencies:
            assert dts.who_has or dts in view.pending, f"no worker has the data of {dts!r}"


def check_client(view: View, cs: ClientState) -> None:
    """Check that a client is in clients, and wants_what mirrors who_wants of known tasks."""
    assert view.state.clients.get(cs.client_key) is cs, "not in state.clients under its name"
    for ts in cs.wants_what:
        assert cs in ts.who_wants, f"{ts!r} is not wanted by it"
        assert view.is_known(ts), f"wants {ts!r}, which is unknown"


def check_retries(_view: object, state: SchedulerState) -> None:
    """Check that only waiting tasks wait for a retry, and that an alarm is set for it."""
    alarms = {(ts, when) for when, _, ts in state.task_policies.alarms}
    for ts in state.tasks.values():
        retry = ts.policies.pending_retry if ts.policies is not None else None
        if retry is not None:
            assert ts.state == "waiting", f"{ts!r} waits for a retry"
            assert (ts, retry.until) in alarms, f"no alarm is set for the retry of {ts!r}"


def check_second_runs(_view: object, state: SchedulerState) -> None:
    """Check that second runs are of processing tasks, on another worker, and occupy a thread."""
    found = [ts for ts in state.tasks.values() if second_run(ts.policies) is not None]
    known = state.task_policies.second_runs
    assert all(ts in known for ts in found) and len(found) == len(known), f"{found}, not {known}"
    for ts in found:
        second = second_run(ts.policies)
        assert second is not None and ts.processing_on is not None, f"{ts!r} is not processing"
        assert second.address != ts.processing_on.address, f"{ts!r} runs twice on a worker"
        ws = state.workers.get(second.address)
        assert ws is not None, f"{ts!r} has its second run on an unknown worker"
        assert ts.key in ws.extra_runs, f"{ts!r} occupies no thread of {ws!r}"
        assert second.run_id != ts.run_id, f"both runs of {ts!r} have the same number"
