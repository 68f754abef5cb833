"""Checks of the invariants in ``invariants.py``. A check yields a text for each violation."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf, isclose

from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.state.model import (
    ACTIVE_STATES,
    TASK_STATES,
    ClientState,
    TaskGroup,
    TaskPrefix,
    TaskState,
    WorkerState,
)
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.worker_loads import is_available

#: How far sums of floating-point numbers may be from what is computed afresh, relative and in seconds.
SECONDS_TOLERANCE = 1e-6

#: States of a task that could run: its dependencies are all there.
READY_STATES = frozenset({"queued", "no-worker", "processing"})


class View:
    """The state, and what of it a later turn will look at.

    Attributes:
        state: all of it.
        pins: placeholder clients of the graphs that are being committed.
        pending: tasks that a later turn is going to check.
    """

    __slots__ = ("pending", "pins", "state")

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self.pins = [
            graph.placeholder_client
            for graph in state.deferred.commits
            if graph.placeholder_client is not None
        ]
        self.pending = state.deferred.pending()

    def is_pending(self, ts: TaskState) -> bool:
        """Return whether a later turn is going to check `ts`."""
        return ts in self.pending

    def is_wanted(self, ts: TaskState) -> bool:
        """Whether a client (a pin is none) or a dependent that is to run needs its data."""
        if any(d.state in ACTIVE_STATES for d in ts.dependents):
            return True
        return any(cs not in self.pins for cs in ts.who_wants)

    def may_be_wanted(self, ts: TaskState) -> bool:
        """Whether a pin, or a dependent that a later turn will look at, needs its data too."""
        return bool(ts.who_wants) or any(self.is_pending(d) for d in ts.dependents)


# ------------------------------------------------------------------ one task


def known(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    if state.tasks.get(ts.key) is not ts:
        yield "not in state.tasks under its key"
    if ts.state not in TASK_STATES or ts.state == "forgotten":
        yield f"state is {ts.state}"
    if state.task_groups.get(ts.group.name) is not ts.group:
        yield "its group is not in state.task_groups"


def edges(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    if len(set(map(id, ts.dependencies))) != len(ts.dependencies):
        yield "a dependency occurs twice"
    for dts in ts.dependencies:
        if ts not in dts.dependents:
            yield f"{dts!r} does not have it as dependent"
        if state.tasks.get(dts.key) is not dts:
            yield f"depends on {dts!r}, which is not known"
    for dts in ts.dependents:
        if ts not in dts.dependencies:
            yield f"{dts!r} does not depend on it"
        if state.tasks.get(dts.key) is not dts:
            yield f"has the dependent {dts!r}, which is not known"


def wishes(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    for cs in ts.who_wants:
        if ts not in cs.wants_what:
            yield f"{cs!r} does not want it"
        known = state.clients.get(cs.client_key) is cs or cs in state.deferred.client_removals
        if not known and cs not in view.pins:
            yield f"wanted by {cs!r}, which is not known"


def holders(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    for ws in ts.who_has:
        if ts not in ws.has_what:
            yield f"{ws!r} does not have it"
        if state.workers.get(ws.address) is not ws:
            yield f"held by {ws!r}, which is not known"
    if (ts in state.replicated_tasks) != (len(ts.who_has) > 1):
        yield f"{len(ts.who_has)} replicas, and replicated_tasks says otherwise"


def holder_counts(view: View, ts: TaskState) -> Iterator[str]:
    waiting = sum(not d.who_has for d in ts.dependencies) if ts.state == "waiting" else 0
    if ts.waiting_count != waiting:
        yield f"waiting_count is {ts.waiting_count}, not {waiting}"
    waiters = sum(d.state in ACTIVE_STATES for d in ts.dependents)
    if ts.waiters_count != waiters:
        yield f"waiters_count is {ts.waiters_count}, not {waiters}"


def placed(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    ws = ts.processing_on
    if (ws is not None) != (ts.state == "processing"):
        yield f"processing_on is {ws!r}"
    if ws is not None:
        if ts not in ws.processing:
            yield f"{ws!r} does not process it"
        if state.workers.get(ws.address) is not ws and not view.is_pending(ts):
            yield f"processing on {ws!r}, which is gone, and nothing will release it"
        if not ts.run_id:
            yield "it was sent without a run_id"


def collections(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    if (ts in state.queued) != (ts.state == "queued"):
        yield "state.queued says otherwise"
    if (ts in state.unrunnable) != (ts.state == "no-worker"):
        yield "state.unrunnable says otherwise"
    restricted = ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions
    if ts.state == "queued" and restricted:
        yield "a restricted task is in the queue"


def runnable(view: View, ts: TaskState) -> Iterator[str]:
    if ts.state in ACTIVE_STATES or ts.state == "memory":
        if ts.state != "memory" and ts.run_spec is None:
            yield "nothing can run: it has no run_spec"
        if ts.run_spec is not None and ts.priority is None:
            yield "it has a run_spec and no priority"
    if ts.state in ACTIVE_STATES and ts.has_lost_dependencies and not view.is_pending(ts):
        yield "it lost a dependency, and nothing will forget it"


def has_data(view: View, ts: TaskState) -> Iterator[str]:
    if ts.state == "memory":
        if not ts.who_has and not view.is_pending(ts):
            yield "no worker has its data, and nothing will release it"
    elif ts.who_has:
        yield "a worker has its data"


def retry_is_coming(view: View, ts: TaskState) -> bool:
    """Whether it, or what failed above it, is among those that are yet to be tried again."""
    stack = [ts]
    while stack:
        ts = stack.pop()
        if view.is_pending(ts):
            return True
        stack.extend(d for d in ts.dependencies if d.state == "erred")
    return False


def blamed(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    blame = ts.exception_blame
    if ts.state == "erred":
        if blame is None:
            yield "no task is blamed"
        elif blame.state != "erred" and not retry_is_coming(view, ts):
            # what was to blame may have been tried again, and even let go, before the rest had its turn
            yield f"blames {blame!r}, which has not erred"
        elif blame.state == "erred" and state.tasks.get(blame.key) is not blame:
            yield f"blames {blame!r}, which is not known"
    elif blame is not None and not view.is_pending(ts):
        yield f"blames {blame!r}"


def needed(view: View, ts: TaskState) -> Iterator[str]:
    if ts.state in ACTIVE_STATES or ts.state == "memory":
        placed = ts.run_spec is None and ts.state == "memory"  # scattered data
        if not (view.is_wanted(ts) or view.is_pending(ts) or view.may_be_wanted(ts) or placed):
            yield "no client or task wants it"


def kept(view: View, ts: TaskState) -> Iterator[str]:
    placed = ts.run_spec is None and ts.state == "memory"  # scattered data
    if not ts.who_wants and not ts.dependents and not view.is_pending(ts) and not placed:
        yield "no client wants it, nothing depends on it, and it is not forgotten"


def waits_for_something(view: View, ts: TaskState) -> Iterator[str]:
    if view.is_pending(ts):
        return
    if ts.state == "waiting":
        if not ts.waiting_count:
            yield "it waits for nothing, and nothing will place it"
        for dts in ts.dependencies:
            coming = dts.state in ACTIVE_STATES or view.is_pending(dts)
            if dts.state == "erred":
                coming = retry_is_coming(view, dts)
            if not dts.who_has and not coming:
                yield f"it waits for {dts!r}, for which nothing is done"
    elif ts.state == "released" and view.is_wanted(ts) and ts.run_spec is not None:
        yield "it is wanted, and nothing is done"


def inputs_there(view: View, ts: TaskState) -> Iterator[str]:
    if ts.state in READY_STATES:
        for dts in ts.dependencies:
            if dts.who_has:
                continue
            if not view.is_pending(ts) and not view.is_pending(dts):
                yield f"no worker has the data of {dts!r}"


# ------------------------------------------------------------------ one worker


def worker_known(view: View, ws: WorkerState) -> Iterator[str]:
    state = view.state
    if state.workers.get(ws.address) is not ws:
        yield "not in state.workers under its address"
    if state.aliases.get(ws.name) != ws.address:
        yield "its name is no alias of it"
    if ws.status == "closed":
        yield "it is closed"
    info = state.host_info.get(ws.host)
    if info is None or ws.address not in info["addresses"]:
        yield "host_info does not name it"


def worker_tasks(view: View, ws: WorkerState) -> Iterator[str]:
    state = view.state
    for ts in ws.processing:
        if ts.processing_on is not ws:
            yield f"{ts!r} is not processing on it"
    for ts in ws.has_what:
        if ws not in ts.who_has:
            yield f"{ts!r} is not in its who_has"
    for ts in ws.long_running:
        if ts not in ws.processing:
            yield f"{ts!r} seceded and is not processing"
    for ts in ws.actors:
        if not ts.actor or (ts.processing_on is not ws and ws not in ts.who_has):
            yield f"{ts!r} is no actor of it"
    nbytes = sum(accounting.data_nbytes(state, ts) for ts in ws.has_what)
    if ws.nbytes != nbytes:
        yield f"nbytes is {ws.nbytes}, not {nbytes}"


def worker_counts(view: View, ws: WorkerState) -> Iterator[str]:
    state = view.state
    counts: dict[TaskPrefix, int] = {}
    needs: dict[TaskState, int] = {}
    used: dict[str, float] = {}
    for ts in ws.processing:
        if ts not in ws.long_running:
            counts[ts.prefix] = counts.get(ts.prefix, 0) + 1
        for dts in ts.dependencies:
            needs[dts] = needs.get(dts, 0) + 1
        for resource, amount in (ts.resource_restrictions or {}).items():
            used[resource] = used.get(resource, 0.0) + amount
    if ws.prefix_counts != counts:
        yield f"prefix_counts is {ws.prefix_counts}, not {counts}"
    if ws.unknown_duration_total != sum(ws.unknown_duration_count.values()):
        yield f"unknown_duration_total is {ws.unknown_duration_total}, not the sum of {ws.unknown_duration_count}"
    for known, found in ((True, ws.task_prefix_count), (False, ws.unknown_duration_count)):
        for prefix in found:
            if accounting.is_duration_known(prefix) is not known:
                yield f"the duration of {prefix!r} is {'un' if known else ''}known, and counted otherwise"
    for dts, count in ws.needs_what.items():
        if dts in ws.has_what:
            yield f"needs_what holds {dts!r}, which it has"
        if not 0 < count <= needs.get(dts, 0):
            yield f"needs {dts!r} for {count} tasks, not {needs.get(dts, 0)}"
    network = sum(accounting.data_nbytes(state, dts) for dts in ws.needs_what)
    if ws.network_occ != network:
        yield f"network_occ is {ws.network_occ}, not {network}"
    for resource in {**used, **ws.used_resources}:
        if not isclose(used.get(resource, 0), ws.used_resources.get(resource, 0), abs_tol=1e-9):
            yield f"used_resources is {ws.used_resources}, not {used}"
    for resource, amount in ws.resources.items():
        if state.resources.get(resource, {}).get(ws.address) != amount:
            yield f"state.resources does not know its {resource}"


def worker_load(view: View, ws: WorkerState) -> Iterator[str]:
    state = view.state
    loads = state.loads
    available = is_available(ws)
    if (ws in state.running) != available:
        yield "state.running says otherwise"
    if not available:
        if ws in loads.idle or ws in loads.idle_task_count or ws in loads.saturated:
            yield "it takes nothing new, and is idle or saturated"
        return
    if ws in loads.idle and ws in loads.saturated:
        yield "idle and saturated"
    if loads.are_slots_dirty(ws):
        return
    if len(ws.processing) < ws.nthreads and ws not in loads.idle and not loads.is_dirty(ws):
        yield "fewer tasks than threads, and not idle"
    saturation = state.config.worker_saturation
    full = inf if saturation == inf else max(ceil(saturation * ws.nthreads), 1)
    has_slot = len(ws.processing) - len(ws.long_running) < full
    if (ws in loads.idle_task_count) != has_slot:
        yield f"has {'a' if has_slot else 'no'} slot, and idle_task_count says otherwise"


# ------------------------------------------------------------------ one client, group, prefix


def client_known(view: View, cs: ClientState) -> Iterator[str]:
    state = view.state
    if state.clients.get(cs.client_key) is not cs:
        yield "not in state.clients under its name"
    for ts in cs.wants_what:
        if cs not in ts.who_wants:
            yield f"{ts!r} is not wanted by it"
        if state.tasks.get(ts.key) is not ts:
            yield f"wants {ts!r}, which is not known"


def group_known(view: View, group: TaskGroup) -> Iterator[str]:
    state = view.state
    if state.task_groups.get(group.name) is not group:
        yield "not in state.task_groups under its name"
    if group.empty:
        yield "all its tasks are forgotten"
    if sum(group.states.values()) != group.n_added or min(group.states.values()) < 0:
        yield f"{group.n_added} tasks were added, and its states are {group.states}"
    prefix = group.prefix
    if state.task_prefixes.get(prefix.name) is not prefix or group not in prefix.groups:
        yield f"its prefix {prefix!r} does not know it"


def prefix_known(view: View, prefix: TaskPrefix) -> Iterator[str]:
    state = view.state
    if (prefix.name in state.idle_prefixes) is bool(prefix.group_table):
        yield "it is listed as idle while it has groups, or the reverse"
    for group in prefix.groups:
        if state.task_groups.get(group.name) is not group:
            yield f"its group {group!r} is not known"


# ------------------------------------------------------------------ the whole


def group_counts(view: View, state: SchedulerState) -> Iterator[str]:
    counts: dict[TaskGroup, dict[str, int]] = {
        group: dict.fromkeys(TASK_STATES, 0) for group in state.task_groups.values()
    }
    for ts in state.tasks.values():
        counts[ts.group][ts.state] += 1
    for group, states in counts.items():
        states["forgotten"] = group.states["forgotten"]
        if states != group.states:
            yield f"{group!r} has {states}"


def prefix_counts(view: View, state: SchedulerState) -> Iterator[str]:
    counts: dict[TaskPrefix, int] = {}
    for ts in state.tasks.values():
        ws = ts.processing_on
        if ws is not None and ts not in ws.long_running:
            counts[ts.prefix] = counts.get(ts.prefix, 0) + 1
    seconds = 0.0
    for prefix in state.task_prefixes.values():
        if prefix.processing_count != counts.get(prefix, 0):
            yield f"{prefix!r} counts {prefix.processing_count} processing, not {counts.get(prefix, 0)}"
        seconds += accounting.expected_duration(state, prefix) * prefix.processing_count
    found = state.compute_occupancy
    if not isclose(found, seconds, rel_tol=SECONDS_TOLERANCE, abs_tol=SECONDS_TOLERANCE):
        yield f"compute_occupancy is {found}, not {seconds}"


def totals(view: View, state: SchedulerState) -> Iterator[str]:
    loads = state.loads
    workers = list(state.workers.values())
    for name, found, expected in (
        ("total_nthreads", state.total_nthreads, sum(ws.nthreads for ws in workers)),
        ("total_memory", state.total_memory, sum(ws.memory_limit for ws in workers)),
        ("len(aliases)", len(state.aliases), len(workers)),
        ("len(running)", len(state.running), sum(ws in state.running for ws in workers)),
        ("len(idle)", len(loads.idle), sum(ws in loads.idle for ws in workers)),
        (
            "len(idle_task_count)",
            len(loads.idle_task_count),
            sum(ws in loads.idle_task_count for ws in workers),
        ),
        ("len(saturated)", len(loads.saturated), sum(ws in loads.saturated for ws in workers)),
    ):
        if found != expected:
            yield f"{name} is {found}, not {expected}"
    for host, info in state.host_info.items():
        nthreads = sum(state.workers[a].nthreads for a in info["addresses"])
        if info["nthreads"] != nthreads:
            yield f"host {host} has {info['nthreads']} threads, not {nthreads}"
    tasks = state.tasks
    for what, members in (
        ("queued", state.queued),
        ("unrunnable", state.unrunnable),
        ("replicated_tasks", state.replicated_tasks),
    ):
        for ts in members:
            if tasks.get(ts.key) is not ts:
                yield f"{what} holds {ts!r}, which is not known"
    since = list(state.unrunnable.values())
    if since != sorted(since):
        yield "unrunnable is not in order of time"


def network(view: View, state: SchedulerState) -> Iterator[str]:
    gone = {ts.processing_on for ts in view.pending if ts.processing_on is not None}
    workers = {**dict.fromkeys(state.workers.values()), **dict.fromkeys(gone)}
    network = sum(ws.network_occ for ws in workers)
    if state.network_occ != network:
        yield f"network_occ is {state.network_occ}, not {network}"


def held_rows(view: View, state: SchedulerState) -> Iterator[str]:
    for number, graph in state.graphs.items():
        if graph.graph_id != number:
            yield f"graph {graph.graph_id} is held under {number}"
        if graph.client not in state.clients and not graph.dropped:
            yield f"graph {number} is of client {graph.client!r}, which is gone"
        if (graph.commit is not None) != (graph in state.deferred.commits):
            yield f"graph {number} was committed, and commits says otherwise"
        if (
            graph.tasks or graph.new_tasks or graph.placeholder_client
        ) and graph is not state.deferred.commits[0]:
            yield f"graph {number} has made tasks before its turn"
    for graph in state.deferred.commits:
        if state.graphs.get(graph.graph_id) is not graph and not graph.dropped:
            yield f"graph {graph.graph_id} is being committed, and is not held"


def steals(view: View, state: SchedulerState) -> Iterator[str]:
    stealing_state = state.stealing
    seconds: dict[WorkerState, float] = {}
    tasks: dict[WorkerState, int] = {}
    for ts, steal in stealing_state.in_flight.items():
        for ws, gained, count in (
            (steal.victim, -steal.victim_seconds, -1),
            (steal.thief, steal.thief_seconds, 1),
        ):
            if ws is None:
                continue
            seconds[ws] = seconds.get(ws, 0.0) + gained
            tasks[ws] = tasks.get(ws, 0) + count
        if steal.victim is steal.thief:
            yield f"{ts!r} is asked back from {steal.victim!r} for itself"
        if stealing_state.is_live(ts, steal) and (
            ts.state != "processing" or ts not in steal.victim.processing
        ):
            yield f"{ts!r} is asked back from {steal.victim!r}, which does not process it"
    names = [steal.stimulus_id for steal in stealing_state.in_flight.values()]
    if len(set(names)) != len(names):
        yield f"two requests have one name: {names}"
    for ws in {**seconds, **stealing_state.occupancy}:
        found, expected = stealing_state.occupancy.get(ws, 0.0), seconds.get(ws, 0.0)
        if not isclose(found, expected, rel_tol=SECONDS_TOLERANCE, abs_tol=SECONDS_TOLERANCE):
            yield f"{ws!r} gains {expected} seconds of work, not {found}"
        if stealing_state.tasks.get(ws, 0) != tasks.get(ws, 0):
            yield f"{ws!r} gains {tasks.get(ws, 0)} tasks, not {stealing_state.tasks.get(ws, 0)}"
    if not stealing_state.timer and (stealing_state.in_flight or stealing_state.running):
        yield "no timer is set for the requests in flight or the next round"
