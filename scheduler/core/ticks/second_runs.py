"""Second runs of tasks that take much longer than usual, on workers with a free thread.

A task is a straggler if it has been executing for a multiple of the usual time of its prefix. It
gets a second run if it is annotated with ``speculative=True``, or if the configuration enables that
for all tasks; then the number of second runs is limited. The first result counts. Actors, tasks
that seceded or need resources, tasks of a share group with a cap, and tasks annotated with
``pure=False`` get none.
"""

from __future__ import annotations

from paceline.scheduler.core.lifecycle.extra_runs import add_extra_run
from paceline.scheduler.core.lifecycle.outgoing import compute_message
from paceline.scheduler.core.lifecycle.second_runs import drop_second_run
from paceline.scheduler.core.policy import admission, placement
from paceline.scheduler.core.policy.worker_ends import can_finish
from paceline.scheduler.core.state.estimates import usual_duration
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_policies import SecondRun, TaskPolicies, second_run
from paceline.scheduler.core.state.workers.loads import is_available, usable_threads
from paceline.scheduler.core.task_policy import TaskPolicy
from paceline.scheduler.core.turn import Turn

#: Seconds by which a straggler exceeds the usual time at least.
EXCESS_SECONDS_MIN = 1.0
#: Share of all tasks sent to workers that may get a second run without an annotation.
SECOND_RUNS_SHARE = 0.02


def is_second_run(ts: TaskState, address: str, run_id: int) -> bool:
    """Return whether `run_id` is the second run of `ts`, on the worker `address`."""
    second = second_run(ts.policies)
    return second is not None and second.run_id == run_id and second.address == address


def second_run_failed(turn: Turn, ts: TaskState) -> None:
    """Drop the second run of `ts`, if there is one still, and let there be no other."""
    drop_second_run(turn, ts)
    if ts.policies is not None:
        ts.policies.second_failed = True


def check_stragglers(turn: Turn) -> None:
    """Send second runs of stragglers to workers with a free thread, unless tasks are queued."""
    state = turn.state
    if not (state.config.speculation or state.task_policies.has_speculative) or len(state.queued):
        return
    found: list[tuple[float, TaskState]] = []
    for ws in state.workers.values():
        for ts, seconds in ws.executing.items():
            if ts.processing_on is ws and _may_run_twice(state, ts, ws):
                usual = usual_duration(ts.group.prefix)
                running = seconds + turn.now - ws.executing_at
                limit = max(state.config.speculation_factor * usual, usual + EXCESS_SECONDS_MIN)
                if usual >= 0 and running > limit:
                    found.append((running - usual, ts))
    found.sort(key=lambda each: -each[0])
    for _, ts in found:
        if not _is_allowed(state, ts):
            continue
        thief = _thief(state, ts)
        if thief is not None:
            _start(turn, ts, thief)


def _may_run_twice(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ts`, which executes on `ws`, may get a second run."""
    if ts.actor or ts in ws.long_running or ts.resource_restrictions or ts.account.share.is_capped:
        return False
    if ts in state.whole_workers.due:
        return False
    policies = ts.policies
    if policies is None:
        return state.config.speculation
    policy = policies.policy
    if policies.second is not None or policies.second_failed or not policy.pure:
        return False
    return state.config.speculation if policy.speculative is None else policy.speculative


def _is_allowed(state: SchedulerState, ts: TaskState) -> bool:
    """Return whether the limit of second runs allows one of `ts`."""
    if ts.policies is not None and ts.policies.policy.speculative:
        return True
    return state.task_policies.second_run_count <= SECOND_RUNS_SHARE * state.n_tasks


def _thief(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return the worker that may run `ts` a second time, or None.

    It has a free thread and the memory for `ts`, and the fewest tasks per thread of such workers.
    """
    allowed = placement.allowed_workers(state, ts)
    best: WorkerState | None = None
    for ws in state.running if allowed is None else allowed:
        if ws is ts.processing_on or not is_available(ws) or ts.key in ws.extra_runs:
            continue
        if len(ws.processing) >= usable_threads(ws) or not can_finish(state, ts, ws):
            continue
        if state.admission.is_short and not admission.fits(state, ts, ws):
            continue
        if best is None or len(ws.processing) * best.nthreads < len(best.processing) * ws.nthreads:
            best = ws
    return best


def _start(turn: Turn, ts: TaskState, ws: WorkerState) -> None:
    """Send a second run of `ts` to `ws`."""
    state = turn.state
    details = ts.ensure_details()
    policies = details.policies
    if policies is None:
        policies = details.policies = TaskPolicies(TaskPolicy())
    first_id, sent_at = ts.run_id, policies.sent_at
    message = compute_message(turn, ts)
    policies.second = SecondRun(ws.address, ts.run_id, turn.now)
    ts.run_id, policies.sent_at = first_id, sent_at
    state.task_policies.second_runs[ts] = None
    state.task_policies.second_run_count += 1
    add_extra_run(state, ws, ts.key, ts.account)
    turn.to_worker(ws.address, message)
    first = ts.processing_on
    turn.log_event(
        "scheduler",
        {
            "action": "second-run",
            "key": ts.key,
            "first": first.address if first is not None else None,
            "second": ws.address,
        },
    )
