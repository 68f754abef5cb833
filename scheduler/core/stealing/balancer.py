"""Work stealing: move tasks that wait on busy workers to idle ones.

A round runs periodically. If there are idle workers and busy ones, tasks of the busiest workers
(victims) are sorted by *level*, the cost of moving them relative to their duration. Cheap moves
come first. Each task goes to the idle worker (thief) on which it would start soonest, if that is
soon enough: its victim is asked to give it back (``requests.py``). Workers that accept no tasks,
and those whose tasks wait for resources, are victims too.

Priorities are kept: no task moves while its victim keeps one of a higher user priority of the same
share group, or of a higher priority class, that it has not begun and that could move
(``priorities.py``).

No data is kept per task between rounds. A round considers a bounded number of tasks; the next one
continues where it stopped. Levels and costs are those of stock's ``distributed/stealing.py``.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from itertools import chain, islice
from math import log2
from typing import TypeVar

from paceline.scheduler.core.policy import admission, fairness, placement, worker_ends
from paceline.scheduler.core.state import estimates
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.state.workers.loads import is_available, usable_threads
from paceline.scheduler.core.state.workers.stealing import COST_MULTIPLIERS
from paceline.scheduler.core.turn import Turn

from .priorities import StealPriorities, uses_priorities
from .requests import IN_FLIGHT_MAX, send_steal_request

T = TypeVar("T")

#: Seconds that a move takes in addition to the transfer of data (stock: ``LATENCY``).
LATENCY_SECONDS = 0.1
#: Tasks with a shorter configured duration never move (stock: ``fast_tasks``).
FAST_SECONDS = 0.001
#: Seconds of work above which a worker that is not saturated can be a victim.
BUSY_SECONDS = 0.2
#: Victims if no worker is saturated: the n busiest.
BUSIEST_MAX = 10
#: Seconds in which a worker that accepts no tasks (paused, retiring, backpressured) is expected to
#: start none.
UNAVAILABLE_SECONDS = 1.0

#: Tasks considered in a round, over all workers (those with many dependencies count for more), and
#: at least per worker.
TASKS_MAX = 1_000
TASKS_PER_WORKER_MIN = 10
#: Workers considered in a round, by role.
WORKERS_MAX = 2_000
SUPPLIERS_MAX = 250
VICTIMS_MAX = 100
THIEVES_MAX = 250
#: Tasks with more dependencies never move, because the message alone would cost more than the task.
DEPENDENCIES_MAX = 10_000
#: Dependencies that count as one more task.
DEPENDENCIES_PER_TASK = 16
#: Idle workers compared that hold dependencies of a task with up to ten of them.
HOLDERS_COMPARED_MAX = 20


# ------------------------------------------------------------------ cost of a move


def cost_level(state: SchedulerState, ts: TaskState) -> tuple[float, int] | None:
    """Return the cost of moving ``ts`` relative to its duration, and its level; None: never move.

    Stock: ``steal_time_ratio``.
    """
    prefix = ts.group.prefix
    if state.config.default_task_durations_seconds.get(prefix.name, 1.0) <= FAST_SECONDS:
        return None
    dependencies = ts.dependencies
    if not dependencies:
        return 0.0, 0
    seconds = estimates.expected_duration(state, prefix)
    if seconds <= 0 or len(dependencies) > DEPENDENCIES_MAX:
        return None
    nbytes = sum([estimates.data_nbytes(state, dts) for dts in dependencies])
    ratio = (nbytes / state.bandwidth + LATENCY_SECONDS) / seconds
    level = max(1, round(log2(ratio) + 6))
    return (ratio, level) if level < len(COST_MULTIPLIERS) else None


def stealable(state: SchedulerState, ws: WorkerState) -> list[list[TaskState]]:
    """Return for each level the tasks of ``ws`` that can move, the latest first."""
    levels: list[list[TaskState]] = [[] for _ in COST_MULTIPLIERS]
    for ts in reversed(ws.processing):
        found = None if ts in ws.long_running else cost_level(state, ts)
        if found is not None and ts not in state.stealing.in_flight:
            levels[found[1]].append(ts)
    return levels


def _candidates(
    state: SchedulerState,
    ws: WorkerState,
    offset: int,
    budget: int,
    priorities: StealPriorities | None,
) -> tuple[list[list[TaskState]], int]:
    """Return the tasks of ``ws`` that can move by level, and the offset at which to continue.

    The offset is 0 if no task is left. The latest tasks come first, because the earlier ones run
    next; ``offset`` of them are skipped, and up to ``budget`` tasks are considered. With
    ``priorities``, those of the highest priority come first.
    """
    levels: list[list[TaskState]] = [[] for _ in COST_MULTIPLIERS]
    in_flight = state.stealing.in_flight
    long_running = ws.long_running
    executing = ws.executing
    has_threads = ws in state.loads.idle
    order = priorities.order(ws) if priorities else reversed(ws.processing)
    for ts in islice(order, offset, None):
        if budget <= 0:
            return levels, offset
        offset += 1
        budget -= 1 + len(ts.dependencies) // DEPENDENCIES_PER_TASK
        if ts in in_flight or ts in executing or ts in long_running:
            continue
        if has_threads and not ts.resource_restrictions:
            continue  # a thread is free for it
        found = cost_level(state, ts)
        if found is not None:
            levels[found[1]].append(ts)
        elif priorities:
            priorities.keep(ts)
    return levels, 0


# ------------------------------------------------------------------ victims and thieves


class Loads:
    """Load of workers during one round, with the requests in flight counted as completed."""

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self._occupancy: dict[WorkerState, float] = {}
        average = state.total_occupancy / state.total_nthreads if state.total_nthreads else 0.0
        self._idle_below = average / 2

    def seconds(self, ws: WorkerState) -> float:
        """Return the occupancy of ``ws`` in seconds."""
        found = self._occupancy.get(ws)
        if found is None:
            found = self._occupancy[ws] = estimates.occupancy(self.state, ws)
        return found + self.state.stealing.occupancy.get(ws, 0.0)

    def tasks(self, ws: WorkerState) -> int:
        """Return the number of tasks of ``ws``."""
        return len(ws.processing) + self.state.stealing.tasks.get(ws, 0)

    def is_idle(self, ws: WorkerState) -> bool:
        """Return whether the worker is idle, as ``placement.load_class`` defines it."""
        nthreads = usable_threads(ws)
        return self.tasks(ws) < nthreads or self.seconds(ws) < nthreads * self._idle_below


def _victims(state: SchedulerState, loads: Loads) -> list[WorkerState]:
    """Return the victims of this round, the busiest first."""
    cursor = state.stealing.cursor
    found = list(_window(state.loads.saturated, VICTIMS_MAX, cursor)) or _busiest(state, loads)
    if len(state.running) < len(state.workers):
        workers = _window(state.workers.values(), WORKERS_MAX, cursor)
        found += [
            ws
            for ws in workers
            if ws.processing and not is_available(ws) and ws.reserved_for is None
        ]
    if state.resources:
        found = list(dict.fromkeys((*found, *_short_of_resources(state))))
    return sorted(found[:VICTIMS_MAX], key=loads.seconds, reverse=True)


def _busiest(state: SchedulerState, loads: Loads) -> list[WorkerState]:
    """Return the busiest workers that have more tasks than threads.

    They are the victims of rounds without saturated workers.
    """
    workers = _window(state.running, WORKERS_MAX, state.stealing.cursor)
    crowded = [ws for ws in workers if len(ws.processing) > usable_threads(ws)]
    busy = [
        ws
        for ws in crowded
        if ws not in state.loads.idle
        and loads.tasks(ws) > usable_threads(ws)
        and loads.seconds(ws) > BUSY_SECONDS
    ]
    return heapq.nlargest(BUSIEST_MAX, busy, key=loads.seconds)


def _short_of_resources(state: SchedulerState) -> Iterable[WorkerState]:
    """Yield workers whose tasks wait for resources, even if threads are free."""
    for addresses in state.resources.values():
        for address in _window(addresses, SUPPLIERS_MAX, state.stealing.cursor):
            ws = state.workers[address]
            if placement.is_overcommitted(ws):
                yield ws


def _window(items: Collection[T], size: int, cursor: int) -> Iterable[T]:
    """Return ``items``, or ``size`` of them, starting at another one for each ``cursor``."""
    n = len(items)
    if n <= size:
        return items
    first = cursor * size % n
    return islice(chain(islice(items, first, None), items), size)


class Thieves:
    """Idle workers that can get tasks in this round; a heap gives the least loaded one."""

    def __init__(self, state: SchedulerState, loads: Loads) -> None:
        self.state = state
        self.loads = loads
        self._members: dict[WorkerState, tuple[float, int, int]] = {}
        self._heap: list[tuple[tuple[float, int, int], WorkerState]] = []
        for ws in _window(state.loads.idle, THIEVES_MAX, state.stealing.cursor):
            if loads.is_idle(ws):
                self._members[ws] = rank = self._rank(ws)
                self._heap.append((rank, ws))
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._members)

    def _rank(self, ws: WorkerState) -> tuple[float, int, int]:
        return self.loads.seconds(ws) / usable_threads(ws), ws.nbytes, ws.index

    def add_task(self, ws: WorkerState) -> None:
        """Update the load of ``ws``, chosen for a task, and remove it if it is no longer idle."""
        if self.loads.is_idle(ws):
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
        """Return the thief on which ``ts`` would start soonest; None if it can run on none."""
        members = self._members
        victim = ts.processing_on
        workers = placement.valid_workers(self.state, ts)
        found = self._others(workers, victim)
        if not found and ts.loose_restrictions:
            workers = placement.allowed_workers(self.state, ts)
            found = self._others(workers, victim)
        if workers is not None:
            return self._soonest(ts, found)
        if ts.actor:
            return self._soonest(ts, members)
        least = self._least()
        if least is victim:
            return None  # the task waits there for resources, not for a thread
        if least is None:
            return None
        if not _has_capacity(self.state, ts, least):
            return self._soonest(ts, members)
        if not ts.dependencies:
            return least
        return self._soonest(ts, dict.fromkeys((*self._holders(ts), least)))

    def _others(
        self, workers: dict[WorkerState, None] | None, victim: WorkerState | None
    ) -> list[WorkerState]:
        """Return the thieves among `workers` other than `victim`; none if `workers` is None."""
        return [ws for ws in workers or () if ws in self._members and ws is not victim]

    def _holders(self, ts: TaskState) -> Iterable[WorkerState]:
        """Return thieves that hold dependencies of ``ts``."""
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
    """Return whether `ws` has the time for `ts`, and its memory limit allows for the inputs."""
    if not _has_capacity(state, ts, ws):
        return False
    if not ws.memory_limit or not state.config.memory_terminate:
        return True
    return estimates.inputs_nbytes(state, ts) <= ws.memory_limit


def _has_capacity(state: SchedulerState, ts: TaskState, ws: WorkerState) -> bool:
    """Return whether `ws` has the time for `ts`, is expected to have the memory, and caps allow it.

    A task of a worker that starts none, such as one that pauses, is queued for the caps of its
    group. A worker without tasks may make room for it by spilling.
    """
    victim = ts.processing_on
    can_wait = victim is None or is_available(victim)
    if can_wait and not fairness.may_start(state, ts):
        return False
    if state.admission.is_short and not admission.fits(state, ts, ws):
        if can_wait or not admission.can_spill_when_idle(state, ts, ws):
            return False
    return worker_ends.can_finish(state, ts, ws)


# ------------------------------------------------------------------ a round


def balance(turn: Turn) -> None:
    """Run a round: ask busy workers to give back tasks that idle ones could start sooner."""
    state = turn.state
    stealing_state = state.stealing
    if stealing_state.in_flight or stealing_state.offsets:
        stealing_state.sweep()
    placement.refresh_idle(state)
    n_idle = len(state.loads.idle)
    if not n_idle or (n_idle == len(state.workers) and not state.resources):
        return
    stealing_state.cursor += 1
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
        stealing_state.rounds += 1


def _ask_for_tasks(
    turn: Turn, victims: list[WorkerState], thieves: Thieves, loads: Loads
) -> list[tuple[object, ...]]:
    """Send requests, cheap moves first. Return them in the form that stock logs."""
    state = turn.state
    stealing_state = state.stealing
    quota = max(TASKS_PER_WORKER_MIN, TASKS_MAX // len(victims))
    priorities = StealPriorities() if uses_priorities(state) else None
    candidates = []
    for victim in victims:
        first = stealing_state.offsets.pop(victim, 0) if priorities is None else 0
        levels, offset = _candidates(state, victim, first, quota, priorities)
        if offset and priorities is None:
            stealing_state.offsets[victim] = offset
        candidates.append(levels)
    tasks: Iterable[tuple[int, TaskState]] = [
        (level, ts)
        for level in range(len(COST_MULTIPLIERS))
        for ts in chain.from_iterable(levels[level] for levels in candidates)
    ]
    if priorities is not None:
        tasks = priorities.sort(tasks)
    asked: list[tuple[object, ...]] = []
    for level, ts in tasks:
        if not thieves or len(stealing_state.in_flight) >= IN_FLIGHT_MAX:
            return asked
        if priorities is not None and priorities.is_outranked(ts):
            continue
        thief = thieves.choose(ts)
        request = None if thief is None else _ask_if_worth_it(turn, ts, level, thief, loads)
        if request is not None and thief is not None:
            asked.append(request)
            thieves.add_task(thief)
        elif priorities is not None:
            priorities.keep(ts)
    return asked


def _ask_if_worth_it(
    turn: Turn, ts: TaskState, level: int, thief: WorkerState, loads: Loads
) -> tuple[object, ...] | None:
    """Request ``ts`` if ``thief`` would finish it before the victim is halfway through it.

    Return the request, or None.
    """
    state = turn.state
    stealing_state = state.stealing
    victim = ts.processing_on
    assert victim is not None
    compute = estimates.expected_duration(state, ts.group.prefix)
    on_victim = compute + placement.fetch_seconds(state, ts, victim)
    on_thief = compute + placement.fetch_seconds(state, ts, thief)
    before_victim = loads.seconds(victim)
    before_thief = loads.seconds(thief)
    if is_available(victim):
        deadline = before_victim - on_victim / 2
    else:
        deadline = before_victim + UNAVAILABLE_SECONDS
    if before_thief + on_thief > deadline:
        return None
    send_steal_request(turn, ts, victim, thief, on_victim, on_thief)
    stealing_state.level_counts[level] += 1
    stealing_state.level_costs[level] += on_victim
    places = (victim.address, before_victim, thief.address, before_thief)
    return (turn.now, level, ts.key, on_victim, *places)


# ------------------------------------------------------------------ timer


def schedule_balance(turn: Turn) -> None:
    """Set the timer of the next round, if stealing is on or requests are in flight."""
    stealing_state = turn.state.stealing
    if stealing_state.running or stealing_state.in_flight:
        when = turn.now + stealing_state.interval_seconds
        stealing_state.timer = turn.call_at(when, balance_due)


def ensure_balance_timer(turn: Turn) -> None:
    """Set the timer if it is not set, to drop void requests even while stealing is off."""
    if not turn.state.stealing.timer:
        schedule_balance(turn)


def balance_due(turn: Turn) -> None:
    """Balance if stealing is on, else drop void requests."""
    stealing_state = turn.state.stealing
    stealing_state.timer = 0
    if stealing_state.running:
        balance(turn)
    else:
        stealing_state.sweep()
    schedule_balance(turn)
