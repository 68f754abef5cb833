"""Report which share groups and clients use the cluster, which ones wait, and why."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from paceline.scheduler.core.config import CAP_KINDS
from paceline.scheduler.core.policy.admission import waiting_count
from paceline.scheduler.core.policy.fairness import is_outranked
from paceline.scheduler.core.policy.placement import allowed_workers
from paceline.scheduler.core.policy.worker_ends import can_finish
from paceline.scheduler.core.state.containers import add_up
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.sharing.accounts import Account, ShareGroup
from paceline.scheduler.core.text import format_nbytes

#: Text of the command and the dashboard page if there are no share groups.
SHARES_OFF: Final = "Share groups are off (paceline.shares.enabled: false)."
#: Clients of a group that are listed, those with most thread-seconds first.
CLIENTS_MAX: Final = 100
#: Groups with work that are listed for a task that waits.
COMPETITORS_MAX: Final = 10
#: Share groups that are listed, those with work first.
GROUPS_MAX: Final = 1_000
#: Queues of a share group whose first tasks are checked for workers that end.
QUEUES_MAX: Final = 100
#: Tasks in no-worker whose groups are reported to wait for a worker.
UNRUNNABLE_MAX: Final = 10_000


def share_report(state: SchedulerState) -> dict[str, Any]:
    """Return the share groups with their settings, work and accounts.

    Returns:
        "enabled", "half_life_seconds", "n_groups" in total, and "groups", a list of dicts: "name",
        "settings" (None for no cap), "usage" (decayed thread-seconds), "processing",
        "extra_runs" (given-up and second runs), "queued", "waits_for" (see ``waits_for_share``),
        the sums "tasks", "finished", "thread_seconds", "nbytes", "byte_seconds" and "moved_nbytes",
        and the same by client in "clients".
    """
    shares = state.shares
    groups = sorted(
        shares.groups.values(), key=lambda share: (share not in shares.active, share.index)
    )
    unrunnable = {ts.account.share: None for ts in islice(state.unrunnable, UNRUNNABLE_MAX)}
    return {
        "enabled": shares.enabled,
        "half_life_seconds": state.config.shares_half_life_seconds,
        "n_groups": len(groups),
        "groups": [_group(state, share, share in unrunnable) for share in groups[:GROUPS_MAX]],
    }


def _group(state: SchedulerState, share: ShareGroup, is_unrunnable: bool) -> dict[str, Any]:
    """Return the report on `share`. `is_unrunnable` is whether it has tasks in no-worker."""
    accounts = sorted(share.accounts, key=lambda account: -account.thread_seconds)
    sums = _sums(share.former)
    for account in accounts:
        add_up(sums, _sums(account))
    return {
        "name": share.name,
        "settings": _settings(share),
        "usage": state.shares.recent_usage(share),
        "processing": share.n_processing,
        "extra_runs": share.n_extra_runs,
        "queued": share.n_queued,
        "waits_for": waits_for_share(state, share) or ("a worker" if is_unrunnable else ""),
        **sums,
        "clients": [
            {"client": account.client, **_sums(account)}
            for account in islice(accounts, CLIENTS_MAX)
        ],
    }


def _settings(share: ShareGroup) -> dict[str, float | None]:
    """Return the settings of `share`; caps are integers, or None for no cap."""
    caps = {name: share.settings[name] for name in CAP_KINDS}
    return {
        **share.settings,
        **{name: int(cap) if cap >= 0 else None for name, cap in caps.items()},
    }


def _sums(account: Account) -> dict[str, float]:
    return {
        "tasks": account.n_tasks,
        "finished": account.n_finished,
        "thread_seconds": account.thread_seconds,
        "nbytes": account.nbytes,
        "byte_seconds": account.byte_seconds,
        "moved_nbytes": account.moved_nbytes,
    }


def caps_text(settings: Mapping[str, Any]) -> str:
    """Return the caps in the reported `settings`, such as ``tasks 4, memory 1.00 GiB``."""
    caps = {name: settings[name] for name in CAP_KINDS if settings[name] is not None}
    return ", ".join(
        f"{name} {format_nbytes(cap) if name == 'memory' else cap}" for name, cap in caps.items()
    )


def competitors(state: SchedulerState, share: ShareGroup) -> list[ShareGroup]:
    """Return the other groups that take turns with `share` or go first.

    They have work, are at no cap, and are not of a lower class.
    """
    return [
        each
        for each in state.shares.active
        if each is not share
        and each.priority_class >= share.priority_class
        and not each.cap_reached(state.whole_workers.n_kept(each))
    ]


def waits_for_share(state: SchedulerState, share: ShareGroup) -> str:
    """Return what the queued tasks of `share` wait for; "" if it has none.

    That is a cap ("cap of tasks"), "a worker", "a worker that lasts", "higher class", "its turn",
    "memory" or "a slot".
    """
    if not share.n_queued:
        return ""
    cap = share.cap_reached(state.whole_workers.n_kept(share))
    if cap:
        return f"cap of {cap}"
    if not state.running:
        return "a worker"
    if _ends_too_soon(state, share):
        return "a worker that lasts"
    others = competitors(state, share)
    if any(each.priority_class > share.priority_class for each in others):
        return "higher class"
    if others:
        return "its turn"
    return "memory" if waiting_count(state) else "a slot"


def _ends_too_soon(state: SchedulerState, share: ShareGroup) -> bool:
    """Return whether the workers that may run the queued tasks of `share` all end before these.

    That is checked for the first task of each of its queues.
    """
    if not state.worker_ends.workers:
        return False
    queues = state.queued.queues[share].queues()
    for ts in [ts for queue in queues[:QUEUES_MAX] for ts in queue.first(1)]:
        allowed = allowed_workers(state, ts)
        workers = state.running if allowed is None else allowed
        if any(can_finish(state, ts, ws) for ws in workers):
            return False
    return True


def share_facts(state: SchedulerState, ts: TaskState) -> dict[str, Any] | None:
    """Return why the share group of the ready task ``ts`` holds it back; None if it does not.

    Returns:
        "group"; "weight", "class"; "cap" that the group has reached, or "", and its "limit";
        "kept_for": the task for which it keeps a place below the cap, or "";
        "usage" in thread-seconds; "n_processing", "n_extra_runs", "n_queued"; "others": name ->
        usage of the groups that take turns with it or go first, with "n_others"; "higher_class":
        whether one of them has a higher class; "outranked": whether queued tasks of the group have
        a higher user priority; "place": the worker that it waits for, "restricted" or "".
    """
    share = ts.account.share
    place = state.queued.place(ts)
    others = competitors(state, share)
    n_kept = state.whole_workers.n_kept(share, ts)
    cap = share.cap_reached(n_kept)
    if not (state.queued.is_held(ts) or (state.shares.enabled and (others or cap))):
        return None
    return {
        "group": share.name,
        "weight": share.weight,
        "class": share.priority_class,
        "cap": cap,
        "limit": _settings(share).get(cap),
        "kept_for": str(state.whole_workers.first[share].key) if n_kept else "",
        "usage": state.shares.recent_usage(share),
        "n_processing": share.n_processing,
        "n_extra_runs": share.n_extra_runs,
        "n_queued": share.n_queued,
        "others": {
            each.name: state.shares.recent_usage(each) for each in islice(others, COMPETITORS_MAX)
        },
        "n_others": len(others),
        "higher_class": any(each.priority_class > share.priority_class for each in others),
        "outranked": is_outranked(state, ts),
        "place": place.address
        if isinstance(place, WorkerState)
        else ("restricted" if place is not None else ""),
    }
