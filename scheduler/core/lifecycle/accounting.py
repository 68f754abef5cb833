"""Accounting: change paired facts such as ``who_has`` and ``has_what`` together.

The pairs are who_has/has_what with the counts that follow, who_wants/wants_what,
processing_on/processing with occupancy, and dependencies/dependents.
"""

from __future__ import annotations

from typing import Final

from paceline.scheduler.core.state.containers import add_up, with_item, without_item
from paceline.scheduler.core.state.estimates import (
    data_nbytes,
    expected_duration,
    is_duration_known,
)
from paceline.scheduler.core.state.model import (
    ClientState,
    TaskGroup,
    TaskPrefix,
    TaskState,
    WorkerState,
)
from paceline.scheduler.core.state.scheduler_state import SchedulerState

from .extra_runs import remove_extra_run
from .task_memory import expect_results

#: Transfers of a task with more dependencies than this are not counted as work of its worker.
NEEDS_MAX: Final = 20_000
#: Number of group dependencies from which finished ones are dropped. A root-ish group has far
#: fewer.
GROUP_DEPENDENCIES_MIN = 64
#: Actions whose durations a group sums; stock workers report five.
ACTIONS_MAX = 50
#: Prefixes without groups whose durations are kept; the least recently used is dropped first.
IDLE_PREFIXES_MAX = 10_000
#: A task is an outlier if it takes this many times the average of its prefix, and more than this
#: many seconds.
OUTLIER_FACTOR, OUTLIER_SECONDS_MIN = 4, 0.02
#: This many outliers in a row count in full: the tasks take longer now.
OUTLIERS_MAX = 3

# ------------------------------------------------------------------ data: who_has, has_what


def set_nbytes(state: SchedulerState, ts: TaskState, nbytes: int) -> None:
    """Set the size of the result of `ts` to `nbytes`, also on the workers that hold it."""
    ts.group.nbytes_total += nbytes - (ts.nbytes if ts.nbytes >= 0 else 0)
    if ts.who_has:
        before = data_nbytes(state, ts)
        ts.account.nbytes += (nbytes - before) * len(ts.who_has)
        for ws in ts.who_has:
            ws.nbytes += nbytes - before
        if nbytes != before:
            _resize_transfers(state, ts, nbytes - before)
    ts.nbytes = nbytes


def _resize_transfers(state: SchedulerState, ts: TaskState, growth: int) -> None:
    """Add `growth` bytes to the transfers of workers that fetch `ts` for dependents."""
    for ws in dict.fromkeys([dts.processing_on for dts in ts.dependents]):
        if ws is not None and ts in ws.needs_what:
            ws.network_occ += growth
            state.network_occ += growth


def add_replica(state: SchedulerState, ts: TaskState, ws: WorkerState) -> None:
    """Record that `ws` holds the result of `ts`; dependents may become ready."""
    has_what = ws.has_what
    if ts in has_what:
        return
    nbytes = data_nbytes(state, ts)
    if ws.needs_what and ws.needs_what.pop(ts, 0):
        _take_network(state, ws, nbytes)
    has_what[ts] = None
    ws.nbytes += nbytes
    ts.account.nbytes += nbytes
    holders = ts.who_has
    if holders:
        if ws.nbytes > ws.watched_nbytes:
            state.admission.is_short = True
        ts.account.moved_nbytes += nbytes
        ts.who_has = with_item(holders, ws)
        if len(ts.who_has) == 2:
            state.replicated_tasks[ts] = None
        return
    ts.who_has = (ws,)
    for dependent in ts.dependents:
        if dependent.state == "waiting":
            dependent.waiting_count -= 1


def remove_replica(state: SchedulerState, ts: TaskState, ws: WorkerState) -> None:
    """Record that `ws` no longer holds the result of `ts`."""
    if ts not in ws.has_what:
        return
    del ws.has_what[ts]
    nbytes = data_nbytes(state, ts)
    _take_nbytes(ws, nbytes)
    ts.account.nbytes -= nbytes
    if len(ts.who_has) == 2:
        state.replicated_tasks.pop(ts, None)
    ts.who_has = without_item(ts.who_has, ws)
    if not ts.who_has:
        _data_is_gone(ts)


def _take_nbytes(ws: WorkerState, nbytes: int) -> None:
    """Subtract a result of `nbytes` bytes from those of `ws`, which may have spilled it."""
    if ws.spilled_nbytes and nbytes:
        ws.spilled_nbytes -= ws.spilled_nbytes * nbytes // ws.nbytes
    ws.nbytes -= nbytes


def remove_all_data(state: SchedulerState, ws: WorkerState) -> list[TaskState]:
    """Remove all results from `ws`. Return the tasks without another replica, in order."""
    alone: list[TaskState] = []
    for ts in list(ws.has_what):
        holders = ts.who_has
        if len(holders) > 1:
            remove_replica(state, ts, ws)
            continue
        ts.who_has = ()
        ts.account.nbytes -= data_nbytes(state, ts)
        if ts.dependents:
            _data_is_gone(ts)
        alone.append(ts)
    ws.has_what.clear()
    ws.nbytes = ws.spilled_nbytes = 0
    return alone


def remove_all_replicas(state: SchedulerState, ts: TaskState) -> None:
    """Remove the result of `ts` from all workers."""
    if not ts.who_has:
        return
    nbytes = data_nbytes(state, ts)
    ts.account.nbytes -= nbytes * len(ts.who_has)
    for ws in ts.who_has:
        _take_nbytes(ws, nbytes)
        del ws.has_what[ts]
    if len(ts.who_has) > 1:
        state.replicated_tasks.pop(ts, None)
    ts.who_has = ()
    if ts.waiters_count:
        _data_is_gone(ts)


def _data_is_gone(ts: TaskState) -> None:
    for dependent in ts.dependents:
        if dependent.state == "waiting":
            dependent.waiting_count += 1


# ------------------------------------------------------------------ desires: who_wants, wants_what


def add_desire(ts: TaskState, cs: ClientState) -> None:
    """Record that the client `cs` has a future of `ts`."""
    if ts not in cs.wants_what:
        cs.wants_what[ts] = None
        ts.who_wants = with_item(ts.who_wants, cs)


def remove_desire(ts: TaskState, cs: ClientState) -> None:
    """Record that the client `cs` no longer has a future of `ts`."""
    if cs.wants_what.pop(ts, 0) is None:
        ts.who_wants = without_item(ts.who_wants, cs)


# ------------------------------------------------------------------ edges: dependencies, dependents


def add_dependencies(ts: TaskState, dependencies: tuple[TaskState, ...]) -> None:
    """Add `dependencies` to `ts`, without those that it already has."""
    present = ts.dependencies
    if present:
        known = dict.fromkeys(present)
        dependencies = tuple(d for d in dependencies if d not in known)
        if not dependencies:
            return
    ts.dependencies = present + dependencies
    group_dependencies = ts.group.dependency_table
    alone = (ts,)
    group = None
    for dts in dependencies:
        dependents = dts.dependents
        dts.dependents = with_item(dependents, ts) if dependents else alone
        if dts.group is not group:
            group = dts.group
            if group not in group_dependencies:
                _add_group_dependency(group_dependencies, group)


def _add_group_dependency(table: dict[TaskGroup, None], group: TaskGroup) -> None:
    """Add `group` to `table`; at each power of two, drop the older half of the finished groups.

    A group that one graph after the other uses would otherwise collect dependencies forever.
    """
    n = len(table)
    if n >= GROUP_DEPENDENCIES_MIN and not n & (n - 1):  # at each power of two
        for each in [each for each in table if each.empty][: n // 2]:
            del table[each]
    table[group] = None


def remove_dependency(state: SchedulerState, ts: TaskState, dts: TaskState) -> None:
    """Remove `dts`, which is forgotten, from the dependencies of `ts`.

    `ts` can never run again.
    """
    ws = ts.processing_on
    if ws is not None and dts in ws.needs_what:
        _drop_need(state, dts, ws)
    ts.dependencies = tuple(d for d in ts.dependencies if d is not dts)
    if ts.state == "waiting" and not dts.who_has:
        ts.waiting_count -= 1


# ------------------------------------------------------------------ work: processing and occupancy


def _now_known(state: SchedulerState, prefix: TaskPrefix) -> None:
    """Count `prefix` among the known ones on all workers; once in the life of a prefix."""
    for ws in state.workers.values():
        count = ws.unknown_duration_count.pop(prefix, 0)
        if count:
            ws.unknown_duration_total -= count
            ws.task_prefix_count[prefix] = count


def set_duration_average(state: SchedulerState, prefix: TaskPrefix, seconds: float) -> None:
    """Set the moving average to `seconds`, and adjust the expected work of processing tasks."""
    if prefix.processing_count:
        if not is_duration_known(prefix):
            _now_known(state, prefix)
        longer = seconds - expected_duration(state, prefix)
        state.compute_occupancy += longer * prefix.processing_count
    prefix.duration_average = seconds


def add_exec_time(state: SchedulerState, prefix: TaskPrefix, seconds: float) -> None:
    """Record that a task of `prefix` has been executing for `seconds` and has not finished."""
    if seconds <= 0:
        return
    if not is_duration_known(prefix):
        _now_known(state, prefix)
    before = expected_duration(state, prefix)
    prefix.max_exec_time = max(seconds, prefix.max_exec_time)
    if seconds > 2 * prefix.duration_average:
        if prefix.duration_average >= 0:
            prefix.duration_before = prefix.duration_average
        prefix.duration_average = -1.0
    after = expected_duration(state, prefix)
    state.compute_occupancy += (after - before) * prefix.processing_count


def add_duration(
    state: SchedulerState, group: TaskGroup, action: str, start: float, stop: float
) -> None:
    """Add `action` of a task of `group`, from `start` to `stop` in seconds since the epoch."""
    seconds = stop - start if stop > start else 0.0
    group.duration += seconds
    durations = group.all_durations
    if action not in durations and len(durations) >= ACTIONS_MAX:
        action = "(other)"
    durations[action] = durations.get(action, 0.0) + seconds
    prefix = group.prefix
    if action == "compute":
        group.stop = max(group.stop, stop)
        if group.start > start or not group.start:
            group.start = start
        old = prefix.duration_average
        if old < 0:
            set_duration_average(state, prefix, _first_again(prefix, seconds))
        else:
            if seconds > OUTLIER_SECONDS_MIN or prefix.outliers:
                seconds = _counts_as(prefix, old, seconds)
            average = 0.5 * seconds + 0.5 * old
            prefix.duration_average = average
            state.compute_occupancy += (average - old) * prefix.processing_count


def _counts_as(prefix: TaskPrefix, average: float, seconds: float) -> float:
    """Return the duration with which a task that took `seconds` enters the average.

    An outlier counts less, unless it is one of several. Stock always weighs it by half. Dependents
    of such a task become ready at that moment: they would be expected to take as long, and be
    placed far from the large result that took so long to compute.
    """
    limit = max(OUTLIER_SECONDS_MIN, OUTLIER_FACTOR * average)
    if seconds <= limit:
        prefix.outliers = 0
        return seconds
    prefix.outliers += 1
    return limit if prefix.outliers < OUTLIERS_MAX else seconds


def _first_again(prefix: TaskPrefix, seconds: float) -> float:
    """Return the average after the first task, or the first since one executed for much longer."""
    before, prefix.duration_before = prefix.duration_before, -1.0
    if before < 0:
        return seconds
    counted = _counts_as(prefix, before, seconds)
    return seconds if counted == seconds else 0.5 * before + 0.5 * counted


def start_processing(state: SchedulerState, ts: TaskState, ws: WorkerState) -> None:
    """Assign `ts` to `ws`; its missing dependencies count as transfers."""
    if ws.extra_runs:  # the worker resumes a run that it was asked to forget
        remove_extra_run(state, ws, ts.key)
    if ws.released_runs:
        ws.released_runs.pop(ts.key, None)
    ts.processing_on = ws
    prefix = ts.group.prefix
    seconds = prefix.duration_average
    if seconds >= 0 or prefix.max_exec_time > 0:
        counts = ws.task_prefix_count
    else:
        counts = ws.unknown_duration_count
        ws.unknown_duration_total += 1
    counts[prefix] = counts.get(prefix, 0) + 1
    prefix.processing_count += 1
    if seconds < 0:
        seconds = expected_duration(state, prefix)
    state.compute_occupancy += seconds
    processing = ws.processing
    processing[ts] = seconds
    expect_results(state, ts.group, ws)
    state.shares.start_task(ts.account.share, ws, seconds)
    if ts.dependencies:
        _add_needs(state, ts, ws)
    if ts.details is not None:
        add_up(ws.used_resources, ts.resource_restrictions or {})


def stop_processing(state: SchedulerState, ts: TaskState) -> WorkerState:
    """Remove `ts` from the work of its worker. Return the worker, which may be removed already."""
    ws = ts.processing_on
    assert ws is not None, ts
    ts.processing_on = None
    processing = ws.processing
    state.shares.refund(ts.account.share, processing.pop(ts))
    if ws.long_running and ts in ws.long_running:
        del ws.long_running[ts]
    else:
        _leave_prefix_count(state, ts, ws)
    needs = ws.needs_what
    if not processing:  # nothing is fetched for a task any more
        if ws.network_occ:
            _take_network(state, ws, ws.network_occ)
        needs.clear()
    elif needs and len(ts.dependencies) <= NEEDS_MAX:
        for dts in ts.dependencies:
            if dts in needs:
                _drop_need(state, dts, ws)
    if ts.details is not None:
        _free_resources(ts, ws)
    return ws


def _free_resources(ts: TaskState, ws: WorkerState) -> None:
    used = ws.used_resources
    for resource, amount in (ts.resource_restrictions or {}).items():
        used[resource] = used.get(resource, 0) - amount


def set_resource_restrictions(ts: TaskState, amounts: dict[str, float] | None) -> None:
    """Set the resources that `ts` needs, also in the resources used on its worker."""
    ws = ts.processing_on
    if ws is not None:
        _free_resources(ts, ws)
        add_up(ws.used_resources, amounts or {})
    ts.ensure_details().resource_restrictions = amounts


def start_long_running(state: SchedulerState, ts: TaskState, ws: WorkerState) -> None:
    """Record that `ts` seceded: it stays in ``processing``, but is no longer work of `ws`."""
    if ts not in ws.long_running:
        ws.long_running[ts] = None
        _leave_prefix_count(state, ts, ws)


def _leave_prefix_count(state: SchedulerState, ts: TaskState, ws: WorkerState) -> None:
    prefix = ts.group.prefix
    state.shares.end_task(ts.account.share, ws)
    counts = ws.task_prefix_count
    if prefix not in counts:
        counts = ws.unknown_duration_count
        ws.unknown_duration_total -= 1
    left = counts[prefix] - 1
    if left:
        counts[prefix] = left
    else:
        del counts[prefix]
    seconds = prefix.duration_average
    state.compute_occupancy -= seconds if seconds >= 0 else expected_duration(state, prefix)
    prefix.processing_count -= 1


def _add_needs(state: SchedulerState, ts: TaskState, ws: WorkerState) -> None:
    """Record the dependencies of `ts` that `ws` has to fetch."""
    has_what = ws.has_what
    needs = ws.needs_what
    if len(ts.dependencies) > NEEDS_MAX:
        return
    total = 0
    default = state.config.default_data_size_nbytes
    for dts in ts.dependencies:
        if dts in has_what:
            continue
        count = needs.get(dts, 0)
        needs[dts] = count + 1
        if not count:
            total += dts.nbytes if dts.nbytes >= 0 else default
    ws.network_occ += total
    state.network_occ += total


def _drop_need(state: SchedulerState, dts: TaskState, ws: WorkerState) -> None:
    count = ws.needs_what[dts]
    if count > 1:
        ws.needs_what[dts] = count - 1
    else:
        del ws.needs_what[dts]
        _take_network(state, ws, data_nbytes(state, dts))


def _take_network(state: SchedulerState, ws: WorkerState, nbytes: int) -> None:
    there = ws.network_occ
    taken = nbytes if nbytes < there else there
    ws.network_occ = there - taken
    total = state.network_occ
    state.network_occ = total - taken if taken < total else 0


# ------------------------------------------------------------------ groups


def forget_group(state: SchedulerState, group: TaskGroup) -> None:
    """Remove `group` from the tables and its prefix if all its tasks are forgotten."""
    if not group.empty or state.task_groups.get(group.name) is not group:
        return
    del state.task_groups[group.name]
    gone = state.spans.group_over(group)
    if gone is not None:
        gone.dependency_table.clear()
        for computation in reversed(state.computations):  # usually one of the latest
            if computation.drop_group(gone):
                break
    prefix = group.prefix
    prefix.group_table.pop(group, None)
    add_up(prefix.durations_over, group.all_durations)
    if not prefix.group_table:
        state.idle_prefixes[prefix.name] = None
        if len(state.idle_prefixes) > IDLE_PREFIXES_MAX:
            _drop_prefix(state, next(iter(state.idle_prefixes)))


def _drop_prefix(state: SchedulerState, name: str) -> None:
    """Drop a prefix without groups; keep its sums in ``state.dropped_prefixes``."""
    del state.idle_prefixes[name]
    prefix = state.task_prefixes.pop(name)
    dropped = state.dropped_prefixes
    dropped.suspicious += prefix.suspicious
    dropped.entered = [n + more for n, more in zip(dropped.entered, prefix.entered, strict=True)]
    add_up(dropped.durations_over, prefix.durations_over)
