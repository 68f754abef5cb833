"""Second copies: results that are expensive to compute again are also kept on another host.

A copy is made if the expected loss exceeds the cost of the copy: the probability that the only
worker with the result is lost before the result is released, times the seconds to compute it
again, against the seconds to transfer it. A result that was in memory for a time is expected to
stay there for as long again. Workers are lost as often as was observed. A worker that is paused
because of its memory, or that reported when it ends, is more likely to be lost. Without such
workers and observed losses, nothing is done.

The memory manager calls ``review`` in its interval. It does not drop the copies meanwhile.
"""

from __future__ import annotations

from itertools import islice
from typing import TypeAlias

from paceline.scheduler.core.state.estimates import data_nbytes, expected_duration
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState

from .memory import measured

#: Results that take less time are not noted, in seconds.
SECONDS_MIN = 0.5
#: Tasks visited to find what has to be computed again for a result.
LINEAGE_MAX = 20
#: Seconds that data is worth that cannot be computed again.
IRREPLACEABLE_SECONDS = 3600.0
#: Probability that a paused worker is lost.
PAUSED_RISK = 0.1
#: Losses, after decay, from which on results are noted.
LOSSES_MIN = 0.01
#: Candidates checked in one review.
CHECKED_MAX = 2_000
#: Results of workers that are noted in one review when second copies become active.
SCANNED_MAX = 5_000
#: Workers compared to place a copy.
WORKERS_COMPARED_MAX = 20
#: Part of its memory that a worker with a second copy may use before the copy is dropped.
KEPT_MAX = 0.75
#: Part of the bandwidth of all workers that copies may use.
BANDWIDTH_SHARE = 0.05
#: Time that a copy costs apart from its transfer, in seconds.
OVERHEAD_SECONDS = 0.01
#: Time after which a copy that has not arrived is requested again, in seconds.
REPEAT_SECONDS = 60.0

#: Worker -> tasks whose results it shall fetch.
Requests: TypeAlias = dict[WorkerState, list[TaskState]]


def note_result(state: SchedulerState, ts: TaskState, now: float) -> None:
    """Note that `ts` is in memory from `now` on, if it takes long to compute again."""
    seconds = seconds_to_repeat(state, ts)
    if seconds >= SECONDS_MIN and not ts.actor:
        state.second_copies.note(ts, seconds, now)


def seconds_to_repeat(state: SchedulerState, ts: TaskState) -> float:
    """Return how long it takes to compute `ts` again, with what is released by then.

    Data that was not computed counts as ``IRREPLACEABLE_SECONDS``.
    """
    if ts.run_spec is None:
        return IRREPLACEABLE_SECONDS
    seconds = 0.0
    found = {ts: None}
    tasks = [ts]
    while tasks:
        each = tasks.pop()
        seconds += expected_duration(state, each.group.prefix)
        for dts in each.dependencies:
            if len(found) == LINEAGE_MAX:
                break
            if not dts.who_wants and dts.run_spec is not None and dts not in found:
                found[dts] = None
                tasks.append(dts)
    return seconds


def review(state: SchedulerState, interval: float, now: float) -> Requests:
    """Decide which results are copied, and which copies are kept. Return the copies to request.

    It is called every `interval` seconds.
    """
    copies = state.second_copies
    copies.observe(len(state.workers), now)
    _activate(state)
    _scan(state, now)
    requests: Requests = {}
    budget = BANDWIDTH_SHARE * state.bandwidth * interval * len(state.running)
    for ts, candidate in list(islice(copies.candidates.items(), CHECKED_MAX)):
        copies.candidates.pop(ts)
        if ts.state != "memory" or not ts.who_has:
            copies.kept.pop(ts, None)
            continue
        copies.candidates[ts] = candidate  # to the end
        nbytes = data_nbytes(state, ts)
        seconds = nbytes / state.bandwidth + OVERHEAD_SECONDS
        if _risk(state, ts, now - candidate.since, now) * candidate.seconds <= seconds:
            copies.kept.pop(ts, None)
        elif len(ts.who_has) > 1:
            _keep_if_there_is_room(state, ts)
        elif budget > 0 and now >= candidate.requested_at + REPEAT_SECONDS:
            ws = _recipient(state, ts)
            if ws is not None:
                candidate.requested_at = now
                copies.requested += 1
                copies.kept[ts] = None
                requests.setdefault(ws, []).append(ts)
                budget -= nbytes
    return requests


def _activate(state: SchedulerState) -> None:
    """Start or stop noting results, if workers may be lost or no longer may."""
    copies = state.second_copies
    workers = state.workers.values()
    is_active = state.config.second_copies and (
        copies.losses >= LOSSES_MIN
        or bool(state.worker_ends.workers)
        or any(ws.status == "paused" for ws in workers)
    )
    if is_active != copies.is_active:
        copies.clear()
        copies.is_active = is_active
        if is_active:
            copies.unscanned.update(dict.fromkeys(workers))


def _scan(state: SchedulerState, now: float) -> None:
    """Note results that were there before, worker by worker."""
    copies = state.second_copies
    left = SCANNED_MAX
    while copies.unscanned and left > 0:
        ws = next(iter(copies.unscanned))
        del copies.unscanned[ws]
        left -= len(ws.has_what)
        for ts in ws.has_what:
            if ts not in copies.candidates:
                note_result(state, ts, now)


def _risk(state: SchedulerState, ts: TaskState, age: float, now: float) -> float:
    """Return the probability that `ts` is lost before it is released, if it has no second copy.

    It has been in memory for `age` seconds. If there are copies, the safest one counts.
    """
    by_chance = min(1.0, state.second_copies.losses_per_second * age)
    return max(by_chance, min(_risk_of_end(ws, age, now) for ws in ts.who_has))


def _risk_of_end(ws: WorkerState, age: float, now: float) -> float:
    """Return the probability that `ws` ends before a result is released that is `age` seconds old.

    If the result is expected to stay for as long again, that probability falls with the time that
    `ws` has left as ``age / (age + left)``.
    """
    if ws.status == "paused":
        return PAUSED_RISK
    if not ws.ends_at:
        return 0.0
    left = max(0.0, ws.ends_at - now)
    return age / (age + left) if age > 0 else 0.0


def _keep_if_there_is_room(state: SchedulerState, ts: TaskState) -> None:
    """Keep two replicas of `ts`, unless a holder is short of memory."""
    if all(_has_room(state, ws, KEPT_MAX) for ws in islice(ts.who_has, 2)):
        state.second_copies.kept[ts] = None
    else:
        state.second_copies.kept.pop(ts, None)


def _has_room(state: SchedulerState, ws: WorkerState, fraction: float) -> bool:
    """Return whether `ws` uses less than `fraction` of its memory."""
    limit = ws.memory_limit
    return not limit or measured(ws, state.config.amm_measure) < fraction * limit


def _recipient(state: SchedulerState, ts: TaskState) -> WorkerState | None:
    """Return the worker for a second copy of `ts`, on another host if possible, or None."""
    workers = state.running
    start = state.second_copies.requested % max(1, len(workers))
    hosts = [ws.host for ws in ts.who_has]
    best: WorkerState | None = None
    best_cost = (False, False, 0)
    for ws in islice([*islice(workers, start, None), *workers], WORKERS_COMPARED_MAX):
        if ws not in ts.who_has and _has_room(state, ws, state.config.rebalance_recipient_max):
            # a worker that ends is no safer than the holder
            cost = (bool(ws.ends_at), ws.host in hosts, measured(ws, state.config.amm_measure))
            if best is None or cost < best_cost:
                best, best_cost = ws, cost
    return best
