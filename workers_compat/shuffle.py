"""P2P shuffles: distributed's own scheduler plugin, on the facade.

The plugin decides who takes part in a shuffle, pins its output to workers, and begins it again when one of them is lost.
While there is no shuffle it sleeps: none of its hooks is called.

Must not know: what is shuffled; how its requests come in (it puts handlers on the facade).
"""

from __future__ import annotations

from typing import Any

from dask._task_spec import Alias
from distributed.protocol.pickle import dumps
from distributed.shuffle._core import barrier_key
from distributed.shuffle._scheduler_plugin import ShuffleSchedulerPlugin
from distributed.shuffle._worker_plugin import ShuffleWorkerPlugin

from .plugins import Plugins

NAME = "shuffle"
"""Of the plugin on the scheduler, of the one on workers, and of their data in heartbeats."""


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
            self._host.sleep(NAME)

    def restart(self, scheduler: Any) -> None:
        """All tasks are forgotten."""
        super().restart(scheduler)
        self._host.sleep(NAME)
