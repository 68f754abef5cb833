"""distributed's own scheduler plugins and extensions, run on the facade.

- P2P shuffles: the plugin decides which workers take part in a shuffle, pins its output to them,
  and restarts it when one of them is lost.
- Custom policies of the active memory manager.
- Records of finished tasks: the task stream and ``get_task_metadata``, registered when they are
  first requested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from time import time
from typing import Any

from dask._task_spec import Alias
from distributed.active_memory_manager import ActiveMemoryManagerExtension, ReduceReplicas
from distributed.diagnostics.task_stream import TaskStreamPlugin
from distributed.protocol.pickle import dumps
from distributed.scheduler import CollectTaskMetaDataPlugin
from distributed.shuffle._core import P2PBarrierTask, ShuffleRunSpec, barrier_key
from distributed.shuffle._exceptions import P2PConsistencyError
from distributed.shuffle._scheduler_plugin import ShuffleSchedulerPlugin
from distributed.shuffle._worker_plugin import ShuffleWorkerPlugin
from paceline.protocol.messages import AmmHandler
from paceline.workers_compat.counters import next_number

from .plugins import Plugins

#: Name of the scheduler plugin, of the worker plugin, and of their data in heartbeats.
SHUFFLE = "shuffle"
#: Name of the plugin that collects records of finished tasks.
TASK_STREAM = TaskStreamPlugin.name
#: Restarts of a shuffle because tasks that need it run without it. After these its tasks fail as in
#: stock.
RESTARTS_MAX = 10
#: The policies that the core's memory manager implements.
OWN_POLICIES = frozenset({ReduceReplicas})
#: Keys whose metadata one collection waits for. Further keys are left out.
KEYS_MAX = 1_000_000


def shuffle_worker_plugin() -> bytes:
    """Return the pickled shuffle plugin for all workers."""
    return bytes(dumps(ShuffleWorkerPlugin()))


def _fused(task: Any) -> Any:
    """Return the task that an alias refers to if it is processing or in memory, else None."""
    if len(task.dependencies) != 1:
        return None
    (source,) = task.dependencies
    if source.state not in ("processing", "memory") or not task.run_spec_names(b"Alias"):
        return None
    return source if isinstance(task.run_spec, Alias) else None


def _run_ids() -> Any:
    """Return the iterator from which stock numbers the runs of all shuffles of this process."""
    (field,) = (each for each in fields(ShuffleRunSpec) if each.name == "run_id")
    return field.default_factory.args[0]  # type: ignore[union-attr]


class SuspendedShufflePlugin(ShuffleSchedulerPlugin):
    """Stock's plugin, suspended while there is no shuffle."""

    #: Final states that ``transition`` handles.
    FINISHES = ("erred", "forgotten", "released")

    def __init__(self, host: Plugins) -> None:
        self._host = host
        self._restarts: Counter[Any] = Counter()
        super().__init__(host.facade)
        host.facade.extensions[SHUFFLE] = self
        host.suspend(SHUFFLE)

    def start(self, scheduler: Any) -> None:
        """Do nothing: workers get their plugin when they register."""

    def get_or_create(self, shuffle_id: Any, key: Any, worker: str) -> Any:
        """Add a worker to a shuffle, which the first worker creates."""
        answer = super().get_or_create(shuffle_id, key, worker)
        if self._shuffles:
            self._host.resume(SHUFFLE)
        return answer

    def get(self, id: Any, worker: str) -> Any:
        """Return the run of a shuffle. Restart the shuffle if it is missing but needed."""
        if id not in self.active_shuffles:
            self._restart_missing(id, worker)
        return super().get(id, worker)

    def barrier(self, id: Any, run_id: int, consistent: bool) -> Any:
        """See stock, which raises a KeyError for a missing shuffle. Here it is restarted."""
        if id in self.active_shuffles:
            return super().barrier(id, run_id, consistent)
        if not self._restart_missing(id):
            raise P2PConsistencyError(f"No active shuffle with {id=!r} found")
        return None

    def _retrieve_spec(self, shuffle_id: Any) -> Any:
        """See stock. The metadata of a dataframe stays pickled: pandas is not imported here."""
        task = self.scheduler.tasks[barrier_key(shuffle_id)].outer_run_spec()
        assert isinstance(task, P2PBarrierTask)
        return task.spec

    def _restart_missing(self, id: Any, worker: str | None = None) -> bool:
        """Run the transfers of a shuffle again if tasks that need it are processing without it.

        This happens when output of a failed run is mistaken for output of the next run. Processing
        tasks are released first, so that their failure belongs to a run that no task waits for.

        Consider only tasks processing on `worker`, if given. Return whether the shuffle restarts:
        at most ``RESTARTS_MAX`` times as long as the scheduler knows it.
        """
        barrier = self.scheduler.tasks.get(barrier_key(id))
        if barrier is None:
            return False
        running = [ts for ts in (barrier, *barrier.dependents) if ts.state == "processing"]
        if not any(worker in (None, ts.processing_on.address) for ts in running):
            return False
        self._restarts[id] += 1
        if self._restarts[id] > RESTARTS_MAX:
            return False
        for run in sorted(self._shuffles.get(id, ()), key=lambda run: run.run_id)[-1:]:
            run.participating_workers.intersection_update(self.scheduler.workers)
            self._fail_on_workers(
                run, f"No active shuffle with {id=!r} found"
            )  # workers that missed it
        self._restart_shuffle(id, self.scheduler, stimulus_id=f"p2p-no-shuffle-{time()}")
        return True

    def _restart_recommendations(self, id: Any) -> dict[Any, str]:
        """Also release transfers behind an alias, which dask fused with their input.

        Stock mistakes what such a transfer sent in the failed run for output of the next run if the
        transfer finished while the shuffle was restarting. The barrier then finds no shuffle.
        """
        recommendations: dict[Any, str] = super()._restart_recommendations(id)
        if recommendations:
            for transfer in self.scheduler.tasks[barrier_key(id)].dependencies:
                source = _fused(transfer)
                if source is not None:
                    recommendations[source.key] = "released"
        return recommendations

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        """See stock. Suspend the plugin when the last shuffle is forgotten."""
        super().transition(key, start, finish, *args, **kwargs)
        if finish == "forgotten" and not self._shuffles:
            self._restarts.clear()
            self._host.suspend(SHUFFLE)

    def fingerprint(self) -> object:
        """Return a value that differs if the state that ``state`` returns does."""
        runs = {run for each in self._shuffles.values() for run in each}
        return {
            (run.id, run.run_id, run.archived, len(run.participating_workers)) for run in runs
        }, self._restarts.total()

    def state(self) -> dict[str, Any]:
        """Return the state of all shuffles, which can be pickled."""
        return {
            "active_shuffles": self.active_shuffles,
            "_shuffles": dict(self._shuffles),
            "_archived_by_stimulus": dict(self._archived_by_stimulus),
            "_restarts": self._restarts,
            "next_run_id": next_number(_run_ids()),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue the shuffles of another process. Workers expect new runs to have new numbers."""
        self.active_shuffles = state["active_shuffles"]
        self._shuffles.update(state["_shuffles"])
        self._archived_by_stimulus.update(state["_archived_by_stimulus"])
        self._restarts = state["_restarts"]
        run_ids = _run_ids()
        while next(run_ids) < state["next_run_id"] - 1:
            pass
        if self._shuffles:
            self._host.resume(SHUFFLE)

    def restart(self, scheduler: Any) -> None:
        """See stock. All tasks are forgotten."""
        super().restart(scheduler)
        self._restarts.clear()
        self._host.suspend(SHUFFLE)


class PolicyManager(ActiveMemoryManagerExtension):
    """Stock's manager with the configured policies, ``extensions["amm"]``.

    While they are those that the core's memory manager implements, it starts and stops that one.
    Otherwise, and after others were added, it runs all policies itself and serves ``amm_handler``.

    Attributes:
        is_custom: whether it runs the policies itself.
    """

    def __init__(self, facade: Any) -> None:
        self._core = facade.server.core.extensions["amm"]
        self.is_custom = True  # `add_policy` has nothing to replace yet
        super().__init__(facade, register=False, start=False)
        self.is_custom = {type(policy) for policy in self.policies} != OWN_POLICIES
        if self.is_custom:
            facade.handlers["amm_handler"] = self.amm_handler
        facade.extensions["amm"] = self

    @property
    def running(self) -> bool:
        return bool(super().running if self.is_custom else self._core.running)

    def start(self) -> None:
        """Start periodic runs, unless it is running."""
        if self.is_custom:
            self._command("stop")
            super().start()
        else:
            self._command("start")

    def stop(self) -> None:
        """Stop periodic runs."""
        super().stop()
        self._command("stop")

    def run_once(self) -> None:
        """Run all policies once."""
        if self.is_custom:
            super().run_once()
        else:
            self._command("run_once")

    def add_policy(self, policy: Any) -> None:
        """Add a policy. Raise TypeError if it is none."""
        super().add_policy(policy)
        if not self.is_custom and type(policy) not in OWN_POLICIES:
            was_running = self.running
            self.is_custom = True
            self.scheduler.handlers["amm_handler"] = self.amm_handler
            if was_running:
                self.start()

    def _command(self, method: str) -> None:
        """Feed a command to the core's manager, now or right after the current turn."""
        self.scheduler.send_stimulus(AmmHandler(method=method))


def task_stream(plugins: Plugins) -> Any:
    """Return distributed's ``TaskStreamPlugin``, and register it on the first call."""
    if TASK_STREAM not in plugins:
        plugins.add(TaskStreamPlugin(plugins.facade), TASK_STREAM)
    return plugins.by_name[TASK_STREAM]


class TaskMetadata(CollectTaskMetaDataPlugin):
    """distributed's plugin, with a limit on the number of keys."""

    def update_graph(self, scheduler: Any, *, keys: Iterable[Any], **_: Any) -> None:
        if len(self.keys) < KEYS_MAX:
            self.keys.update(keys)


def start_task_metadata(plugins: Plugins, name: str) -> None:
    """Start a collection."""
    plugins.add(TaskMetadata(plugins.facade, name), name)


def stop_task_metadata(plugins: Plugins, name: str | None) -> dict[str, Any]:
    """Stop a collection and return what it found. Raise ValueError for an unknown name."""
    plugin = plugins.by_name.get(name) if name is not None else None
    if not isinstance(plugin, TaskMetadata):
        raise ValueError(
            f"Expected to find exactly one CollectTaskMetaDataPlugin with name {name} but found 0."
        )
    plugins.remove(plugin.name)
    return {"metadata": plugin.metadata, "state": plugin.state}
