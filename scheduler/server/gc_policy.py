"""When garbage is collected.

CPython's automatic collector walks all objects of a generation when counters say so: with millions of tasks in
memory a full collection stops the event loop for seconds. Nearly nothing of ours needs it: what the core forgets is
unlinked and freed by reference counts. So in a process of our own the automatic collector is off, and

- the youngest generation is collected between turns once enough was allocated (milliseconds), with many tasks less and
  less often as long as nothing is found,
- what survives that while there are many tasks is frozen at once, so that no later collection walks it,
- what is not frozen is collected now and then when there are few tasks and little happens, and soon after the last task went,
- everything is thawed and collected when, besides, much was frozen since the last time that this was done,
- and what such a collection freed goes back to the system.

What is frozen and then becomes garbage in a cycle stays until the next thaw; what is merely forgotten does not.

An embedded scheduler leaves the collector of its program alone: it has no policy.

Must not know: what tasks are.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from .heap import give_back

#: Allocations less deallocations after which the youngest generation is collected: some 2 ms of work.
YOUNG_COLLECT_ALLOCATIONS = 20_000
#: More than this at once is one large message or graph, nearly all of it alive: it is frozen unwalked.
FREEZE_ALLOCATIONS = 60_000
#: Every so many young collections, the middle generation is collected too.
MIDDLE_EVERY = 10
#: With more tasks than these, what survives a young collection is frozen; with fewer, all may be collected.
MANY_TASKS = 2_000
#: Of so many young generations one is walked, at the least, where the last ones held no garbage: the others are frozen as they are.
WALKED_OF_YOUNG_MIN = 8
#: A full collection of so many objects takes some 100 ms; of more, it is put off. Half of them are modules: pandas and
#: what comes with it, once somebody shuffles.
FULL_COLLECT_MAX_OBJECTS = 400_000
#: Time between full collections, seconds.
FULL_COLLECT_INTERVAL_SECONDS = 600.0
#: Less than this frozen since the last full collection is not worth the next.
FULL_COLLECT_MIN_FROZEN = 5_000
#: Time between collections of what is not frozen, seconds.
OLD_COLLECT_INTERVAL_SECONDS = 60.0
#: Soon after work, once no task was there and little happened for so long, seconds, that is due at once.
REST_SECONDS = 2.0
#: Such a collection that took longer than this walked over much that stays (modules, for the most part): it is frozen.
OLD_COLLECT_LONG_SECONDS = 0.02
#: Stimuli within one tick (timers and heartbeats among them) up to which the scheduler counts as idle.
IDLE_MAX_STIMULI_A_TICK = 50


class GcPolicy:
    """Collects between turns. ``start`` takes the collector over, ``stop`` gives it back.

    Attributes:
        seconds: spent in collections since the start.
        longest_seconds: of one collection.
        n_collections: how many there were.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        give_back: Callable[[], object] = give_back,
    ) -> None:
        self.seconds = 0.0
        self.longest_seconds = 0.0
        self.n_collections = 0
        self._clock = clock
        self._give_back = give_back
        self._n_young = 0
        self._walk_every = 1
        self._unwalked = 0
        self._last_full = self._last_old = clock()
        self._n_frozen_alive = 0
        self._n_stimuli = 0
        self._dirty = self._frozen_since_full = self._worked = False
        self._rests_from = clock()
        self._was_enabled = gc.isenabled()

    def start(self) -> None:
        """Turn the automatic collector off; what is imported by now is never walked again."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._n_frozen_alive = gc.get_freeze_count()

    def stop(self) -> None:
        """Turn it on again."""
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()

    def after_flush(self, n_tasks: int) -> None:
        """Between turns: a young collection when it is due."""
        count = gc.get_count()[0]
        if count < YOUNG_COLLECT_ALLOCATIONS:
            return
        self._dirty = self._worked = True
        if count > FREEZE_ALLOCATIONS:
            self._freeze_unwalked()
        elif n_tasks > MANY_TASKS:
            self._freeze_young()
        else:
            self._n_young += 1
            self._collect(1 if self._n_young % MIDDLE_EVERY == 0 else 0)

    def _freeze_young(self) -> None:
        """What is garbage goes first, where there is reason to think that there is some."""
        self._unwalked += 1
        if self._unwalked < self._walk_every:
            self._freeze_unwalked()
            return
        self._unwalked = 0
        found = self._collect(0)
        self._walk_every = 1 if found else min(2 * self._walk_every, WALKED_OF_YOUNG_MIN)
        self._freeze()

    def _freeze(self) -> None:
        gc.freeze()
        self._frozen_since_full = True

    def _freeze_unwalked(self) -> None:
        self._freeze()
        gc.collect(0)  # of nothing: only the counter goes back

    def on_tick(self, n_tasks: int, n_stimuli: int) -> None:
        """The older generations, when there is little to walk and not much else to do."""
        busy = n_stimuli - self._n_stimuli > IDLE_MAX_STIMULI_A_TICK
        self._n_stimuli = n_stimuli
        now = self._clock()
        if busy or n_tasks:
            self._rests_from = now
        if busy or not self._dirty or n_tasks > MANY_TASKS:
            return
        is_over = self._worked and now - self._rests_from >= REST_SECONDS
        if now - self._last_full >= FULL_COLLECT_INTERVAL_SECONDS:
            self._last_full = now
            self._collect_frozen()
        elif is_over or now - self._last_old >= OLD_COLLECT_INTERVAL_SECONDS:
            self._last_old = now
            self._worked = False
            self._dirty = self._frozen_since_full
            before = self.seconds
            self._collect(2)
            if self.seconds - before > OLD_COLLECT_LONG_SECONDS:
                self._freeze()
            self._give_back()

    def _collect_frozen(self) -> None:
        """All there is, where that may pay and is not too much."""
        n_frozen = gc.get_freeze_count()
        if n_frozen > FULL_COLLECT_MAX_OBJECTS:
            return
        self._dirty = self._frozen_since_full = False
        if n_frozen - self._n_frozen_alive >= FULL_COLLECT_MIN_FROZEN:
            gc.unfreeze()
            self._collect(2)
            gc.freeze()
            self._n_frozen_alive = gc.get_freeze_count()
            self._give_back()

    def _collect(self, generation: int) -> int:
        """Collect, and return how much garbage there was, objects."""
        started = self._clock()
        found = gc.collect(generation)
        seconds = self._clock() - started
        self.seconds += seconds
        self.n_collections += 1
        self.longest_seconds = max(self.longest_seconds, seconds)
        return found
