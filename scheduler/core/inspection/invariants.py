"""Invariants of the state after every turn: a numbered table of functions that check them.

Deferred work leaves tasks for which a recommendation is still pending. The invariants about
progress exempt exactly these tasks (``View.pending``).

``validate_state`` checks everything in O(n): for tests, and for schedulers with ``validate`` on.
As in stock, checks are assertions, so that ``python -O`` removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil, inf, isclose
from typing import Any

from paceline.scheduler.core.lifecycle.recommendations import waits_for_retry
from paceline.scheduler.core.policy import fairness
from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.containers import add_up
from paceline.scheduler.core.state.model import (
    ClientState,
    TaskGroup,
    TaskPrefix,
    TaskState,
    WorkerState,
)
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.task_states import ACTIVE_STATES, TASK_STATES
from paceline.scheduler.core.state.workers.loads import is_available, usable_threads

from .policy_invariants import check_ends, check_retries, check_second_runs
from .share_invariants import check_shares

#: Relative tolerance, and tolerance in seconds, of sums of floating-point numbers.
SECONDS_TOLERANCE = 1e-6


class InvariantBroken(AssertionError):
    """An invariant does not hold: a bug of this scheduler, never of a peer.

    Attributes:
        number: number of the invariant.
    """

    def __init__(self, number: int, text: str, subject: Any, found: str) -> None:
        super().__init__(f"invariant {number} is broken: {text}; {subject!r}: {found}")
        self.number = number


class View:
    """The state, and what a later turn is going to check.

    Attributes:
        state: the scheduler state.
        pins: placeholder clients of the graphs that are being committed.
        pending: tasks that a later turn is going to check.
    """

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self.pins = [graph.placeholder_client for graph in state.deferred.commits]
        self.pending = state.deferred.pending()

    def is_wanted(self, ts: TaskState) -> bool:
        """Return whether a client other than a pin, or an active dependent, needs `ts`."""
        if any(d.state in ACTIVE_STATES for d in ts.dependents):
            return True
        return any(cs not in self.pins for cs in ts.who_wants)

    def retry_is_coming(self, ts: TaskState) -> bool:
        """Return whether a later turn retries `ts` or a failed task that it depends on."""
        stack = [ts]
        while stack:
            ts = stack.pop()
            if ts in self.pending:
                return True
            stack.extend(d for d in ts.dependencies if d.state == "erred")
        return False

    def is_known(self, ts: TaskState) -> bool:
        return self.state.tasks.get(ts.key) is ts


# ------------------------------------------------------------------ tasks


def _known(view: View, ts: TaskState) -> None:
    """Check that a task is in state.tasks under its key, its group in task_groups."""
    assert view.is_known(ts), "not in state.tasks under its key"
    assert ts.state in TASK_STATES and ts.state != "forgotten", f"state is {ts.state}"
    assert view.state.task_groups.get(ts.group.name) is ts.group, "its group is unknown"


def _edges(view: View, ts: TaskState) -> None:
    """Check that dependencies and dependents mirror each other, among known tasks."""
    assert len(set(map(id, ts.dependencies))) == len(ts.dependencies), "a dependency occurs twice"
    for dts in ts.dependencies:
        assert ts in dts.dependents, f"{dts!r} does not have it as dependent"
        assert view.is_known(dts), f"depends on {dts!r}, which is unknown"
    for dts in ts.dependents:
        assert ts in dts.dependencies, f"{dts!r} does not depend on it"
        assert view.is_known(dts), f"has the dependent {dts!r}, which is unknown"


def _desires(view: View, ts: TaskState) -> None:
    """Check that who_wants mirrors wants_what of known or leaving clients, and pins."""
    state = view.state
    for cs in ts.who_wants:
        assert ts in cs.wants_what, f"{cs!r} does not want it"
        known = state.clients.get(cs.client_key) is cs or cs in state.deferred.client_removals
        assert known or cs in view.pins, f"wanted by {cs!r}, which is unknown"


def _holders(view: View, ts: TaskState) -> None:
    """Check that who_has mirrors has_what of known workers; more than one is replicated."""
    state = view.state
    for ws in ts.who_has:
        assert ts in ws.has_what, f"{ws!r} does not have it"
        assert state.workers.get(ws.address) is ws, f"held by {ws!r}, which is unknown"
    replicated = ts in state.replicated_tasks
    assert replicated == (len(ts.who_has) > 1), f"{len(ts.who_has)} replicas, {replicated=}"


def _counts(view: View, ts: TaskState) -> None:
    """Check that waiting_count and waiters_count are the numbers of such tasks."""
    waiting = sum(not d.who_has for d in ts.dependencies) if ts.state == "waiting" else 0
    assert ts.waiting_count == waiting, f"waiting_count is {ts.waiting_count}, not {waiting}"
    waiters = sum(d.state in ACTIVE_STATES for d in ts.dependents)
    assert ts.waiters_count == waiters, f"waiters_count is {ts.waiters_count}, not {waiters}"


def _placed(view: View, ts: TaskState) -> None:
    """Check that processing_on is set exactly in processing, on a known worker."""
    ws = ts.processing_on
    assert (ws is not None) == (ts.state == "processing"), f"processing_on is {ws!r}"
    if ws is not None:
        assert ts in ws.processing, f"{ws!r} does not process it"
        known = view.state.workers.get(ws.address) is ws
        assert known or ts in view.pending, f"processing on {ws!r}, which is gone"
        assert ts.run_id, "it was sent without a run_id"


def _collections(view: View, ts: TaskState) -> None:
    """Check that queued and unrunnable hold exactly the tasks in queued and no-worker."""
    assert (ts in view.state.queued) == (ts.state == "queued"), "queued differs"
    assert (ts in view.state.unrunnable) == (ts.state == "no-worker"), "unrunnable differs"
    if ts.state == "queued":
        place = view.state.queued.place(ts)
        found = place[:-1] if isinstance(place, tuple) else fairness.NO_RESTRICTIONS
        expected = fairness.restrictions_of(ts)
        assert found == expected, f"restricted to {expected}, and queued for {found}"


def _runnable(view: View, ts: TaskState) -> None:
    """Check that a task that is to run has a run_spec, a priority and all its dependencies."""
    is_active = ts.state in ACTIVE_STATES
    assert not is_active or ts.run_spec is not None, "it has no run_spec"
    if is_active or ts.state == "memory":
        assert ts.run_spec is None or ts.priority is not None, "it has a run_spec and no priority"
    lost = ts.has_lost_dependencies and ts not in view.pending
    assert not (is_active and lost), "it lost a dependency, and is not forgotten"


def _has_data(view: View, ts: TaskState) -> None:
    """Check that exactly the tasks in memory have data on a worker."""
    if ts.state == "memory":
        assert ts.who_has or ts in view.pending, "no worker has its data, and it is not released"
    else:
        assert not ts.who_has, "a worker has its data"


def _blamed(view: View, ts: TaskState) -> None:
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


def _needed(view: View, ts: TaskState) -> None:
    """Check that a task that runs, waits or is in memory is wanted."""
    if (ts.state in ACTIVE_STATES or ts.state == "memory") and not _is_scattered(ts):
        checked = any(each in view.pending for each in (ts, *ts.dependents))
        assert checked or ts.who_wants or view.is_wanted(ts), "no client or task wants it"


def _kept(view: View, ts: TaskState) -> None:
    """Check that a task without clients and dependents is forgotten."""
    kept = ts.who_wants or ts.dependents or ts in view.pending or _is_scattered(ts)
    assert kept, "no client wants it, nothing depends on it, and it is not forgotten"


def _waits_for_something(view: View, ts: TaskState) -> None:
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


def _inputs_there(view: View, ts: TaskState) -> None:
    """Check that a task in queued, no-worker or processing has its inputs in memory."""
    if ts.state in ("queued", "no-worker", "processing") and ts not in view.pending:
        for dts in ts.dependencies:
            assert dts.who_has or dts in view.pending, f"no worker has the data of {dts!r}"


# ------------------------------------------------------------------ workers, clients, groups, all


def _worker_known(view: View, ws: WorkerState) -> None:
    """Check that a worker is in workers, aliases and host_info."""
    state = view.state
    assert state.workers.get(ws.address) is ws, "not in state.workers under its address"
    assert state.aliases.get(ws.name) == ws.address, "its name is no alias of it"
    assert ws.status != "closed", "it is closed"
    addresses = state.host_info.get(ws.host, {}).get("addresses", ())
    assert ws.address in addresses, "host_info does not name it"


def _worker_tasks(view: View, ws: WorkerState) -> None:
    """Check that processing, has_what, long_running, actors and nbytes mirror its tasks."""
    for ts in ws.processing:
        assert ts.processing_on is ws, f"{ts!r} is not processing on it"
    for ts in ws.has_what:
        assert ws in ts.who_has, f"{ts!r} is not in its who_has"
    for ts in ws.long_running:
        assert ts in ws.processing, f"{ts!r} seceded and is not processing"
    for ts in ws.actors:
        there = ts.processing_on is ws or ws in ts.who_has
        assert ts.actor and there, f"{ts!r} is no actor of it"
    twice = [ts for ts in ws.processing if ts.key in ws.extra_runs]
    assert not twice, f"{twice} are processing and count as extra runs"
    nbytes = sum(estimates.data_nbytes(view.state, ts) for ts in ws.has_what)
    assert ws.nbytes == nbytes, f"nbytes is {ws.nbytes}, not {nbytes}"


def _worker_counts(view: View, ws: WorkerState) -> None:
    """Check that prefix_counts, needs_what, network_occ and resources follow from processing."""
    state = view.state
    counts: dict[TaskPrefix, int] = {}
    needs: dict[TaskState, int] = {}
    used: dict[str, float] = {}
    for ts in ws.processing:
        if ts not in ws.long_running:
            add_up(counts, {ts.prefix: 1})
        add_up(needs, dict.fromkeys(ts.dependencies, 1))
        add_up(used, ts.resource_restrictions or {})
    counted = {**ws.task_prefix_count, **ws.unknown_duration_count}
    assert counted == counts, f"its tasks by prefix are {counted}, not {counts}"
    unknown = ws.unknown_duration_count
    assert ws.unknown_duration_total == sum(unknown.values()), "unknown_duration_total differs"
    for is_known, found in ((True, ws.task_prefix_count), (False, unknown)):
        for prefix in found:
            known = estimates.is_duration_known(prefix)
            assert known is is_known, f"{prefix!r} is in the wrong table of durations"
    for dts, count in ws.needs_what.items():
        assert dts not in ws.has_what, f"needs_what holds {dts!r}, which it has"
        expected = needs.get(dts, 0)
        assert 0 < count <= expected, f"needs {dts!r} for {count} tasks, not {expected}"
    network = sum(estimates.data_nbytes(state, dts) for dts in ws.needs_what)
    assert ws.network_occ == network, f"network_occ is {ws.network_occ}, not {network}"
    for name in {**used, **ws.used_resources}:
        is_equal = isclose(used.get(name, 0), ws.used_resources.get(name, 0), abs_tol=1e-9)
        assert is_equal, f"used_resources is {ws.used_resources}, not {used}"
    for name, amount in ws.resources.items():
        supplied = state.resources.get(name, {}).get(ws.address)
        assert supplied == amount, f"state.resources has {supplied} of its {name}"


def _worker_load(view: View, ws: WorkerState) -> None:
    """Check that running, idle, idle_task_count and saturated follow from status and load."""
    loads = view.state.loads
    available = is_available(ws)
    assert (ws in view.state.running) == available, "state.running differs"
    has_load = ws in loads.idle or ws in loads.idle_task_count or ws in loads.saturated
    assert available or not has_load, "it accepts no tasks, and is idle or saturated"
    assert ws not in loads.idle or ws not in loads.saturated, "idle and saturated"
    if not available or loads.are_slots_dirty(ws):
        return
    idle = ws in loads.idle or loads.is_dirty(ws)
    n_threads = usable_threads(ws)
    assert idle or len(ws.processing) >= n_threads, "fewer tasks than threads, and not idle"
    saturation = view.state.config.worker_saturation
    full = inf if saturation == inf else max(ceil(saturation * ws.nthreads), 1)
    has_slot = len(ws.processing) - len(ws.long_running) + len(ws.extra_runs) < full
    assert (ws in loads.idle_task_count) == has_slot, f"idle_task_count differs: {has_slot=}"


def _client_known(view: View, cs: ClientState) -> None:
    """Check that a client is in clients, and wants_what mirrors who_wants of known tasks."""
    assert view.state.clients.get(cs.client_key) is cs, "not in state.clients under its name"
    for ts in cs.wants_what:
        assert cs in ts.who_wants, f"{ts!r} is not wanted by it"
        assert view.is_known(ts), f"wants {ts!r}, which is unknown"


def _group_known(view: View, group: TaskGroup) -> None:
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


def _prefix_known(view: View, prefix: TaskPrefix) -> None:
    """Check that a prefix has only groups that are known."""
    idle = prefix.name in view.state.idle_prefixes
    assert idle is not bool(prefix.group_table), "it is idle with groups, or neither"
    for group in prefix.groups:
        known = view.state.task_groups.get(group.name) is group
        assert known, f"its group {group!r} is unknown"


def _group_counts(view: View, state: SchedulerState) -> None:
    """Check that a group's states count its tasks."""
    counts = {group: dict.fromkeys(TASK_STATES, 0) for group in state.task_groups.values()}
    for ts in state.tasks.values():
        counts[ts.group][ts.state] += 1
    for group, states in counts.items():
        states["forgotten"] = group.states["forgotten"]
        assert states == group.states, f"{group!r} has {states}"


def _prefix_counts(view: View, state: SchedulerState) -> None:
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
    is_equal = _is_close(state.compute_occupancy, seconds)
    assert is_equal, f"compute_occupancy is {state.compute_occupancy}, not {seconds}"


def _is_close(found: float, expected: float) -> bool:
    return isclose(found, expected, rel_tol=SECONDS_TOLERANCE, abs_tol=SECONDS_TOLERANCE)


def _totals(view: View, state: SchedulerState) -> None:
    """Check that totals, aliases, host_info and collections follow from workers and tasks."""
    workers = list(state.workers.values())
    assert state.total_nthreads == sum(ws.nthreads for ws in workers), "total_nthreads differs"
    assert state.total_memory == sum(ws.memory_limit for ws in workers), "total_memory differs"
    assert len(state.aliases) == len(workers), "aliases of unknown workers"
    loads = state.loads
    for table in (state.running, loads.idle, loads.idle_task_count, loads.saturated):
        unknown = [ws for ws in table if state.workers.get(ws.address) is not ws]
        assert not unknown, f"{unknown} are listed by load, and unknown"
    for host, info in state.host_info.items():
        nthreads = sum(state.workers[a].nthreads for a in info["addresses"])
        assert info["nthreads"] == nthreads, f"{host} has {info['nthreads']} threads: {nthreads=}"
    for members in (state.queued, state.unrunnable, state.replicated_tasks):
        for ts in members:
            assert view.is_known(ts), f"{ts!r} is in a collection, and unknown"
    since = list(state.unrunnable.values())
    assert since == sorted(since), "unrunnable is not in order of time"


def _network(view: View, state: SchedulerState) -> None:
    """Check that network_occ is the sum of the workers'."""
    removed = [ts.processing_on for ts in view.pending if ts.processing_on is not None]
    network = sum(ws.network_occ for ws in dict.fromkeys((*state.workers.values(), *removed)))
    assert state.network_occ == network, f"network_occ is {state.network_occ}, not {network}"


def _graphs(view: View, state: SchedulerState) -> None:
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


def _steals(view: View, state: SchedulerState) -> None:
    """Check that tasks asked back are on their victims, or requests void, and sums add up."""
    stealing_state = state.stealing
    in_flight = stealing_state.in_flight
    seconds: dict[WorkerState, float] = {}
    tasks: dict[WorkerState, int] = {}
    for ts, steal in in_flight.items():
        add_up(seconds, {steal.victim: -steal.victim_seconds})
        add_up(tasks, {steal.victim: -1})
        if steal.thief is not None:
            add_up(seconds, {steal.thief: steal.thief_seconds})
            add_up(tasks, {steal.thief: 1})
        assert steal.victim is not steal.thief, f"{ts!r} is asked back for its own worker"
        runs = ts.state == "processing" and ts in steal.victim.processing
        assert runs or not stealing_state.is_live(ts, steal), f"{ts!r} is not on {steal.victim!r}"
    names = [steal.stimulus_id for steal in in_flight.values()]
    assert len(set(names)) == len(names), f"two requests have the same id: {names}"
    for ws in {**seconds, **stealing_state.occupancy}:
        found, expected = stealing_state.occupancy.get(ws, 0.0), seconds.get(ws, 0.0)
        assert _is_close(found, expected), f"{ws!r} gains {expected} seconds, not {found}"
        assert stealing_state.tasks.get(ws, 0) == tasks.get(ws, 0), f"tasks gained by {ws!r} differ"
    timer = stealing_state.timer or not (in_flight or stealing_state.running)
    assert timer, "no timer is set for the requests in flight or the next round"


# ------------------------------------------------------------------ checking


#: Scope -> number -> function that raises AssertionError if the invariant, its docstring, does not
#: hold. A number is never used again for another invariant.
INVARIANTS: Mapping[str, Mapping[int, Callable[[View, Any], None]]] = {
    "task": {
        1: _known, 2: _edges, 3: _desires, 4: _holders, 5: _counts, 6: _placed, 7: _collections,
        8: _runnable, 9: _has_data, 10: _blamed, 11: _needed, 12: _kept,
        13: _waits_for_something, 14: _inputs_there,
    },
    "worker": {20: _worker_known, 21: _worker_tasks, 22: _worker_counts, 23: _worker_load},
    "client": {30: _client_known},
    "group": {40: _group_known},
    "prefix": {41: _prefix_known},
    "state": {
        50: _group_counts, 51: _prefix_counts, 52: _totals, 53: _network, 54: _graphs,
        60: _steals, 61: check_shares, 62: check_retries, 63: check_second_runs, 64: check_ends,
    },
}  # fmt: skip


def _run(view: View, scope: str, subjects: Iterable[Any]) -> None:
    for subject in subjects:
        for number, check in INVARIANTS[scope].items():
            try:
                check(view, subject)
            except AssertionError as error:
                shown = "" if subject is view.state else subject
                text = (check.__doc__ or "").removeprefix("Check that ").rstrip(".")
                raise InvariantBroken(number, text, shown, str(error)) from None


def validate_tasks(state: SchedulerState, tasks: Iterable[TaskState]) -> None:
    """Check the invariants of `tasks` that are not forgotten. Raise InvariantBroken."""
    _run(View(state), "task", (ts for ts in tasks if ts.state != "forgotten"))


def validate_state(state: SchedulerState) -> None:
    """Check all invariants. Raise InvariantBroken for the first that does not hold."""
    view = View(state)
    _run(view, "task", state.tasks.values())
    _run(view, "worker", state.workers.values())
    _run(view, "client", state.clients.values())
    _run(view, "group", state.task_groups.values())
    _run(view, "prefix", state.task_prefixes.values())
    _run(view, "state", (state,))
