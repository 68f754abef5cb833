"""Share groups, between which the time of workers is divided, and the accounts of their clients.

The usage of a group is the thread-seconds of its tasks, weighted down with age: it halves with each
half-life. Instead of reducing all usages, new ones are multiplied by ``Shares.scale``, which grows.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from paceline.scheduler.core.config import NO_CAP, SchedulerConfig, check_group_settings

#: Accounts of clients that left, and share groups without accounts, that are kept. The oldest are
#: merged with others first.
ABSENT_MAX = 1_000
#: ``Shares.scale`` above which usages are divided by it.
SCALE_MAX = 2.0**100
#: Name of the share group that has the sums of groups that were dropped.
OTHERS = "(other)"
#: Name of the only share group if ``shares_enabled`` is off.
ALL = "(all)"
#: ``Client-<name>-<uuid>`` and ``Client-<uuid>``: what a stock client calls itself.
CLIENT_ID = re.compile(r"[^-]+-(?:(.+)-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def group_name(client: str) -> str:
    """Return the name of the group of `client` by default: the name that its user gave it.

    A client without a name is a group of its own.
    """
    found = CLIENT_ID.fullmatch(client)
    return client if found is None or found[1] is None else found[1]


@dataclass(slots=True, eq=False, repr=False)
class Account:
    """The usage of the tasks of one client in one share group. Each task has one account.

    Attributes:
        client: name of the client whose graph created the tasks.
        share: the share group.
        n_tasks: number of its tasks that are known.
        n_finished: number of tasks that finished.
        thread_seconds: compute time of tasks, also of runs that failed or were given up.
        nbytes: size of the results on all workers in bytes.
        byte_seconds: `nbytes` summed over time, as of the last tick.
        moved_nbytes: bytes of results that were copied to further workers.
    """

    client: str
    share: ShareGroup
    n_tasks: int = 0
    n_finished: int = 0
    thread_seconds: float = 0.0
    nbytes: int = 0
    byte_seconds: float = 0.0
    moved_nbytes: int = 0

    def __repr__(self) -> str:
        return f"<Account {self.client!r} of {self.share!r}>"

    def add(self, other: Account) -> None:
        """Add the sums of `other`, whose client left."""
        self.n_finished += other.n_finished
        self.thread_seconds += other.thread_seconds
        self.byte_seconds += other.byte_seconds
        self.moved_nbytes += other.moved_nbytes


@dataclass(slots=True, eq=False, repr=False)
class ShareGroup:
    """Clients that share the time of workers with other groups as one.

    Attributes:
        name: the name of the group.
        index: number of groups created before.
        weight: part of the cluster's time that the group gets, relative to that of others.
        priority_class: a group gets a slot only if no group of a higher class has a task for it.
        max_threads: threads that its tasks may occupy; negative for no cap.
        max_tasks: tasks that may be on workers, without those that seceded; negative for no cap.
        max_nbytes: bytes of its results above which it starts tasks only one by one; negative for
            no cap.
        is_capped: whether there is a cap.
        usage: thread-seconds used and expected of the tasks on workers, in units of
            ``Shares.scale``.
        n_processing: number of tasks on workers that have not seceded.
        n_extra_runs: number of its runs in ``WorkerState.extra_runs``.
        n_queued: number of queued tasks.
        n_held: number of them that wait for a place: because other groups have work, for a cap, or
            for memory.
        is_draining: whether later tasks are held too, until all that are held have been sent.
        tasks_on: worker -> number of tasks that have not seceded and of extra runs, if there is a
            cap of threads.
        n_threads: threads that the tasks in `tasks_on` can occupy.
        tasks_over, threads_over: tasks and threads that the group had when a cap was lowered below
            them, less those that have ended since; otherwise at most the cap.
        accounts: accounts of clients, in order of arrival.
        former: sums over accounts that were dropped.
    """

    name: str
    index: int
    weight: float = 1.0
    priority_class: int = 0
    max_threads: float = NO_CAP
    max_tasks: float = NO_CAP
    max_nbytes: float = NO_CAP
    is_capped: bool = False
    usage: float = 0.0
    n_processing: int = 0
    n_extra_runs: int = 0
    n_queued: int = 0
    n_held: int = 0
    is_draining: bool = False
    tasks_on: dict[Any, int] = field(default_factory=dict)
    n_threads: int = 0
    tasks_over: int = 0
    threads_over: int = 0
    accounts: dict[Account, None] = field(default_factory=dict)
    former: Any = None

    def __repr__(self) -> str:
        return f"<ShareGroup {self.name!r}>"

    @property
    def n_on_workers(self) -> int:
        """Number of tasks and extra runs that count for the cap of tasks."""
        return self.n_processing + self.n_extra_runs

    @property
    def nbytes(self) -> int:
        """Size of the results of its tasks on all workers in bytes."""
        return sum([account.nbytes for account in self.accounts])

    @property
    def settings(self) -> dict[str, float]:
        """The settings of the group, by the names of ``config.SHARE_DEFAULTS``."""
        return {
            "weight": self.weight,
            "class": self.priority_class,
            "threads": self.max_threads,
            "tasks": self.max_tasks,
            "memory": self.max_nbytes,
        }

    def configure(self, settings: dict[str, Any]) -> None:
        """Change the `settings` that are given; ``check_group_settings`` has checked them."""
        values = {**self.settings, **settings}
        self.weight = float(values["weight"])
        self.priority_class = int(values["class"])
        self.max_threads = float(values["threads"])
        self.max_tasks = float(values["tasks"])
        self.max_nbytes = float(values["memory"])
        self.is_capped = max(self.max_threads, self.max_tasks, self.max_nbytes) >= 0

    def cap_reached(self, n_kept: int = 0) -> str:
        """Return the name of a cap that the group has reached, or an empty string.

        Places for `n_kept` tasks count as taken.
        """
        if 0 <= self.max_tasks <= self.n_on_workers + n_kept:
            return "tasks"
        if 0 <= self.max_threads <= self.n_threads + n_kept:
            return "threads"
        if 0 <= self.max_nbytes <= self.nbytes:
            return "memory"
        return ""

    @property
    def usage_per_weight(self) -> float:
        """`usage` divided by `weight`."""
        return self.usage / self.weight

    def goes_before(self, other: ShareGroup) -> bool:
        """Return whether it is the turn of this group before that of `other`."""
        if self.priority_class != other.priority_class:
            return self.priority_class > other.priority_class
        return self.usage * other.weight < other.usage * self.weight

    def enter_worker(self, ws: Any) -> None:
        """Count a task on `ws` for the cap of threads."""
        n = self.tasks_on.get(ws, 0)
        self.tasks_on[ws] = n + 1
        self.n_threads += n < ws.nthreads

    def leave_worker(self, ws: Any) -> None:
        """Remove a task on `ws` that counted for the cap of threads."""
        n = self.tasks_on.pop(ws) - 1
        if n:
            self.tasks_on[ws] = n
        self.n_threads -= n < ws.nthreads


class Shares:
    """All share groups and accounts.

    Attributes:
        enabled: whether tasks are held while several groups have work, and caps apply.
        groups: name -> ShareGroup, in order of creation.
        accounts: (client, group) -> Account; the group is "" unless an annotation names another
            one than that of the client.
        active: groups with queued tasks or tasks on workers that have not seceded.
        unheld: whether workers may have more tasks than slots, because one group had work.
        recall_due: whether workers have to be asked to give back the tasks that exceed their slots.
        n_prioritized: number of known tasks with another user priority than 0.
        has_classes: whether the priority class of a group has ever differed from 0.
        scale: factor of new usage.
        scaled_at: time of `scale`, or 0.0.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.enabled = config.shares_enabled
        self.groups: dict[str, ShareGroup] = {}
        self.accounts: dict[tuple[str, str], Account] = {}
        self.active: dict[ShareGroup, None] = {}
        self.unheld = False
        self.recall_due = False
        self.n_prioritized = 0
        self.has_classes = False
        self.scale = 1.0
        self.scaled_at = 0.0
        self._n_created = 0
        for name in config.shares_groups if config.shares_enabled else ():
            self.group(name)

    @property
    def has_user_priorities(self) -> bool:
        """Return whether any known task has another user priority than 0."""
        return self.n_prioritized > 0

    # -- groups and accounts

    def group(self, name: str) -> ShareGroup:
        """Return the share group `name`; create it if it is missing."""
        share = self.groups.get(name)
        if share is None:
            share = self.groups[name] = ShareGroup(name, self._n_created)
            share.former = Account("", share)
            self._n_created += 1
            self.configure(share, self._config.shares_groups.get(name, {}) if self.enabled else {})
        return share

    def check_change(self, name: str, settings: dict[str, float]) -> None:
        """Check `settings` that are to change in the share group `name`.

        Raises:
            ValueError: a setting is unknown or out of range, or share groups are disabled.
        """
        check_group_settings(name, settings)
        if not self.enabled:
            raise ValueError(
                f"cannot change share group {name!r}: share groups are disabled; "
                "set `paceline.shares.enabled` to true and restart the scheduler"
            )

    def configure(self, share: ShareGroup, settings: dict[str, float]) -> None:
        """Change `settings` of `share`, which ``check_group_settings`` has checked."""
        share.configure(settings)
        self.has_classes |= share.priority_class != 0

    def account(self, client: str, group: str = "") -> Account:
        """Return the account of `client` in `group`, by default that of the client."""
        account = self.accounts.get((client, group))
        if account is None:
            share = self.group(group if group and self.enabled else self.group_of(client))
            account = self.accounts[client, group] = Account(client, share)
            share.accounts[account] = None
        return account

    def group_of(self, client: str) -> str:
        """Return the name of the group of `client`: that of the first pattern that matches.

        Without shares, all clients are in one group.
        """
        if not self.enabled:
            return ALL
        name = group_name(client)
        for pattern, group in self._config.shares_clients.items():
            if fnmatchcase(name, pattern):
                return group
        return name

    def drop_absent(self, clients: Collection[str]) -> list[ShareGroup]:
        """Drop the oldest accounts whose client is not in `clients`, above a limit.

        Return the share groups that were dropped because they have no account any more.
        """
        if max(len(self.accounts), len(self.groups)) <= ABSENT_MAX:
            return []
        absent = [
            key
            for key, account in self.accounts.items()
            if not account.n_tasks and not account.nbytes and account.client not in clients
        ]
        for key in absent[: max(0, len(absent) - ABSENT_MAX)]:
            account = self.accounts.pop(key)
            del account.share.accounts[account]
            account.share.former.add(account)
        empty = [
            share
            for share in self.groups.values()
            if not share.accounts
            and share not in self.active
            and not share.n_extra_runs
            and share.name not in self._config.shares_groups
            and share.name != OTHERS
        ]
        dropped = empty[: max(0, len(empty) - ABSENT_MAX)]
        for share in dropped:
            del self.groups[share.name]
            self.group(OTHERS).former.add(share.former)
        return dropped

    # -- work

    def holds(self, share: ShareGroup) -> bool:
        """Return whether ready tasks of `share` are queued until it is their turn.

        That is while other groups have work, while `share` has a cap, and until the tasks that were
        queued for such a reason, or because memory was short, have been sent.
        """
        active = self.active
        if len(active) > 1 or share.is_draining or share.is_capped:
            return self.enabled
        return bool(active) and share not in active and self.enabled

    def several_active(self) -> bool:
        """Return whether several groups have work, so that their ready tasks take turns."""
        return len(self.active) > 1 and self.enabled

    def start_task(self, share: ShareGroup, ws: Any, seconds: float) -> None:
        """Count a task of `share` on `ws`, which is expected to take `seconds`."""
        share.usage += seconds * self.scale
        if not share.n_processing and not share.n_queued:
            self._begin_work(share)
        share.n_processing += 1
        if share.max_threads >= 0:
            share.enter_worker(ws)

    def end_task(self, share: ShareGroup, ws: Any) -> None:
        """Remove a task of `share` that left `ws` or seceded."""
        share.n_processing -= 1
        if share.is_capped:
            self._leave_caps(share, ws)
        if not share.n_processing and not share.n_queued:
            del self.active[share]

    def _leave_caps(self, share: ShareGroup, ws: Any) -> None:
        if share.max_threads >= 0:
            share.leave_worker(ws)
        share.tasks_over = min(share.tasks_over, share.n_on_workers)
        share.threads_over = min(share.threads_over, share.n_threads)

    def start_extra_run(self, share: ShareGroup, ws: Any) -> None:
        """Count an extra run of `share` on `ws` for its caps."""
        share.n_extra_runs += 1
        if share.is_capped:
            if share.max_threads >= 0:
                share.enter_worker(ws)
            share.tasks_over = max(share.tasks_over, share.n_on_workers)
            share.threads_over = max(share.threads_over, share.n_threads)

    def end_extra_run(self, share: ShareGroup, ws: Any) -> None:
        """Remove an extra run of `share` that left `ws`, or became its only run of the task."""
        share.n_extra_runs -= 1
        if share.is_capped:
            self._leave_caps(share, ws)

    def refund(self, share: ShareGroup, seconds: float) -> None:
        """Subtract the `seconds` that a task was expected to take from the usage."""
        usage = share.usage - seconds * self.scale
        share.usage = usage if usage > 0 else 0.0

    def queue_task(self, share: ShareGroup) -> None:
        """Count a queued task."""
        if not share.n_processing and not share.n_queued:
            self._begin_work(share)
        share.n_queued += 1

    def unqueue_task(self, share: ShareGroup) -> None:
        """Remove a task that is no longer queued."""
        share.n_queued -= 1
        if not share.n_processing and not share.n_queued:
            del self.active[share]

    def _begin_work(self, share: ShareGroup) -> None:
        self.active[share] = None
        if self.unheld and self.several_active():
            self.recall_due = True

    def recent_usage(self, share: ShareGroup) -> float:
        """Return the decayed usage of `share` in thread-seconds."""
        return share.usage / self.scale

    def advance(self, now: float) -> None:
        """Let usages decay up to `now`, and add to the byte-seconds of accounts."""
        seconds = now - self.scaled_at
        if not self.scaled_at or seconds <= 0:
            self.scaled_at = now
            return
        self.scaled_at = now
        for account in self.accounts.values():
            if account.nbytes:
                account.byte_seconds += account.nbytes * seconds
        self.scale *= 2.0 ** min(seconds / self._config.shares_half_life_seconds, 100.0)
        if self.scale > SCALE_MAX:
            for share in self.groups.values():
                share.usage /= self.scale
            self.scale = 1.0

    def forget_tasks(self) -> None:
        """Reset the counts of tasks and data, for a restart that forgets all tasks."""
        self.active.clear()
        self.n_prioritized = 0
        self.recall_due = self.unheld = False
        for share in self.groups.values():
            share.n_processing = share.n_queued = share.n_held = share.n_threads = 0
            share.is_draining = False
            share.n_extra_runs = 0
            share.tasks_on.clear()
        for account in self.accounts.values():
            account.n_tasks = account.nbytes = 0
