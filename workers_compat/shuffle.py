"""P2P shuffles: distributed's own scheduler plugin, on the facade.

The plugin decides who takes part in a shuffle, pins its output to workers, and begins it again when one of them is lost.
While there is no shuffle it sleeps: none of its hooks is called.

Must not know: what is shuffled; how its requests come in (it puts handlers on the facade).
"""

from __future__ import annotations

from collections import Counter
from time import time
from typing import Any

from dask._task_spec import Alias
from distributed.protocol.pickle import dumps
from distributed.shuffle._core import barrier_key
from distributed.shuffle._exceptions import P2PConsistencyError
from distributed.shuffle._scheduler_plugin import ShuffleSchedulerPlugin
from distributed.shuffle._worker_plugin import ShuffleWorkerPlugin

from .plugins import Plugins

NAME = "shuffle"
"""Of the plugin on the scheduler, of the one on workers, and of their data in heartbeats."""

BEGUN_AGAIN_MAX = 10
"""So often a shuffle begins again because what needs it runs without it; then its tasks fail as in stock."""


def worker_plugin() -> bytes:
    """The plugin that every worker needs, pickled."""
    return bytes(dumps(ShuffleWorkerPlugin()))


def _fused(task: Any) -> Any:
    """The task that an alias stands for, where it runs or has run; None for what is no alias."""
    if len(task.dependencies) != 1:
        return None
    (source,) = task.dependencies
    if source.state not in ("processing", "memory") or not task.run_spec_names(b"Alias"):
        return None
    return source if isinstance(task.run_spec, Alias) else None


class SleepingShufflePlugin(ShuffleSchedulerPlugin):
    """Stock's plugin, asleep while nobody shuffles.

    Args:
        host: where plugins live.
    """

    FINISHES = ("erred", "forgotten", "released")
    """What its ``transition`` does not pass over."""

    def __init__(self, host: Plugins) -> None:
        self._host = host
        self._begun_again: Counter[Any] = Counter()
        super().__init__(host.facade)
        host.facade.extensions[NAME] = self
        host.sleep(NAME)

    def start(self, scheduler: Any) -> None:
        """Nothing: workers get their part when they register."""

    def get_or_create(self, shuffle_id: Any, key: Any, worker: str) -> Any:
        """A worker takes part in a shuffle; the first begins it."""
        answer = super().get_or_create(shuffle_id, key, worker)
        if self._shuffles:
            self._host.wake(NAME)
        return answer

    def get(self, id: Any, worker: str) -> Any:
        """The run that a worker asks for; where there is none, and it should be, all of it begins again."""
        if id not in self.active_shuffles:
            self._begin_again(id, worker)
        return super().get(id, worker)

    def barrier(self, id: Any, run_id: int, consistent: bool) -> Any:
        """What stock's does; it fails with a KeyError where there is no such shuffle, here all of it begins again."""
        if id in self.active_shuffles:
            return super().barrier(id, run_id, consistent)
        if not self._begin_again(id):
            raise P2PConsistencyError(f"No active shuffle with {id=!r} found")
        return None

    def _begin_again(self, id: Any, worker: str | None = None) -> bool:
        """Run a shuffle's transfers again where what needs them runs though their shuffle is gone.

        That comes when all that was sent in a run that failed is taken for sent in the next one. What runs is released
        first, so that its failure, when it comes, is that of a run that nobody waits for.

        Args:
            worker: only what runs there counts; None is anywhere.

        Returns:
            Whether it begins again; not more than ``BEGUN_AGAIN_MAX`` times while the scheduler knows of it.
        """
        barrier = self.scheduler.tasks.get(barrier_key(id))
        if barrier is None:
            return False
        running = [ts for ts in (barrier, *barrier.dependents) if ts.state == "processing"]
        if not any(worker in (None, ts.processing_on.address) for ts in running):
            return False
        self._begun_again[id] += 1
        if self._begun_again[id] > BEGUN_AGAIN_MAX:
            return False
        for run in sorted(self._shuffles.get(id, ()), key=lambda run: run.run_id)[-1:]:
            run.participating_workers.intersection_update(self.scheduler.workers)
            self._fail_on_workers(run, f"No active shuffle with {id=!r} found")  # who missed it
        self._restart_shuffle(id, self.scheduler, stimulus_id=f"p2p-no-shuffle-{time()}")
        return True

    def _restart_recommendations(self, id: Any) -> dict[Any, str]:
        """What stock begins again, and transfers that stand behind an alias because dask fused them with their input.

        Of those stock takes what a transfer has sent in the run that failed for sent in the next one, when its end was
        on its way as the shuffle began again; the barrier then finds no shuffle.
        """
        recommendations: dict[Any, str] = super()._restart_recommendations(id)
        if recommendations:
            for transfer in self.scheduler.tasks[barrier_key(id)].dependencies:
                source = _fused(transfer)
                if source is not None:
                    recommendations[source.key] = "released"
        return recommendations

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        """What stock's does; when the last shuffle is forgotten there is nothing to do any more."""
        super().transition(key, start, finish, *args, **kwargs)
        if finish == "forgotten" and not self._shuffles:
            self._begun_again.clear()
            self._host.sleep(NAME)

    def restart(self, scheduler: Any) -> None:
        """All tasks are forgotten."""
        super().restart(scheduler)
        self._begun_again.clear()
        self._host.sleep(NAME)
