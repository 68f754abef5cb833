"""The policy that decides when garbage is collected.

CPython's automatic collector traverses all objects of a generation when counters reach a threshold.
With millions of tasks in memory a full collection blocks the event loop for seconds. The scheduler
hardly needs it, because forgotten tasks are freed by reference counts. So the automatic collector
is disabled if the process runs only the scheduler, and

- the youngest generation is collected between turns once enough was allocated (milliseconds), and
  less and less often while there are many tasks or rows of graphs and no garbage is found,
- objects that survive this while there are many tasks are frozen, so that no later collection
  traverses them,
- objects that are not frozen are collected from time to time when there are few tasks and few
  stimuli, soon after the last task was forgotten, and more rarely when there are many stimuli,
- all objects are unfrozen and collected if many were frozen since the last time,
- and memory that such a collection freed is returned to the system.

Frozen objects that become garbage in a cycle stay until they are unfrozen; others are freed
immediately.

An embedded scheduler does not change the garbage collection of its program.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from paceline.workers_compat.malloc_trim import trim_in_thread

#: Allocations less deallocations after which the youngest generation is collected: some 2 ms of
#: work.
YOUNG_COLLECT_ALLOCATIONS = 20_000
#: More allocations than this belong to one large message or graph, nearly all of it alive, which is
#: frozen without a collection.
FREEZE_ALLOCATIONS = 60_000
#: One in this number of young collections includes the middle generation.
MIDDLE_EVERY = 10
#: With more tasks than this, objects that survive a young collection are frozen.
MANY_TASKS = 2_000
#: At least one in this number of young generations is collected while no garbage is found. The
#: others are frozen.
COLLECTED_OF_YOUNG_MIN = 8
#: A full collection of this number of objects takes about 100 ms. With more, it is postponed. About
#: half of them are modules, for example pandas once a client shuffles.
FULL_COLLECT_MAX_OBJECTS = 400_000
#: Time between full collections, seconds.
FULL_COLLECT_INTERVAL_SECONDS = 600.0
#: A full collection is skipped if the number of frozen objects has grown by less than this since
#: the last one. The first one is not skipped.
FULL_COLLECT_MIN_FROZEN = 5_000
#: Time between collections of objects that are not frozen, seconds.
OLD_COLLECT_INTERVAL_SECONDS = 60.0
#: The same if there are many stimuli all the time, seconds.
OLD_COLLECT_BUSY_INTERVAL_SECONDS = 600.0
#: After work, such a collection is made once there was no task and little activity for this time,
#: seconds.
REST_SECONDS = 2.0
#: If such a collection takes longer, it traversed many permanent objects, mostly modules, which are
#: then frozen, seconds.
OLD_COLLECT_LONG_SECONDS = 0.02
#: Stimuli per tick, including timers and heartbeats, up to which the scheduler counts as idle.
IDLE_MAX_STIMULI_A_TICK = 50


class GcPolicy:
    """Collects garbage between turns, from ``start`` to ``stop``.

    Attributes:
        seconds: total time of collections.
    """

    def __init__(self, trim_in_thread: Callable[[], object] = trim_in_thread) -> None:
        self.seconds = 0.0
        self._trim_in_thread = trim_in_thread
        self._n_young = 0
        self._collect_every = 1
        self._uncollected = 0
        self._last_full = self._last_old = time.perf_counter()
        # not counted at the start, because that takes 0.1 s in a process that was just forked
        self._n_frozen_alive = 0
        self._n_stimuli = 0
        self._dirty = self._frozen_since_full = self._worked = False
        self._rests_from = time.perf_counter()
        self._was_enabled = gc.isenabled()

    def start(self) -> None:
        """Disable the automatic collector, and freeze all existing objects."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def stop(self) -> None:
        """Restore the automatic collector."""
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()

    def after_flush(self, n_tasks: int) -> None:
        """Collect the youngest generation if enough was allocated. Called between turns.

        `n_tasks` includes the rows of graphs that are being received: they live about as long.
        """
        count = gc.get_count()[0]
        if count < YOUNG_COLLECT_ALLOCATIONS:
            return
        self._dirty = self._worked = True
        if count > FREEZE_ALLOCATIONS:
            self._freeze_uncollected()
        elif n_tasks > MANY_TASKS:
            self._freeze_young()
        else:
            self._n_young += 1
            self._collect(1 if self._n_young % MIDDLE_EVERY == 0 else 0)

    def _freeze_young(self) -> None:
        """Freeze the youngest generation, after a collection if recent ones found garbage."""
        self._uncollected += 1
        if self._uncollected < self._collect_every:
            self._freeze_uncollected()
            return
        self._uncollected = 0
        found = self._collect(0)
        self._collect_every = 1 if found else min(2 * self._collect_every, COLLECTED_OF_YOUNG_MIN)
        self._freeze()

    def _freeze(self) -> None:
        gc.freeze()
        self._frozen_since_full = True

    def _freeze_uncollected(self) -> None:
        self._freeze()
        gc.collect(0)  # resets the counter; there is nothing left to collect

    def on_tick(self, n_tasks: int, n_stimuli: int) -> None:
        """Collect the older generations if there are few tasks (as above); rarely under load."""
        busy = n_stimuli - self._n_stimuli > IDLE_MAX_STIMULI_A_TICK
        self._n_stimuli = n_stimuli
        now = time.perf_counter()
        if busy or n_tasks:
            self._rests_from = now
        if not self._dirty or n_tasks > MANY_TASKS:
            return
        is_over = self._worked and not busy and now - self._rests_from >= REST_SECONDS
        interval = OLD_COLLECT_BUSY_INTERVAL_SECONDS if busy else OLD_COLLECT_INTERVAL_SECONDS
        if not busy and now - self._last_full >= FULL_COLLECT_INTERVAL_SECONDS:
            self._last_full = now
            self._collect_frozen()
        elif is_over or now - self._last_old >= interval:
            self._last_old = now
            self._worked = False
            self._dirty = self._frozen_since_full
            before = self.seconds
            self._collect(2)
            if self.seconds - before > OLD_COLLECT_LONG_SECONDS:
                self._freeze()
            self._trim_in_thread()

    def _collect_frozen(self) -> None:
        """Unfreeze and collect all objects, if enough were frozen and there are not too many."""
        n_frozen = gc.get_freeze_count()
        if n_frozen > FULL_COLLECT_MAX_OBJECTS:
            return
        self._dirty = self._frozen_since_full = False
        if n_frozen - self._n_frozen_alive >= FULL_COLLECT_MIN_FROZEN:
            gc.unfreeze()
            self._collect(2)
            gc.freeze()
            self._n_frozen_alive = gc.get_freeze_count()
            self._trim_in_thread()

    def _collect(self, generation: int) -> int:
        """Collect ``generation``. Return the number of garbage objects."""
        started = time.perf_counter()
        found = gc.collect(generation)
        self.seconds += time.perf_counter() - started
        return found
