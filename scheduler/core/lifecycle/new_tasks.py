"""Create tasks, groups and prefixes."""

from __future__ import annotations

from typing import Any

from paceline.protocol.keys import Key, key_group, key_split
from paceline.protocol.payload import Payload
from paceline.scheduler.core.state.graphs.computations import Computation
from paceline.scheduler.core.state.model import TaskGroup, TaskPrefix, TaskState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import Account
from paceline.scheduler.core.state.task_states import STATE_NUMBERS


def new_task(state: SchedulerState, key: Key, client: str) -> TaskState:
    """Create a task of `client` in state released, and its group if it is the first task of it."""
    group = get_group(state, key_group(key), key_split(key))
    return add_task(state, key, group, state.shares.account(client), None)


def add_task(
    state: SchedulerState,
    key: Key,
    group: TaskGroup,
    account: Account,
    run_spec: bytes | Payload | None,
) -> TaskState:
    """Create a task of `group` in state released."""
    ts = TaskState(key, group, account, run_spec)
    account.n_tasks += 1
    group.n_added += 1
    group.counts[STATE_NUMBERS["released"]] += 1
    state.tasks[key] = ts
    return ts


def get_group(
    state: SchedulerState, name: Any, prefix_name: str, computation: Computation | None = None
) -> TaskGroup:
    """Return the group `name`; create it and its prefix if they are missing."""
    group = state.task_groups.get(name)
    if group is None:
        prefix = state.task_prefixes.get(prefix_name)
        if prefix is None:
            average = state.config.default_task_durations_seconds.get(prefix_name, -1.0)
            prefix = TaskPrefix(prefix_name, duration_average=average)
            state.task_prefixes[prefix_name] = prefix
        state.task_groups[name] = group = TaskGroup(name, prefix)
        prefix.group_table[group] = None
        state.idle_prefixes.pop(prefix_name, None)
        if computation is not None:
            computation.groups[group] = None
    return group
