"""Checks of task groups, prefixes, and graphs that are being received."""

from __future__ import annotations

from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.containers import add_up
from paceline.scheduler.core.state.model import TaskGroup, TaskPrefix
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import TASK_STATES

from .view import View, is_close


def check_group(view: View, group: TaskGroup) -> None:
    """Check that a group is in task_groups and its prefix, and not empty."""
    state = view.state
    assert state.task_groups.get(group.name) is group, "not in state.task_groups under its name"
    assert not group.empty, "all its tasks are forgotten"
    counts = group.counts
    assert sum(counts) == group.n_added, f"{group.n_added} tasks were added: {group.states}"
    assert min(counts) >= 0, f"its states are {group.states}"
    prefix = group.prefix
    assert state.task_prefixes.get(prefix.name) is prefix, f"its prefix {prefix!r} is unknown"
    assert group in prefix.groups, f"its prefix {prefix!r} does not have it"


def check_prefix(view: View, prefix: TaskPrefix) -> None:
    """Check that a prefix has only groups that are known."""
    idle = prefix.name in view.state.idle_prefixes
    assert idle is not bool(prefix.group_table), "it is idle with groups, or neither"
    for group in prefix.groups:
        known = view.state.task_groups.get(group.name) is group
        assert known, f"its group {group!r} is unknown"


def check_group_counts(view: View, state: SchedulerState) -> None:
    """Check that a group's states count its tasks."""
    counts = {group: dict.fromkeys(TASK_STATES, 0) for group in state.task_groups.values()}
    for ts in state.tasks.values():
        counts[ts.group][ts.state] += 1
    for group, states in counts.items():
        states["forgotten"] = group.states["forgotten"]
        assert states == group.states, f"{group!r} has {states}"


def check_prefix_counts(view: View, state: SchedulerState) -> None:
    """Check that processing_count and compute_occupancy follow from the processing tasks."""
    counts: dict[TaskPrefix, int] = {}
    for ts in state.tasks.values():
        ws = ts.processing_on
        if ws is not None and ts not in ws.long_running:
            add_up(counts, {ts.prefix: 1})
    seconds = 0.0
    for prefix in state.task_prefixes.values():
        found, expected = prefix.processing_count, counts.get(prefix, 0)
        assert found == expected, f"{prefix!r} counts {found} processing, not {expected}"
        seconds += estimates.expected_duration(state, prefix) * found
    is_equal = is_close(state.compute_occupancy, seconds)
    assert is_equal, f"compute_occupancy is {state.compute_occupancy}, not {seconds}"


def check_pending_graphs(view: View, state: SchedulerState) -> None:
    """Check that graphs have made no tasks before their commit, and that their clients exist."""
    commits = state.deferred.commits
    for number, graph in state.graphs.items():
        assert graph.graph_id == number, f"graph {graph.graph_id} is stored under {number}"
        known = graph.client in state.clients or graph.dropped
        assert known, f"graph {number} is of client {graph.client!r}, which is gone"
        committed = graph.commit is not None
        assert committed == (graph in commits), f"graph {number} was committed, or not"
        begun = graph.tasks or graph.new_tasks or graph.placeholder_client
        assert not begun or graph is commits[0], f"graph {number} has made tasks before its turn"
    for graph in commits:
        known = state.graphs.get(graph.graph_id) is graph or graph.dropped or graph.stage == "done"
        assert known, f"graph {graph.graph_id} is being committed, and is not known"
