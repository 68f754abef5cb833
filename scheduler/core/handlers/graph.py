"""Graphs: chunks that come in, and the commit that makes them tasks, in as many turns as it takes.

Held rows are nothing to anybody. The commit inserts rows dependencies first, so that a task's dependencies
are always there; what is not needed any more when a turn ends (a client went, a key was cancelled) is found
out again at each row. Externals are pinned while a commit takes several turns.

Must not know: how a graph was compiled; pickles.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from paceline.protocol.keys import Key, key_group, key_split
from paceline.protocol.messages import CancelledKeys, TaskErredReport
from paceline.protocol.payload import Payload

from .. import mirrors
from ..graph_spans import note_span, observe_spans
from ..graphs import PendingGraph
from ..groups import Computation, TaskGroup, TaskPrefix
from ..needs import Recommendations, due, erred_dependency, is_wanted, release_wish
from ..queries import address_or_host
from ..state import ACTIVE_STATES, ClientState, SchedulerState, TaskState
from ..stimuli import AnnotationSet, GraphChunk, GraphCommit, GraphFailed, Stimulus
from ..transitions import fill_slots, run, transition
from ..turn import Turn

#: Sub-tasks come a little before what submitted them.
SUBTASK_GENERATION_STEP = 0.01

#: So many dropped graphs are remembered, to ignore what their compilers had sent already.
DROPPED_GRAPHS_MAX = 10_000

# ------------------------------------------------------------------ new tasks


def new_task(state: SchedulerState, key: Key, run_spec: bytes | Payload | None = None) -> TaskState:
    """A task in released, in its group (made where it is the first of it)."""
    group = get_group(state, key_group(key), key_split(key))
    return add_task(state, key, group, run_spec)


def add_task(
    state: SchedulerState, key: Key, group: TaskGroup, run_spec: bytes | Payload | None
) -> TaskState:
    """A task in released."""
    ts = TaskState(key, group, run_spec)
    group.n_added += 1
    group.states["released"] += 1
    state.tasks[key] = ts
    return ts


def get_group(
    state: SchedulerState, name: str, prefix_name: str, computation: Computation | None = None
) -> TaskGroup:
    """The group of this name; made, and its prefix, where it is not there."""
    group = state.task_groups.get(name)
    if group is None:
        prefix = state.task_prefixes.get(prefix_name)
        if prefix is None:
            average = state.config.default_task_durations_seconds.get(prefix_name, -1.0)
            prefix = TaskPrefix(prefix_name, duration_average=average)
            state.task_prefixes[prefix_name] = prefix
        state.task_groups[name] = group = TaskGroup(name, prefix)
        prefix.group_table[group] = None
        if computation is not None:
            computation.groups[group] = None
    return group


# ------------------------------------------------------------------ chunks, failures


def handle_graph_chunk(turn: Turn, stimulus: Stimulus) -> None:
    """Rows of a graph: held until its commit."""
    chunk: GraphChunk = stimulus.message
    if chunk.graph_id in turn.state.dropped_graphs:
        return
    graph = turn.state.graphs.get(chunk.graph_id)
    if graph is None:
        if stimulus.source not in turn.state.clients:
            return  # its client went while it was being compiled
        graph = PendingGraph(chunk.graph_id, stimulus.source)
        turn.state.graphs[chunk.graph_id] = graph
    graph.add(chunk)


def handle_graph_dropped(turn: Turn, stimulus: Stimulus) -> None:
    """The graph was given up: its rows are forgotten, and what its commit has done is undone."""
    drop_graph(turn, stimulus.message.graph_id)
    if turn.state.commits:
        turn.wants_continue()


def drop_graph(turn: Turn, graph_id: int) -> None:
    """Forget a graph; what still comes of it is ignored. A commit under way is undone in later turns."""
    state = turn.state
    if len(state.dropped_graphs) >= DROPPED_GRAPHS_MAX:
        del state.dropped_graphs[next(iter(state.dropped_graphs))]
    state.dropped_graphs[graph_id] = None
    graph = state.graphs.pop(graph_id, None)
    if graph is None or graph not in state.commits:
        return
    if graph.generation:  # its commit has begun
        graph.stage = "unpin"
        graph.dropped = True
        turn.wants_continue()
    else:
        state.commits.remove(graph)


def handle_graph_failed(turn: Turn, stimulus: Stimulus) -> None:
    """The graph could not be compiled: each of its keys errs, for its client and all who want it."""
    state = turn.state
    failed: GraphFailed = stimulus.message
    state.graphs.pop(failed.graph_id, None)
    turn.log_event(
        ["scheduler", failed.client],
        {"action": "update-graph", "stimulus_id": turn.stimulus_id, "status": "error"},
    )
    turn.log(40, failed.text)
    for key in failed.keys:
        report = TaskErredReport(key=key, exception=failed.exception, traceback=failed.traceback)
        ts = state.tasks.get(key)
        names = [cs.client_key for cs in ts.who_wants] if ts is not None else []
        if failed.client not in names:
            names.append(failed.client)
        for name in names:
            turn.to_client(name, report)


# ------------------------------------------------------------------ commit


def handle_graph_commit(turn: Turn, stimulus: Stimulus) -> None:
    """All rows are there. Graphs are committed in the order in which they came."""
    state = turn.state
    commit: GraphCommit = stimulus.message
    graph = state.graphs.get(commit.graph_id)
    if commit.client not in state.clients or commit.graph_id in state.dropped_graphs:
        return  # gone while its graph was being compiled
    if graph is None:
        graph = PendingGraph(commit.graph_id, commit.client)
        state.graphs[commit.graph_id] = graph
    graph.client = commit.client
    graph.commit = commit
    graph.stimulus_id = turn.stimulus_id
    state.commits.append(graph)
    if len(state.commits) == 1:
        run_commits(turn)
    else:
        turn.wants_continue()


def run_commits(turn: Turn) -> None:
    """Go on with commits, a turn's worth of rows."""
    state = turn.state
    budget = state.config.turn_tasks_max
    while state.commits and budget > 0:
        graph = state.commits[0]
        turn.stimulus_id = graph.stimulus_id
        budget -= _run_commit(turn, graph, budget)
        if graph.stage == "done":
            state.commits.popleft()
            state.graphs.pop(graph.graph_id, None)
    if state.commits:
        turn.wants_continue()


def _run_commit(turn: Turn, graph: PendingGraph, budget: int) -> int:
    """At most ``budget`` rows of a commit. Returns how many were done, at least 1."""
    if not graph.generation and not _begin(turn, graph, budget):
        graph.stage = "done"
        return 1
    done = 0
    while graph.stage != "done" and done < budget:
        done += 1 + STAGES[graph.stage](turn, graph, budget - done)
    return max(done, 1)


def _begin(turn: Turn, graph: PendingGraph, budget: int) -> bool:
    """Check lost dependencies against the state as it is now. False: the graph is refused."""
    state = turn.state
    commit = graph.commit
    assert commit is not None
    externals = [state.tasks.get(key) for key in graph.externals]
    missing = [k for k, ts in zip(graph.externals, externals, strict=True) if is_lost(ts)]
    if missing:
        _refuse_lost(turn, graph, missing)
        return False
    graph.external_tasks = [ts for ts in externals if ts is not None]
    graph.generation = _next_generation(state, commit)
    graph.needed = bytearray(len(graph.keys))
    graph.computation = _computation(turn, commit)
    if not graph.fits(budget):
        graph.sweeps = True
        graph.pin = ClientState(f"graph-{graph.graph_id}")
        for ts in graph.external_tasks:
            mirrors.add_wish(ts, graph.pin)
    return True


def is_lost(ts: TaskState | None) -> bool:
    """Whether nothing will ever make this task's data: unknown, or only wished for."""
    return ts is None or (ts.run_spec is None and ts.state == "released")


def _refuse_lost(turn: Turn, graph: PendingGraph, missing: list[Key]) -> None:
    commit = graph.commit
    assert commit is not None
    keys = graph.wanted()
    for key in missing[:10]:
        turn.log(
            20,
            "User asked for computation on lost data. "
            f"Final key is {keys[0] if keys else None!s} with missing dependency {key!s}",
        )
    turn.to_client(graph.client, CancelledKeys(keys=list(keys), reason="lost dependencies"))
    cs = turn.state.clients.get(graph.client)
    recs: Recommendations = {}
    if cs is not None:
        for key in keys:
            ts = turn.state.tasks.get(key)
            if ts is not None:
                release_wish(ts, cs, recs)
    run(turn, recs)
    turn.log_event(
        ["scheduler", graph.client],
        {"action": "update-graph", "stimulus_id": turn.stimulus_id, "status": "cancelled"},
    )


def _next_generation(state: SchedulerState, commit: GraphCommit) -> float:
    """Older graphs go first; graphs in quick succession are of one generation."""
    if commit.submitting_task is not None:
        parent = state.tasks.get(commit.submitting_task)
        if parent is not None and parent.priority is not None:
            return parent.priority[1] - SUBTASK_GENERATION_STEP or SUBTASK_GENERATION_STEP
    elif state.last_graph_at + commit.fifo_timeout_seconds < commit.received_at:
        state.generation += 1
        state.last_graph_at = commit.received_at
    return state.generation or 1.0


def _computation(turn: Turn, commit: GraphCommit) -> Computation:
    state = turn.state
    if state.computations and not state.is_idle:
        computation = state.computations[-1]
    else:
        computation = Computation(start=turn.now, id=f"computation-{state.transition_counter}")
        state.computations.append(computation)
    computation.add_code(commit.code)
    if commit.global_annotations:
        computation.annotations.update(commit.global_annotations)
    return computation


# -- insert: rows become tasks, dependencies first


def _stage_insert(turn: Turn, graph: PendingGraph, budget: int) -> int:
    state = turn.state
    first = graph.cursor
    last, cost = graph.rows_up(len(graph.keys), budget)
    tasks = graph.tasks
    externals = graph.external_tasks
    collisions = graph.collisions
    groups: dict[int, TaskGroup] = {}  # none of them goes in the midst of this turn
    usual_priority = _usual_priority(graph)
    for row in range(first, last):
        key = graph.keys[row]
        dependencies = tuple(
            [tasks[n] if n >= 0 else externals[-1 - n] for n in graph.dependencies[row]]
        )
        ts = state.tasks.get(key)
        number = graph.annotations.get(row)
        if ts is None:
            group_number = graph.groups[row]
            group = groups.get(group_number)
            if group is None:
                group = groups[group_number] = _group_of(turn, graph, group_number)
            ts = add_task(state, key, group, graph.run_specs[row] or None)
            graph.new_tasks.append(ts)
            _specify(turn, graph, row, ts, number)
        else:
            if graph.pin is not None:  # it may be on its way to being forgotten
                mirrors.add_wish(ts, graph.pin)
            if ts.run_spec is None:
                ts.run_spec = graph.run_specs[row] or None
                _specify(turn, graph, row, ts, number)
            elif not _same_dependencies(ts, dependencies):
                collisions[row] = None
                _warn_collision(turn, graph, ts, dependencies)
        tasks.append(ts)
        if dependencies and row not in collisions:
            for dts in dependencies:
                if dts.state == "forgotten":  # since the commit began
                    ts.has_lost_dependencies = True
                    dependencies = tuple(d for d in dependencies if d.state != "forgotten")
                    break
            mirrors.add_dependencies(ts, dependencies)
        if ts.priority is None:
            if usual_priority is None or (number is not None and graph.says_more[number]):
                ts.priority = _priority(ts, graph, row, number)
            else:
                ts.priority = usual_priority, graph.generation, graph.priorities[row]
    graph.cursor = last
    if last == len(graph.keys):
        graph.stage = "claim"
        graph.cursor = 0
    return cost


def _specify(
    turn: Turn, graph: PendingGraph, row: int, ts: TaskState, number: int | None
) -> None:
    """What a graph says of a task besides its run_spec and dependencies: the annotation set of this number, too."""
    if number is not None:
        said = graph.annotation_sets[number]
        ts.annotations = said.value
        if graph.says_more[number]:
            _annotate(turn, ts, said)
        group = ts.group
        if group.span_id is not None or graph.spans.get(group) is not said.span:
            note_span(graph, ts, said)
    elif ts.group.span_id is not None:
        graph.other_spans.append((ts, None))
    ts.data_producer = row in graph.data_producers


def _same_dependencies(ts: TaskState, dependencies: tuple[TaskState, ...]) -> bool:
    """Whether a known task has just these dependencies. Those that it has lost may come back with its graph."""
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


def _usual_priority(graph: PendingGraph) -> float | None:
    """What stands first in the priority of tasks that are not annotated with one; None where it is each task's own."""
    assert graph.commit is not None
    user = graph.commit.user_priority
    return None if isinstance(user, dict) else -user


def _priority(
    ts: TaskState, graph: PendingGraph, row: int, number: int | None
) -> tuple[float, float, float]:
    user: Any = None if number is None else graph.annotation_sets[number].priority
    if user is None:
        commit = graph.commit
        assert commit is not None
        user = commit.user_priority
        if isinstance(user, dict):
            user = user.get(ts.key, 0)
    return -user, graph.generation, graph.priorities[row]


def _annotate(turn: Turn, ts: TaskState, annotations: AnnotationSet) -> None:
    if annotations.retries is not None:
        ts.retries = annotations.retries
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


def _warn_collision(
    turn: Turn, graph: PendingGraph, ts: TaskState, dependencies: tuple[TaskState, ...]
) -> None:
    if ts.group in graph.warned_groups:
        return
    graph.warned_groups[ts.group] = None
    turn.log(
        30,
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
    """Keys as a set is written, in their own order."""
    return "{" + ", ".join(repr(ts.key) for ts in tasks) + "}"


# -- claim: the client wants its keys


def _stage_claim(turn: Turn, graph: PendingGraph, budget: int) -> int:
    """The client wants its keys, and hears of those that are done."""
    from .clients import report_to

    state = turn.state
    commit = graph.commit
    assert commit is not None
    first = graph.cursor
    n_wanted = graph.n_wanted
    last = min(n_wanted, first + budget)
    cs = state.clients[graph.client]
    unknown = []
    for key in graph.wanted(first, last):
        if key in graph.withdrawn:
            continue
        ts = state.tasks.get(key)
        if ts is None:
            unknown.append(key)
        else:
            mirrors.add_wish(ts, cs)
            report_to(turn, ts, graph.client)
    if unknown:
        turn.to_client(graph.client, CancelledKeys(keys=unknown, reason="lost dependencies"))
    graph.cursor = last
    if last == n_wanted:
        _mark_actors(turn, graph)
        graph.stage = "wish"
        graph.cursor = len(graph.tasks)
    return last - first


def _mark_actors(turn: Turn, graph: PendingGraph) -> None:
    """Actors are marked, and plugins look at it all, before anything of it is scheduled."""
    state = turn.state
    commit = graph.commit
    assert commit is not None
    actors = graph.wanted() if commit.actors is True else (commit.actors or ())
    for key in actors:
        ts = state.tasks.get(key)
        if ts is not None:
            ts.actor = True
    observe_spans(turn, graph)
    if state.plugins is not None:
        state.plugins.update_graph(
            client=graph.client,
            keys=graph.wanted(),
            touched=lambda: _touched(state, graph),
            new_tasks=graph.new_tasks,
            stimulus_id=turn.stimulus_id,
        )


def _touched(state: SchedulerState, graph: PendingGraph) -> list[TaskState]:
    """A graph's tasks, and those beside it that it asks for or takes, as stock tells plugins (``_generate_taskstates``)."""
    found = dict.fromkeys(graph.tasks)
    for key in graph.wanted():
        if key in state.tasks:
            found[state.tasks[key]] = None
    for ts in graph.tasks:
        found.update(dict.fromkeys(ts.dependencies))
    return list(found)


# -- wish: from the wanted keys down, what has to run


def _stage_wish(turn: Turn, graph: PendingGraph, budget: int) -> int:
    """Rows from the last to the first: dependents before what they depend on.

    What nobody wants (any more) and nothing depends on is forgotten here.
    """
    first = graph.cursor
    last, cost = graph.rows_down(budget)
    tasks = graph.tasks
    needed = graph.needed
    is_new = graph.is_new
    if is_new:  # what has dependents is needed, as they are all its own
        needed[last:first] = b"\1" * (first - last)
    for row in range(first - 1, last - 1, -1):
        ts = tasks[row]
        if not ts.dependents and not ts.who_wants:
            if ts.state == "released":
                run(turn, {ts: "forgotten"})
        elif not is_new and ts.state == "released":
            _need_dependencies(graph, row, ts)
    graph.cursor = last
    if last == 0:
        graph.stage = "wake"
    return cost


def _need_dependencies(graph: PendingGraph, row: int, ts: TaskState) -> None:
    """What a needed row takes is needed."""
    needed = graph.needed
    if needed[row] or ts.who_wants or ts.waiters_count:
        needed[row] = 1
        if row not in graph.collisions:
            for n in graph.dependencies[row]:
                if n >= 0:
                    needed[n] = 1


# -- wake: needed tasks to waiting, dependencies first


def _stage_wake(turn: Turn, graph: PendingGraph, budget: int) -> int:
    first = graph.cursor
    last, cost = graph.rows_up(len(graph.tasks), budget)
    ready = graph.ready
    needed = graph.needed
    is_new = graph.is_new
    recs: Recommendations = {}
    for row in range(first, last):
        ts = graph.tasks[row]
        blame = erred_dependency(ts) if ts.dependencies and not is_new else None
        if blame is not None and ts.state not in ("memory", "erred", "forgotten"):
            graph.sweeps = True
            recs[ts] = "erred"
            run(turn, recs)
            continue
        if not needed[row] or ts.state != "released":
            continue
        transition(turn, ts, "waiting", recs)
        if recs.get(ts) == "processing":
            del recs[ts]
            ready.append(ts)
        if recs:  # externals that were released run too
            run(turn, recs)
    graph.cursor = last
    if last == len(graph.tasks):
        graph.stage = "sweep"
        if not graph.sweeps:
            graph.cursor = 0
    return cost


def _placing_order(ts: TaskState) -> Any:
    return ts.priority or ()


# -- sweep: what was woken for a task that then did not wake goes back to released


def _stage_sweep(turn: Turn, graph: PendingGraph, budget: int) -> int:
    """Rows from the last to the first: dependents before what they depend on."""
    first = graph.cursor
    last, cost = graph.rows_down(budget)
    for row in range(first - 1, last - 1, -1):
        ts = graph.tasks[row]
        if ts.state in ACTIVE_STATES and not is_wanted(ts):
            run(turn, {ts: "released"})
    graph.cursor = last
    if last == 0:
        graph.stage = "place"
        graph.ready.sort(key=_placing_order)
    return cost


# -- undo: the graph was dropped in the middle of its commit


def _stage_undo(turn: Turn, graph: PendingGraph, budget: int) -> int:
    """What became of rows by now is looked at again, without the wishes of the client that is gone."""
    first = graph.cursor
    last = max(0, first - budget)
    for row in range(first - 1, last - 1, -1):
        ts = graph.tasks[row]
        what = due(turn.state, ts, "")
        if what is not None:
            run(turn, {ts: what})
    graph.cursor = last
    if last == 0:
        graph.stage = "done"
        fill_slots(turn)
    return first - last


# -- place: what can run goes to workers


def _stage_place(turn: Turn, graph: PendingGraph, budget: int) -> int:
    first = graph.cursor
    last = min(len(graph.ready), first + budget)
    recs: Recommendations = {}
    for position in range(first, last):
        ts = graph.ready[position]
        if ts.state == "waiting" and not ts.waiting_count:
            transition(turn, ts, "processing", recs)
            if recs:
                run(turn, recs)
    graph.cursor = last
    if last == len(graph.ready):
        graph.stage = "unpin"
    return last - first


# -- unpin: what the commit held is let go


def _stage_unpin(turn: Turn, graph: PendingGraph, budget: int) -> int:
    done = 0
    if graph.pin is not None:
        held = graph.pin.wants_what
        for ts in list(islice(reversed(held), budget)):
            recs: Recommendations = {}
            release_wish(ts, graph.pin, recs)
            run(turn, recs)
            done += 1
        if held:
            return done
    graph.pin = None
    if graph.dropped:
        graph.stage = "undo"
        graph.cursor = len(graph.tasks)
    else:
        graph.stage = "done"
        fill_slots(turn)
        assert graph.commit is not None
        turn.log_event(["scheduler", graph.client], _event(turn, graph, graph.commit))
    return done


def _event(turn: Turn, graph: PendingGraph, commit: GraphCommit) -> dict[str, Any]:
    """What stock logs of a graph; its three durations are seconds."""
    total = turn.now - commit.received_at
    return {
        "action": "update-graph",
        "stimulus_id": turn.stimulus_id,
        "metrics": {
            "tasks": commit.n_tasks or len(graph.keys),
            "new_tasks": len(graph.new_tasks),
            "key_collisions": len(graph.collisions),
            "start_timestamp_seconds": commit.received_at,
            "materialization_duration_seconds": commit.materialized_seconds,
            "ordering_duration_seconds": commit.ordered_seconds,
            "state_initialization_duration_seconds": max(
                0.0, total - commit.materialized_seconds - commit.ordered_seconds
            ),
            "duration_seconds": total,
        },
        "status": "OK",
    }


STAGES = {
    "insert": _stage_insert,
    "claim": _stage_claim,
    "wish": _stage_wish,
    "wake": _stage_wake,
    "sweep": _stage_sweep,
    "undo": _stage_undo,
    "place": _stage_place,
    "unpin": _stage_unpin,
}
