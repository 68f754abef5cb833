"""What must hold after every turn: a table of numbered invariants, and the checks.

Most hold without exception. Long work that is cut into turns leaves tasks for which a recommendation is still on
its way: ``View.is_pending`` says which, and the invariants about progress except those, no others.

``validate_state`` looks at everything, O(n): for tests, and for schedulers with ``validate`` on.

Must not know: how to repair anything; messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil, inf, isclose
from typing import Any

from . import mirrors, placement
from .groups import TASK_STATES, TaskGroup, TaskPrefix
from .state import ACTIVE_STATES, ClientState, SchedulerState, TaskState, WorkerState
from .steals import is_live

#: How far sums of floating-point numbers may be from what is computed afresh, relative and in seconds.
SECONDS_TOLERANCE = 1e-6

#: States of a task that could run: its dependencies are all there.
READY_STATES = frozenset({"queued", "no-worker", "processing"})


class InvariantBroken(AssertionError):
    """Something that must hold does not: a bug of this scheduler, never of a peer.

    Attributes:
        number: of the invariant.
        text: the invariant in words.
        subject: the task, worker, ... that breaks it.
    """

    def __init__(self, number: int, text: str, subject: Any, found: str) -> None:
        super().__init__(f"invariant {number} is broken: {text}; {subject!r}: {found}")
        self.number = number
        self.text = text
        self.subject = subject


# ------------------------------------------------------------------ what is still on its way


class View:
    """The state, and what of it a later turn will look at.

    Attributes:
        state: all of it.
        in_commit: tasks that the commit under way has still to come to, or has brought halfway.
        pins: what holds the externals of commits.
        let_go: tasks that somebody has let go of, and that were not looked at since.
        departing: tasks of workers that are gone.
    """

    __slots__ = ("departing", "in_commit", "let_go", "pins", "state")

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self.pins = [graph.pin for graph in state.commits if graph.pin is not None]
        self.let_go = frozenset(state.let_go)
        self.departing = frozenset(
            ts for departure in state.departures for ts in departure.tasks[departure.done :]
        )
        self.in_commit: frozenset[TaskState] = frozenset()
        if state.commits:
            graph = state.commits[0]
            if graph.stage == "place":
                self.in_commit = frozenset(graph.ready[graph.cursor :])
            elif graph.stage != "unpin" or graph.dropped:
                self.in_commit = frozenset(graph.tasks)

    def is_pending(self, ts: TaskState) -> bool:
        """Whether a later turn will look at the task."""
        return (
            ts in self.state.backlog
            or ts in self.in_commit
            or ts in self.let_go
            or ts in self.departing
        )

    def is_wanted(self, ts: TaskState) -> bool:
        """Whether a client (a pin is none) or a dependent that is to run needs its data."""
        if any(d.state in ACTIVE_STATES for d in ts.dependents):
            return True
        return any(cs not in self.pins for cs in ts.who_wants)

    def may_be_wanted(self, ts: TaskState) -> bool:
        """Whether a pin, or a dependent that a later turn will look at, needs its data too."""
        return bool(ts.who_wants) or any(self.is_pending(d) for d in ts.dependents)


# A check yields what it found wrong, in words; nothing where all is well.
Check = Callable[[View, Any], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Invariant:
    """One line of the table.

    Attributes:
        number: never used again for another one.
        scope: what is checked: "task", "worker", "client", "group", "prefix" or "state".
        text: what must hold.
        check: yields what breaks it.
    """

    number: int
    scope: str
    text: str
    check: Check


# ------------------------------------------------------------------ one task


def _known(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    if state.tasks.get(ts.key) is not ts:
        yield "not in state.tasks under its key"
    if ts.state not in TASK_STATES or ts.state == "forgotten":
        yield f"state is {ts.state}"
    if state.task_groups.get(ts.group.name) is not ts.group:
        yield "its group is not in state.task_groups"


def _edges(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    if len(set(map(id, ts.dependencies))) != len(ts.dependencies):
        yield "a dependency stands twice"
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


def _wishes(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    for cs in ts.who_wants:
        if ts not in cs.wants_what:
            yield f"{cs!r} does not want it"
        known = state.clients.get(cs.client_key) is cs or cs in state.leaving
        if not known and cs not in view.pins:
            yield f"wanted by {cs!r}, which is not known"


def _holders(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    for ws in ts.who_has:
        if ts not in ws.has_what:
            yield f"{ws!r} does not have it"
        if state.workers.get(ws.address) is not ws:
            yield f"held by {ws!r}, which is not known"
    if (ts in state.replicated_tasks) != (len(ts.who_has) > 1):
        yield f"{len(ts.who_has)} replicas, and replicated_tasks says otherwise"


def _holder_counts(view: View, ts: TaskState) -> Iterator[str]:
    waiting = sum(not d.who_has for d in ts.dependencies) if ts.state == "waiting" else 0
    if ts.waiting_count != waiting:
        yield f"waiting_count is {ts.waiting_count}, not {waiting}"
    waiters = sum(d.state in ACTIVE_STATES for d in ts.dependents)
    if ts.waiters_count != waiters:
        yield f"waiters_count is {ts.waiters_count}, not {waiters}"


def _placed(view: View, ts: TaskState) -> Iterator[str]:
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


def _collections(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    if (ts in state.queued) != (ts.state == "queued"):
        yield "state.queued says otherwise"
    if (ts in state.unrunnable) != (ts.state == "no-worker"):
        yield "state.unrunnable says otherwise"
    restricted = ts.worker_restrictions or ts.host_restrictions or ts.resource_restrictions
    if ts.state == "queued" and restricted:
        yield "a restricted task is in the queue"


def _runnable(view: View, ts: TaskState) -> Iterator[str]:
    if ts.state in ACTIVE_STATES or ts.state == "memory":
        if ts.state != "memory" and ts.run_spec is None:
            yield "nothing can run: it has no run_spec"
        if ts.run_spec is not None and ts.priority is None:
            yield "it has a run_spec and no priority"
    if ts.state in ACTIVE_STATES and ts.has_lost_dependencies and not view.is_pending(ts):
        yield "it lost a dependency, and nothing will forget it"


def _has_data(view: View, ts: TaskState) -> Iterator[str]:
    if ts.state == "memory":
        if not ts.who_has and not view.is_pending(ts):
            yield "nobody has its data, and nothing will release it"
    elif ts.who_has:
        yield "somebody has its data"


def _retry_is_coming(view: View, ts: TaskState) -> bool:
    """Whether it, or what failed above it, is among those that are yet to be tried again."""
    stack = [ts]
    while stack:
        ts = stack.pop()
        if view.is_pending(ts):
            return True
        stack.extend(d for d in ts.dependencies if d.state == "erred")
    return False


def _blamed(view: View, ts: TaskState) -> Iterator[str]:
    state = view.state
    blame = ts.exception_blame
    if ts.state == "erred":
        if blame is None:
            yield "nobody is to blame"
        elif blame.state != "erred" and not _retry_is_coming(view, ts):
            # what was to blame may have been tried again, and even let go, before the rest had its turn
            yield f"blames {blame!r}, which has not erred"
        elif blame.state == "erred" and state.tasks.get(blame.key) is not blame:
            yield f"blames {blame!r}, which is not known"
    elif blame is not None and not view.is_pending(ts):
        yield f"blames {blame!r}"


def _needed(view: View, ts: TaskState) -> Iterator[str]:
    if ts.state in ACTIVE_STATES or ts.state == "memory":
        placed = ts.run_spec is None and ts.state == "memory"  # for nobody, from outside
        if not (view.is_wanted(ts) or view.is_pending(ts) or view.may_be_wanted(ts) or placed):
            yield "nobody wants it"


def _kept(view: View, ts: TaskState) -> Iterator[str]:
    placed = ts.run_spec is None and ts.state == "memory"  # for nobody, from outside
    if not ts.who_wants and not ts.dependents and not view.is_pending(ts) and not placed:
        yield "nobody wants it, nothing depends on it, and it is not forgotten"


def _waits_for_something(view: View, ts: TaskState) -> Iterator[str]:
    if view.is_pending(ts):
        return
    if ts.state == "waiting":
        if not ts.waiting_count:
            yield "it waits for nothing, and nothing will place it"
        for dts in ts.dependencies:
            coming = dts.state in ACTIVE_STATES or view.is_pending(dts)
            if dts.state == "erred":
                coming = _retry_is_coming(view, dts)
            if not dts.who_has and not coming:
                yield f"it waits for {dts!r}, for which nothing is done"
    elif ts.state == "released" and view.is_wanted(ts) and ts.run_spec is not None:
        yield "it is wanted, and nothing is done"


def _inputs_there(view: View, ts: TaskState) -> Iterator[str]:
    if ts.state in READY_STATES:
        for dts in ts.dependencies:
            if dts.who_has:
                continue
            if not view.is_pending(ts) and not view.is_pending(dts):
                yield f"nobody has the data of {dts!r}"


# ------------------------------------------------------------------ one worker


def _worker_known(view: View, ws: WorkerState) -> Iterator[str]:
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


def _worker_tasks(view: View, ws: WorkerState) -> Iterator[str]:
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
    nbytes = sum(mirrors.data_nbytes(state, ts) for ts in ws.has_what)
    if ws.nbytes != nbytes:
        yield f"nbytes is {ws.nbytes}, not {nbytes}"


def _worker_counts(view: View, ws: WorkerState) -> Iterator[str]:
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
    if ws.unknown_total != sum(ws.unknown_counts.values()):
        yield f"unknown_total is {ws.unknown_total}, not the sum of {ws.unknown_counts}"
    for known, found in ((True, ws.known_counts), (False, ws.unknown_counts)):
        for prefix in found:
            if mirrors.is_duration_known(prefix) is not known:
                yield f"the duration of {prefix!r} is {'un' if known else ''}known, and counted otherwise"
    for dts, count in ws.needs_what.items():
        if dts in ws.has_what:
            yield f"needs_what holds {dts!r}, which it has"
        if not 0 < count <= needs.get(dts, 0):
            yield f"needs {dts!r} for {count} tasks, not {needs.get(dts, 0)}"
    network = sum(mirrors.data_nbytes(state, dts) for dts in ws.needs_what)
    if ws.network_occ != network:
        yield f"network_occ is {ws.network_occ}, not {network}"
    for resource in {**used, **ws.used_resources}:
        if not isclose(used.get(resource, 0), ws.used_resources.get(resource, 0), abs_tol=1e-9):
            yield f"used_resources is {ws.used_resources}, not {used}"
    for resource, amount in ws.resources.items():
        if state.resources.get(resource, {}).get(ws.address) != amount:
            yield f"state.resources does not know its {resource}"


def _worker_load(view: View, ws: WorkerState) -> Iterator[str]:
    state = view.state
    available = placement.is_available(ws)
    if (ws in state.running) != available:
        yield "state.running says otherwise"
    if not available:
        if ws in state.idle or ws in state.idle_load or ws in state.saturated:
            yield "it takes nothing new, and is idle or saturated"
        return
    if ws in state.idle and ws in state.saturated:
        yield "idle and saturated"
    if ws in state.restless:
        return
    if len(ws.processing) < ws.nthreads and ws not in state.idle and ws not in state.unsettled:
        yield "fewer tasks than threads, and not idle"
    saturation = state.config.worker_saturation
    full = inf if saturation == inf else max(ceil(saturation * ws.nthreads), 1)
    has_slot = len(ws.processing) - len(ws.long_running) < full
    if (ws in state.idle_load) != has_slot:
        yield f"has {'a' if has_slot else 'no'} slot, and idle_load says otherwise"


# ------------------------------------------------------------------ one client, group, prefix


def _client_known(view: View, cs: ClientState) -> Iterator[str]:
    state = view.state
    if state.clients.get(cs.client_key) is not cs:
        yield "not in state.clients under its name"
    for ts in cs.wants_what:
        if cs not in ts.who_wants:
            yield f"{ts!r} is not wanted by it"
        if state.tasks.get(ts.key) is not ts:
            yield f"wants {ts!r}, which is not known"


def _group_known(view: View, group: TaskGroup) -> Iterator[str]:
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


def _prefix_known(view: View, prefix: TaskPrefix) -> Iterator[str]:
    state = view.state
    for group in prefix.groups:
        if state.task_groups.get(group.name) is not group:
            yield f"its group {group!r} is not known"


# ------------------------------------------------------------------ the whole


def _group_counts(view: View, state: SchedulerState) -> Iterator[str]:
    counts: dict[TaskGroup, dict[str, int]] = {
        group: dict.fromkeys(TASK_STATES, 0) for group in state.task_groups.values()
    }
    for ts in state.tasks.values():
        counts[ts.group][ts.state] += 1
    for group, states in counts.items():
        states["forgotten"] = group.states["forgotten"]
        if states != group.states:
            yield f"{group!r} has {states}"


def _prefix_counts(view: View, state: SchedulerState) -> Iterator[str]:
    counts: dict[TaskPrefix, int] = {}
    for ts in state.tasks.values():
        ws = ts.processing_on
        if ws is not None and ts not in ws.long_running:
            counts[ts.prefix] = counts.get(ts.prefix, 0) + 1
    seconds = 0.0
    for prefix in state.task_prefixes.values():
        if prefix.processing_count != counts.get(prefix, 0):
            yield f"{prefix!r} counts {prefix.processing_count} processing, not {counts.get(prefix, 0)}"
        seconds += mirrors.expected_duration(state, prefix) * prefix.processing_count
    found = state.compute_occupancy
    if not isclose(found, seconds, rel_tol=SECONDS_TOLERANCE, abs_tol=SECONDS_TOLERANCE):
        yield f"compute_occupancy is {found}, not {seconds}"


def _totals(view: View, state: SchedulerState) -> Iterator[str]:
    workers = list(state.workers.values())
    for name, found, expected in (
        ("total_nthreads", state.total_nthreads, sum(ws.nthreads for ws in workers)),
        ("total_memory", state.total_memory, sum(ws.memory_limit for ws in workers)),
        ("len(aliases)", len(state.aliases), len(workers)),
        ("len(running)", len(state.running), sum(ws in state.running for ws in workers)),
        ("len(idle)", len(state.idle), sum(ws in state.idle for ws in workers)),
        ("len(idle_load)", len(state.idle_load), sum(ws in state.idle_load for ws in workers)),
        ("len(saturated)", len(state.saturated), sum(ws in state.saturated for ws in workers)),
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


def _network(view: View, state: SchedulerState) -> Iterator[str]:
    pending = (*state.backlog, *view.let_go, *view.departing)
    gone = {ts.processing_on for ts in pending if ts.processing_on is not None}
    workers = {**dict.fromkeys(state.workers.values()), **dict.fromkeys(gone)}
    network = sum(ws.network_occ for ws in workers)
    if state.network_occ != network:
        yield f"network_occ is {state.network_occ}, not {network}"


def _held_rows(view: View, state: SchedulerState) -> Iterator[str]:
    for number, graph in state.graphs.items():
        if graph.graph_id != number:
            yield f"graph {graph.graph_id} is held under {number}"
        if graph.client not in state.clients and not graph.dropped:
            yield f"graph {number} is of client {graph.client!r}, which is gone"
        if (graph.commit is not None) != (graph in state.commits):
            yield f"graph {number} was committed, and commits says otherwise"
        if (graph.tasks or graph.new_tasks or graph.pin) and graph is not state.commits[0]:
            yield f"graph {number} has made tasks before its turn"
    for graph in state.commits:
        if state.graphs.get(graph.graph_id) is not graph and not graph.dropped:
            yield f"graph {graph.graph_id} is being committed, and is not held"


def _steals(view: View, state: SchedulerState) -> Iterator[str]:
    steals = state.steals
    seconds: dict[WorkerState, float] = {}
    tasks: dict[WorkerState, int] = {}
    for ts, steal in steals.in_flight.items():
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
        if is_live(state, ts, steal) and (ts.state != "processing" or ts not in steal.victim.processing):
            yield f"{ts!r} is asked back from {steal.victim!r}, which does not process it"
    names = [steal.stimulus_id for steal in steals.in_flight.values()]
    if len(set(names)) != len(names):
        yield f"two requests have one name: {names}"
    for ws in {**seconds, **steals.occupancy}:
        found, expected = steals.occupancy.get(ws, 0.0), seconds.get(ws, 0.0)
        if not isclose(found, expected, rel_tol=SECONDS_TOLERANCE, abs_tol=SECONDS_TOLERANCE):
            yield f"{ws!r} gains {expected} seconds of work, not {found}"
        if steals.tasks.get(ws, 0) != tasks.get(ws, 0):
            yield f"{ws!r} gains {tasks.get(ws, 0)} tasks, not {steals.tasks.get(ws, 0)}"
    if not steals.timer and (steals.in_flight or steals.running):
        yield "nobody will look at what is in flight, nor at the balance"


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(1, "task", "a task is in state.tasks under its key, its group in task_groups", _known),
    Invariant(2, "task", "dependencies and dependents mirror each other, among known tasks", _edges),
    Invariant(3, "task", "who_wants mirrors wants_what of known clients, leaving ones, and pins", _wishes),
    Invariant(4, "task", "who_has mirrors has_what of known workers; more than one is replicated", _holders),
    Invariant(5, "task", "waiting_count and waiters_count count what they say", _holder_counts),
    Invariant(6, "task", "processing_on is set exactly in processing, on a known worker", _placed),
    Invariant(7, "task", "queued and unrunnable hold exactly the tasks in queued and no-worker", _collections),
    Invariant(8, "task", "what is to run has a run_spec, a priority and all its dependencies", _runnable),
    Invariant(9, "task", "somebody has the data exactly of tasks in memory", _has_data),
    Invariant(10, "task", "exactly an erred task blames a task, and that has erred", _blamed),
    Invariant(11, "task", "what runs, waits, or lies in memory is wanted", _needed),
    Invariant(12, "task", "what nobody wants and nothing depends on is forgotten", _kept),
    Invariant(13, "task", "a wanted task waits for something that is being done", _waits_for_something),
    Invariant(14, "task", "a task in queued, no-worker or processing has its inputs in memory", _inputs_there),
    Invariant(20, "worker", "a worker is in workers, aliases and host_info", _worker_known),
    Invariant(21, "worker", "processing, has_what, long_running, actors and nbytes mirror its tasks", _worker_tasks),
    Invariant(22, "worker", "prefix_counts, needs_what, network_occ and resources follow from processing", _worker_counts),
    Invariant(23, "worker", "running, idle, idle_load and saturated follow from status and load", _worker_load),
    Invariant(30, "client", "a client is in clients, and wants_what mirrors who_wants of known tasks", _client_known),
    Invariant(40, "group", "a group is in task_groups and its prefix, and not empty", _group_known),
    Invariant(41, "prefix", "a prefix has only groups that are known", _prefix_known),
    Invariant(50, "state", "a group's states count its tasks", _group_counts),
    Invariant(51, "state", "processing_count and compute_occupancy follow from what is processing", _prefix_counts),
    Invariant(52, "state", "totals, aliases, host_info and collections follow from workers and tasks", _totals),
    Invariant(53, "state", "network_occ is the sum of the workers'", _network),
    Invariant(54, "state", "held rows have made no tasks; commits are held, of clients that are there", _held_rows),
    Invariant(60, "state", "tasks asked back are processing on their victims, or the request is void; sums add up", _steals),
)  # fmt: skip


# ------------------------------------------------------------------ checking


def _run(view: View, scope: str, subjects: Iterable[Any]) -> None:
    checks = [invariant for invariant in INVARIANTS if invariant.scope == scope]
    for subject in subjects:
        for invariant in checks:
            for found in invariant.check(view, subject):
                shown = "" if subject is view.state else subject
                raise InvariantBroken(invariant.number, invariant.text, shown, found)


def validate_task(state: SchedulerState, ts: TaskState) -> None:
    """Check one task; a forgotten one has nothing that could be wrong.

    Raises:
        InvariantBroken: naming the first that does not hold.
    """
    validate_tasks(state, (ts,))


def validate_tasks(state: SchedulerState, tasks: Iterable[TaskState]) -> None:
    """Check some tasks, as ``validate_task``."""
    _run(View(state), "task", (ts for ts in tasks if ts.state != "forgotten"))


def validate_state(state: SchedulerState) -> None:
    """Check everything.

    Raises:
        InvariantBroken: naming the first that does not hold.
    """
    view = View(state)
    _run(view, "task", state.tasks.values())
    _run(view, "worker", state.workers.values())
    _run(view, "client", state.clients.values())
    _run(view, "group", state.task_groups.values())
    _run(view, "prefix", state.task_prefixes.values())
    _run(view, "state", (state,))
