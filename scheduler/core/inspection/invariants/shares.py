"""Checks of share groups and accounts."""

from __future__ import annotations

from collections import Counter

from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.containers import add_up
from paceline.scheduler.core.state.model import WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import Account, ShareGroup


def check_shares(_view: object, state: SchedulerState) -> None:
    """Check that share groups count their tasks, threads and bytes, and stay below their caps."""
    _check_groups(state)
    _check_accounts(state)


def _check_groups(state: SchedulerState) -> None:
    """Assert that share groups count their tasks and threads, and stay below their caps.

    Also assert that the queue counts tasks near workers, and that only running workers claim tasks.
    """
    n_processing, n_extra, n_threads = _on_workers(state)
    n_queued = Counter(ts.account.share for ts in state.queued)
    n_held = Counter(ts.account.share for q in state.queued.waiting for ts in q.places)
    for share in state.shares.groups.values():
        n = n_processing.get(share, 0)
        assert share.n_processing == n, f"{share!r} counts {share.n_processing} processing, not {n}"
        extra = n_extra.get(share, 0)
        assert share.n_extra_runs == extra, f"{share!r} counts {share.n_extra_runs} extra runs"
        assert share.n_queued == n_queued[share], f"{share!r} counts {share.n_queued} queued"
        assert share.n_held == n_held[share], f"{share!r} counts {share.n_held} held"
        assert share.n_held or not share.is_draining, f"{share!r} is draining without held tasks"
        is_active = bool(n or n_queued[share])
        assert (share in state.shares.active) == is_active, f"{share!r}: {is_active=}"
        if share.max_threads >= 0:
            threads = n_threads.get(share, 0)
            assert share.n_threads == threads, f"{share!r} counts {share.n_threads} threads"
            assert threads <= max(share.max_threads, share.threads_over), f"{share!r}: {threads=}"
        if share.max_tasks >= 0:
            n_tasks = n + extra
            assert n_tasks <= max(share.max_tasks, share.tasks_over), f"{share!r}: {n_tasks=}"
    n_near = Counter(
        ws for q in state.queued.waiting for ws, tasks in q.near.items() for _ in tasks
    )
    assert state.queued.near == n_near, f"the queue counts {state.queued.near}, not {n_near}"
    assert state.queued.waiting or not state.queued.early, "tasks precede an empty queue"
    for ws in state.queued.early:
        assert ws in state.running, f"the queue counts tasks of {ws!r}, which is not running"
    for ts, ws in state.queued.claims.items():
        assert ws in state.running, f"{ts!r} is claimed by {ws!r}, which is not running"
        assert state.tasks.get(ts.key) is ts, f"{ts!r} is claimed, and was forgotten"


def _on_workers(state: SchedulerState) -> list[dict[ShareGroup, int]]:
    """Return the numbers of each group's tasks that have not seceded, extra runs, and threads.

    The threads are those that the tasks and extra runs can occupy.
    """
    n_processing: dict[ShareGroup, int] = {}
    n_extra: dict[ShareGroup, int] = {}
    n_threads: dict[ShareGroup, int] = {}
    removed = [ts.processing_on for ts in state.tasks.values() if ts.processing_on is not None]
    workers: dict[WorkerState, None] = dict.fromkeys((*state.workers.values(), *removed))
    for ws in workers:
        here: dict[ShareGroup, int] = {}
        for ts in ws.processing:
            if ts not in ws.long_running:
                add_up(here, {ts.account.share: 1})
        add_up(n_processing, here)
        for account in ws.extra_runs.values():
            add_up(n_extra, {account.share: 1})
            add_up(here, {account.share: 1})
        add_up(n_threads, {share: min(n, ws.nthreads) for share, n in here.items()})
    return [n_processing, n_extra, n_threads]


def _check_accounts(state: SchedulerState) -> None:
    """Assert that accounts count their tasks and the bytes of these on all workers."""
    n_prioritized = sum(1 for ts in state.tasks.values() if ts.priority and ts.priority[0])
    assert state.shares.n_prioritized == n_prioritized, f"{n_prioritized} have user priorities"
    n_tasks = Counter(ts.account for ts in state.tasks.values())
    nbytes: dict[Account, int] = {}
    for ts in state.tasks.values():
        add_up(nbytes, {ts.account: estimates.data_nbytes(state, ts) * len(ts.who_has)})
    for account in dict.fromkeys((*state.shares.accounts.values(), *n_tasks)):
        assert account.n_tasks == n_tasks[account], f"{account!r} counts {account.n_tasks} tasks"
        assert account.nbytes == nbytes.get(account, 0), f"{account!r} has {account.nbytes} bytes"
        assert account in account.share.accounts, f"{account!r} is not in its group"
