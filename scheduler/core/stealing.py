"""Work stealing: tasks that wait on busy workers go to workers that have nothing to do.

Every so often the balance is looked at. While nobody is idle, or nobody has more than it can run, that is all. Else tasks
of the busiest workers are weighed: by the *level* of what moving them costs against what they cost, cheap moves first, and
each goes to the idle worker on which it would start soonest, where that is soon enough: the worker that has it is asked for
it (``steal_requests.py``). Workers that take nothing new, and those whose tasks wait for resources, are asked too.

Nothing is kept for tasks between looks, so that stealing costs them nothing. One look weighs a bounded number of tasks; the
next one goes on where it stopped.

Levels and costs are those of stock's ``distributed/stealing.py``.

Must not know: the clock; who asks for statistics.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from itertools import chain, islice
from math import log2
from typing import TypeVar

from . import mirrors, placement
from .state import SchedulerState, TaskState, WorkerState
from .steal_requests import IN_FLIGHT_MAX, ask
from .steals import COST_MULTIPLIERS
from .turn import Turn

T = TypeVar("T")

#: Seconds that a move takes besides the transfer of data (stock: ``LATENCY``).
LATENCY_SECONDS = 0.1
#: Tasks that are expected to take less, by the configured durations, never move (stock: ``fast_tasks``).
FAST_SECONDS = 0.001
#: A worker that is not saturated is asked for tasks only when it has more work than this.
BUSY_SECONDS = 0.2
#: When nobody is saturated, tasks of so many of the busiest workers are weighed.
BUSIEST_MAX = 10
#: A worker that takes nothing new (paused, retiring, clogged) is not expected to begin anything for so long.
UNAVAILABLE_SECONDS = 1.0

#: Tasks that one look weighs, over all workers; those with many dependencies count for more. And at least so many a worker.
TASKS_WEIGHED_MAX = 1_000
TASKS_WEIGHED_MIN = 10
#: Workers that one look takes into account.
WORKERS_LOOKED_AT_MAX = 2_000
SUPPLIERS_LOOKED_AT_MAX = 250
VICTIMS_MAX = 100
THIEVES_MAX = 250
#: Tasks with more dependencies never move: the message alone would cost more than the task.
DEPENDENCIES_MAX = 10_000
#: So many dependencies count as one more task weighed.
DEPENDENCIES_A_TASK = 16
#: For a task with up to ten dependencies, so many idle workers that hold some of them are compared.
HOLDERS_COMPARED_MAX = 20


# ------------------------------------------------------------------ what a move costs


def cost_level(state: SchedulerState, ts: TaskState) -> tuple[float, int] | None:
    """What moving a task costs against what it costs itself, and the level of that; None: it never moves.

    Stock: ``steal_time_ratio``.
    """
    prefix = ts.group.prefix
    if state.config.default_task_durations_seconds.get(prefix.name, 1.0) <= FAST_SECONDS:
        return None
    dependencies = ts.dependencies
    if not dependencies:
        return 0.0, 0
    seconds = mirrors.expected_duration(state, prefix)
    if seconds <= 0 or len(dependencies) > DEPENDENCIES_MAX:
        return None
    nbytes = sum([mirrors.data_nbytes(state, dts) for dts in dependencies])
    ratio = (nbytes / state.bandwidth + LATENCY_SECONDS) / seconds
    level = max(1, round(log2(ratio) + 6))
    return (ratio, level) if level < len(COST_MULTIPLIERS) else None


def stealable(state: SchedulerState, ws: WorkerState) -> list[list[TaskState]]:
    """Level of cost -> the worker's tasks that could move, the last that came first."""
    levels: list[list[TaskState]] = [[] for _ in COST_MULTIPLIERS]
    for ts in reversed(ws.processing):
        found = None if ts in ws.long_running else cost_level(state, ts)
        if found is not None and ts not in state.steals.in_flight:
            levels[found[1]].append(ts)
    return levels


def _weigh(
    state: SchedulerState, ws: WorkerState, offset: int, budget: int
) -> tuple[list[list[TaskState]], int]:
    """Tasks of a worker by level of cost, and the offset to go on at next time; 0 where none is left.

    The last that came are the first: those before them are the next to run.

    Args:
        offset: so many of the last are left out.
        budget: how many to look at.
    """
    levels: list[list[TaskState]] = [[] for _ in COST_MULTIPLIERS]
    in_flight = state.steals.in_flight
    long_running = ws.long_running
    executing = ws.executing
    has_threads = ws in state.idle
    for ts in islice(reversed(ws.processing), offset, None):
        if budget <= 0:
            return levels, offset
        offset += 1
        budget -= 1 + len(ts.dependencies) // DEPENDENCIES_A_TASK
        if ts in in_flight or ts in executing or ts in long_running:
            continue
        if has_threads and not ts.resource_restrictions:
            continue  # it waits for nothing
        found = cost_level(state, ts)
        if found is not None:
            levels[found[1]].append(ts)
    return levels, 0


# ------------------------------------------------------------------ who has too much, who too little


class Loads:
    """Workers' work, with what is in flight taken as arrived. What they process does not change while one looks."""

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self._occupancy: dict[WorkerState, float] = {}
        average = state.total_occupancy / state.total_nthreads if state.total_nthreads else 0.0
        self._idle_below = average / 2

    def seconds(self, ws: WorkerState) -> float:
        """Seconds of work before the worker."""
        found = self._occupancy.get(ws)
        if found is None:
            found = self._occupancy[ws] = mirrors.occupancy(self.state, ws)
        return found + self.state.steals.occupancy.get(ws, 0.0)

    def tasks(self, ws: WorkerState) -> int:
        """Tasks that it has."""
        return len(ws.processing) + self.state.steals.tasks.get(ws, 0)

    def is_unoccupied(self, ws: WorkerState) -> bool:
        """Whether it has too little to do, as ``placement.is_unoccupied`` has it."""
        nthreads = ws.nthreads
        return self.tasks(ws) < nthreads or self.seconds(ws) < nthreads * self._idle_below


def _victims(state: SchedulerState, loads: Loads) -> list[WorkerState]:
    """Workers whose tasks are weighed, the busiest first."""
    cursor = state.steals.cursor
    found = list(_window(state.saturated, VICTIMS_MAX, cursor)) or _busiest(state, loads)
    if len(state.running) < len(state.workers):
        workers = _window(state.workers.values(), WORKERS_LOOKED_AT_MAX, cursor)
        found += [ws for ws in workers if ws.processing and not placement.is_available(ws)]
    if state.resources:
        found = list(dict.fromkeys((*found, *_short_of_resources(state))))
    return sorted(found[:VICTIMS_MAX], key=loads.seconds, reverse=True)


def _busiest(state: SchedulerState, loads: Loads) -> list[WorkerState]:
    """Where nobody is saturated: workers that have more than they can run, though not much more than others."""
    workers = _window(state.running, WORKERS_LOOKED_AT_MAX, state.steals.cursor)
    crowded = [ws for ws in workers if len(ws.processing) > ws.nthreads]
    busy = [
        ws
        for ws in crowded
        if ws not in state.idle
        and loads.tasks(ws) > ws.nthreads
        and loads.seconds(ws) > BUSY_SECONDS
    ]
    return heapq.nlargest(BUSIEST_MAX, busy, key=loads.seconds)


def _short_of_resources(state: SchedulerState) -> Iterable[WorkerState]:
    """Workers whose tasks wait for resources, though threads may be free."""
    for addresses in state.resources.values():
        for address in _window(addresses, SUPPLIERS_LOOKED_AT_MAX, state.steals.cursor):
            ws = state.workers[address]
            if placement.is_overcommitted(ws):
                yield ws


def _window(items: Collection[T], size: int, cursor: int) -> Iterable[T]:
    """All of them, or so many, beginning with another one each time."""
    n = len(items)
    if n <= size:
        return items
    first = cursor * size % n
    return islice(chain(islice(items, first, None), items), size)


class Thieves:
    """Idle workers that may still get tasks in this look; the least loaded is found without looking at the others."""

    def __init__(self, state: SchedulerState, loads: Loads) -> None:
        self.state = state
        self.loads = loads
        self._members: dict[WorkerState, tuple[float, int, int]] = {}
        self._heap: list[tuple[tuple[float, int, int], WorkerState]] = []
        for ws in _window(state.idle, THIEVES_MAX, state.steals.cursor):
            if loads.is_unoccupied(ws):
                self._members[ws] = rank = self._rank(ws)
                self._heap.append((rank, ws))
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._members)

    def _rank(self, ws: WorkerState) -> tuple[float, int, int]:
        return self.loads.seconds(ws) / ws.nthreads, ws.nbytes, ws.index

    def given(self, ws: WorkerState) -> None:
        """A task is on its way there."""
        if self.loads.is_unoccupied(ws):
            self._members[ws] = rank = self._rank(ws)
            heapq.heappush(self._heap, (rank, ws))
        else:
            del self._members[ws]

    def _least(self) -> WorkerState | None:
        heap = self._heap
        while heap:
            rank, ws = heap[0]
            if self._members.get(ws) == rank:
                return ws
            heapq.heappop(heap)
        return None

    def choose(self, ts: TaskState) -> WorkerState | None:
        """The one on which the task would start soonest; None where it may go to none of them."""
        members = self._members
        victim = ts.processing_on
        valid = placement.valid_workers(self.state, ts)
        if valid is not None:
            allowed = [ws for ws in valid if ws in members and ws is not victim]
            if allowed or not ts.loose_restrictions:
                return self._soonest(ts, allowed)
        if ts.actor:
            return self._soonest(ts, members)
        least = self._least()
        if least is victim:
            return None  # it waits there for resources, not for a thread
        if not ts.dependencies or least is None:
            return least
        return self._soonest(ts, dict.fromkeys((*self._holders(ts), least)))

    def _holders(self, ts: TaskState) -> Iterable[WorkerState]:
        """Idle workers that hold some of its dependencies."""
        dependencies = ts.dependencies
        most = 10 * HOLDERS_COMPARED_MAX // max(10, len(dependencies))
        found: dict[WorkerState, None] = {}
        for dts in dependencies:
            if len(found) >= most:
                break
            for ws in islice(dts.who_has, HOLDERS_COMPARED_MAX):
                if ws in self._members:
                    found[ws] = None
        return islice(found, most)

    def _soonest(self, ts: TaskState, workers: Iterable[WorkerState]) -> WorkerState | None:
        best: WorkerState | None = None
        best_cost: tuple[float, ...] = ()
        for ws in workers:
            seconds, nbytes, index = self._members[ws]
            start = seconds + placement.fetch_seconds(self.state, ts, ws)
            cost: tuple[float, ...] = (start, nbytes, index)
            if ts.actor:
                cost = (len(ws.actors), *cost)
            if (best is None or cost < best_cost) and _fits(self.state, ts, ws):
                best, best_cost = ws, cost
        return best


def _fits(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Whether the worker has memory for the task's inputs at all."""
    if not ws.memory_limit or not state.config.memory_terminate:
        return True
    return sum([dts.nbytes for dts in ts.dependencies]) <= ws.memory_limit


# ------------------------------------------------------------------ looking at the balance


def balance(turn: Turn) -> None:
    """Ask workers that have too much for tasks that idle ones could begin sooner."""
    state = turn.state
    steals = state.steals
    if steals.in_flight or steals.offsets:
        steals.sweep(state)
    placement.settle(state)
    n_idle = len(state.idle)
    if not n_idle or (n_idle == len(state.workers) and not state.resources):
        return
    steals.cursor += 1
    loads = Loads(state)
    victims = _victims(state, loads)
    if not victims:
        return
    thieves = Thieves(state, loads)
    if not thieves:
        return
    asked = _ask_for_tasks(turn, victims, thieves, loads)
    if asked:
        turn.log_event("stealing", ("request", asked))
        steals.rounds += 1


def _ask_for_tasks(
    turn: Turn, victims: list[WorkerState], thieves: Thieves, loads: Loads
) -> list[tuple[object, ...]]:
    """Cheap moves first, whoever has the task. Returns what was asked for, as stock logs it."""
    state = turn.state
    steals = state.steals
    quota = max(TASKS_WEIGHED_MIN, TASKS_WEIGHED_MAX // len(victims))
    weighed = []
    for victim in victims:
        levels, offset = _weigh(state, victim, steals.offsets.pop(victim, 0), quota)
        if offset:
            steals.offsets[victim] = offset
        weighed.append(levels)
    asked: list[tuple[object, ...]] = []
    for level in range(len(COST_MULTIPLIERS)):
        for ts in chain.from_iterable(levels[level] for levels in weighed):
            if not thieves or len(steals.in_flight) >= IN_FLIGHT_MAX:
                return asked
            thief = thieves.choose(ts)
            if thief is None:
                continue
            told = _ask_if_worth_it(turn, ts, level, thief, loads)
            if told is not None:
                asked.append(told)
                thieves.given(thief)
    return asked


def _ask_if_worth_it(
    turn: Turn, ts: TaskState, level: int, thief: WorkerState, loads: Loads
) -> tuple[object, ...] | None:
    """Ask for a task where the thief would be done with it before the victim is halfway there."""
    state = turn.state
    steals = state.steals
    victim = ts.processing_on
    assert victim is not None
    compute = mirrors.expected_duration(state, ts.group.prefix)
    on_victim = compute + placement.fetch_seconds(state, ts, victim)
    on_thief = compute + placement.fetch_seconds(state, ts, thief)
    before_victim = loads.seconds(victim)
    before_thief = loads.seconds(thief)
    if placement.is_available(victim):
        deadline = before_victim - on_victim / 2
    else:
        deadline = before_victim + UNAVAILABLE_SECONDS
    if before_thief + on_thief > deadline:
        return None
    ask(turn, ts, victim, thief, on_victim, on_thief)
    steals.level_counts[level] += 1
    steals.level_costs[level] += on_victim
    places = (victim.address, before_victim, thief.address, before_thief)
    return (turn.now, level, ts.key, on_victim, *places)
