"""When garbage is collected.

CPython's automatic collector walks all objects of a generation when counters say so: with millions of tasks in
memory a full collection stops the event loop for seconds. Nearly nothing of ours needs it: what the core forgets is
unlinked and freed by reference counts. So in a process of our own the automatic collector is off, and

- the youngest generation is collected between turns once enough was allocated (milliseconds),
- what has survived is frozen after the state has grown by much, so that no later collection walks it,
- everything is thawed and collected when few tasks are left and nothing has happened for a while.

An embedded scheduler leaves the collector of its program alone: it has no policy.

Must not know: what tasks are.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

#: Allocations less deallocations after which the youngest generation is collected: some 5 ms of work.
YOUNG_COLLECT_ALLOCATIONS = 50_000
#: Every so many young collections, the middle generation is collected too.
MIDDLE_EVERY = 20
#: Growth in tasks after which what is there is frozen.
FREEZE_GROWTH_TASKS = 10_000
#: A full collection takes some tens of milliseconds up to this many tasks.
FULL_COLLECT_MAX_TASKS = 5_000
#: Time between full collections, seconds.
FULL_COLLECT_INTERVAL_SECONDS = 60.0
#: Stimuli within one tick (timers and heartbeats among them) up to which the scheduler counts as idle.
IDLE_MAX_STIMULI_A_TICK = 50


class GcPolicy:
    """Collects between turns. ``start`` takes the collector over, ``stop`` gives it back.

    Attributes:
        seconds: spent in collections since the start.
        longest_seconds: of one collection.
        n_collections: how many there were.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self.longest_seconds = 0.0
        self.n_collections = 0
        self._clock = clock
        self._n_young = 0
        self._frozen_at_tasks = 0
        self._last_full = clock()
        self._n_stimuli = 0
        self._dirty = False
        self._was_enabled = gc.isenabled()

    def start(self) -> None:
        """Turn the automatic collector off; what is imported by now is never walked again."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def stop(self) -> None:
        """Turn it on again."""
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()

    def after_flush(self, n_tasks: int) -> None:
        """Between turns: a young collection when it is due, and freezing after growth."""
        if gc.get_count()[0] < YOUNG_COLLECT_ALLOCATIONS:
            return
        self._dirty = True
        self._n_young += 1
        self._collect(1 if self._n_young % MIDDLE_EVERY == 0 else 0)
        if n_tasks > self._frozen_at_tasks + FREEZE_GROWTH_TASKS:
            gc.freeze()
            self._frozen_at_tasks = n_tasks
        elif n_tasks < self._frozen_at_tasks // 2:
            self._frozen_at_tasks = n_tasks

    def on_tick(self, n_tasks: int, n_stimuli: int) -> None:
        """A full collection, when there is little to walk and nothing else to do."""
        busy = n_stimuli - self._n_stimuli > IDLE_MAX_STIMULI_A_TICK
        self._n_stimuli = n_stimuli
        if busy or not self._dirty or n_tasks > FULL_COLLECT_MAX_TASKS:
            return
        if self._clock() - self._last_full < FULL_COLLECT_INTERVAL_SECONDS:
            return
        self._dirty = False
        self._frozen_at_tasks = 0
        gc.unfreeze()
        self._collect(2)
        gc.freeze()
        self._last_full = self._clock()

    def _collect(self, generation: int) -> None:
        started = self._clock()
        gc.collect(generation)
        seconds = self._clock() - started
        self.seconds += seconds
        self.n_collections += 1
        self.longest_seconds = max(self.longest_seconds, seconds)
