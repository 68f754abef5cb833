"""The first stage of a commit: rows become tasks, dependencies first."""

from __future__ import annotations

from typing import Any

from paceline.scheduler.core.graphs.graph_spans import note_span
from paceline.scheduler.core.lifecycle import accounting, charges
from paceline.scheduler.core.lifecycle.new_tasks import add_task, get_group
from paceline.scheduler.core.state.addresses import address_or_host
from paceline.scheduler.core.state.graphs.pending_graph import PendingGraph
from paceline.scheduler.core.state.model import TaskGroup, TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import Account
from paceline.scheduler.core.state.task_policies import TaskPolicies
from paceline.scheduler.core.state.task_states import ACTIVE_STATES
from paceline.scheduler.core.stimuli import AnnotationSet, GraphChunk
from paceline.scheduler.core.task_policy import TaskPolicy
from paceline.scheduler.core.turn import WARNING, Turn


def insert(turn: Turn, graph: PendingGraph, rows: range) -> None:
    """Create the tasks of ``rows``, or complete those that are known already."""
    first = rows.start
    while first < rows.stop:
        chunk = graph.chunks[0]
        end = graph.first_row + len(chunk.keys)
        last = min(rows.stop, end)
        _insert_rows(turn, graph, chunk, range(first, last))
        if last == end:
            graph.chunks.popleft()
            graph.first_row = end
        first = last


def _insert_rows(turn: Turn, graph: PendingGraph, chunk: GraphChunk, rows: range) -> None:
    """Insert ``rows``, which are in ``chunk``."""
    state = turn.state
    tasks = graph.tasks
    externals = graph.external_tasks
    collisions = graph.collisions
    account = graph.account
    assert account is not None
    groups: dict[int, TaskGroup] = {}  # groups are not removed within a turn
    producers = frozenset(chunk.data_producers)
    assert graph.commit is not None
    has_priorities = bool(graph.commit.user_priority)
    for row in rows:
        position = row - graph.first_row
        key = graph.keys[row]
        dependencies = tuple(
            [tasks[n] if n >= 0 else externals[-1 - n] for n in graph.dependencies[row]]
        )
        ts = state.tasks.get(key)
        number = chunk.annotations.get(position)
        if ts is None:
            group_number = chunk.groups[position]
            group = groups.get(group_number)
            if group is None:
                group = groups[group_number] = _group_of(turn, graph, group_number)
            ts = add_task(state, key, group, account, graph.run_spec(chunk, position))
            graph.new_tasks.append(ts)
            _specify(turn, graph, ts, number, position in producers)
        else:
            if graph.placeholder_client is not None:  # it may be about to be forgotten
                accounting.add_desire(ts, graph.placeholder_client)
            if ts.run_spec is None:
                ts.run_spec = graph.run_spec(chunk, position)
                charges.set_account(state, ts, account)
                _specify(turn, graph, ts, number, position in producers)
            elif not _accepts_dependencies(ts, dependencies):
                collisions[row] = None
                _warn_collision(turn, graph, ts, dependencies)
        tasks.append(ts)
        if dependencies and row not in collisions:
            for dts in dependencies:
                if dts.state == "forgotten":  # after the commit began
                    ts.has_lost_dependencies = True
                    dependencies = tuple(d for d in dependencies if d.state != "forgotten")
                    break
            accounting.add_dependencies(ts, dependencies)
        if ts.priority is None:
            if has_priorities or (number is not None and graph.affects_scheduling[number]):
                ts.priority = _priority(state, ts, graph, chunk.priorities[position], number)
            else:
                ts.priority = 0, graph.generation, chunk.priorities[position]


def _specify(
    turn: Turn, graph: PendingGraph, ts: TaskState, number: int | None, data_producer: bool
) -> None:
    """Apply annotation set ``number``, and whether ``ts`` produces data."""
    state = turn.state
    if number is not None:
        annotations = graph.annotation_sets[number]
        ts.annotations = annotations.value
        if graph.affects_scheduling[number]:
            _annotate(turn, ts, annotations)
            if annotations.group is not None:
                account = _annotated_account(turn, graph, number, annotations.group)
                charges.set_account(state, ts, account)
        group = ts.group
        if group.span_id is not None or graph.spans.get(group) is not annotations.span:
            note_span(graph, ts, annotations)
    elif ts.group.span_id is not None:
        graph.other_spans.append((ts, None))
    ts.data_producer = data_producer


def _accepts_dependencies(ts: TaskState, dependencies: tuple[TaskState, ...]) -> bool:
    """Return whether the known task ``ts`` has these dependencies, or has lost some of them.

    In the latter case ``has_lost_dependencies`` is cleared; the caller restores the dependencies.
    """
    present = ts.dependencies
    if present == dependencies:
        return True
    if len(present) == len(dependencies):
        known = dict.fromkeys(present)
        return all(d in known for d in dependencies)
    if not ts.has_lost_dependencies or ts.state in ACTIVE_STATES:
        return False
    known = dict.fromkeys(dependencies)
    if any(d.state == "forgotten" for d in dependencies) or any(d not in known for d in present):
        return False
    ts.has_lost_dependencies = False
    return True


def _group_of(turn: Turn, graph: PendingGraph, number: int) -> TaskGroup:
    name, prefix = graph.group_names[number]
    return get_group(turn.state, name, prefix, graph.computation)


def _priority(
    state: SchedulerState, ts: TaskState, graph: PendingGraph, place: int, number: int | None
) -> tuple[float, ...]:
    user: Any = None if number is None else graph.annotation_sets[number].priority
    if user is None:
        commit = graph.commit
        assert commit is not None
        user = commit.user_priority
        if isinstance(user, dict):
            user = user.get(ts.key, 0)
    if user:
        state.shares.n_prioritized += 1
    return -user, graph.generation, place


def _annotated_account(turn: Turn, graph: PendingGraph, number: int, group: str) -> Account:
    """Return the account of tasks with annotation set `number`, which names a share group.

    It is that of the graph, and the log has a warning, if the configuration allows no annotations.
    """
    account = graph.annotated_accounts.get(number)
    if account is None:
        account = graph.account
        assert account is not None
        if turn.state.config.shares_annotations:
            account = turn.state.shares.account(account.client, group)
        else:
            turn.log(
                WARNING,
                f"Ignoring the annotation group={group!r} of tasks of {graph.client}; to allow it, "
                "set paceline.shares.annotations",
            )
        graph.annotated_accounts[number] = account
    return account


def _annotate(turn: Turn, ts: TaskState, annotations: AnnotationSet) -> None:
    if annotations.retries is not None:
        ts.retries = annotations.retries
    if annotations.policy is not None:
        _apply_policy(turn.state, ts, annotations.policy)
    if not annotations.restricts:
        return
    details = ts.ensure_details()
    if annotations.workers is not None:
        hosts: dict[str, None] = {}
        workers: dict[str, None] = {}
        for name in annotations.workers:
            address = address_or_host(turn.state, name)
            if address is None:
                hosts[str(name)] = None
            else:
                workers[address] = None
        details.host_restrictions = hosts or None
        details.worker_restrictions = workers or None
    details.loose_restrictions = annotations.allow_other_workers
    if annotations.resources is not None:
        details.resource_restrictions = annotations.resources


def _apply_policy(state: SchedulerState, ts: TaskState, policy: TaskPolicy) -> None:
    """Set the policies of `ts`."""
    ts.ensure_details().policies = TaskPolicies(policy)
    if policy.timeout_seconds:
        state.task_policies.has_timeouts = True
    if policy.speculative:
        state.task_policies.has_speculative = True
    if policy.deadline:
        state.task_policies.set_alarm(policy.deadline, ts)


def _warn_collision(
    turn: Turn, graph: PendingGraph, ts: TaskState, dependencies: tuple[TaskState, ...]
) -> None:
    if ts.group in graph.warned_groups:
        return
    graph.warned_groups[ts.group] = None
    turn.log(
        WARNING,
        f"Detected different `run_spec` for key {ts.key!r} between "
        "two consecutive calls to `update_graph`. "
        "This can cause failures and deadlocks down the line. "
        "Please ensure unique key names. "
        "If you are using a standard dask collections, consider "
        "releasing all the data before resubmitting another "
        "computation. More details and help can be found at "
        "https://github.com/dask/dask/issues/9888. "
        f"\nDebugging information\n---------------------\nold task state: {ts.state}\n"
        f"old dependencies: {_braced(ts.dependencies)}\n"
        f"new dependencies: {_braced(dependencies)}\n",
    )


def _braced(tasks: tuple[TaskState, ...]) -> str:
    """Return keys in the notation of a set, in order."""
    return "{" + ", ".join(repr(ts.key) for ts in tasks) + "}"
