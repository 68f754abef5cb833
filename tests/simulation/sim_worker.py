"""A model of the stock worker, as the scheduler sees it.

It fetches missing dependencies and reports them (add-keys), runs tasks by priority and cannot stop a running task.
If a task that it still has is requested again, it repeats the report under the run_id with which the attempt started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.protocol import messages as m
from paceline.testing import fake_error

if TYPE_CHECKING:
    from tests.simulation.sim_world import World

#: Seconds after which a worker requests missing data again, as in stock.
ASK_AGAIN_SECONDS = 1.0
#: Values of WorkerState.status in which no task is started.
RESTING = ("paused", "closing_gracefully", "closing", "closed")


@dataclass
class Job:
    """A task on a worker.

    Attributes:
        state: waiting, ready, executing, long-running, cancelled, erred.
        run_id: of the last ``compute-task``.
        started_as: the run_id when it started.
        missing: dependencies that are not on this worker, in order.
        before: the state before cancelled.
    """

    key: Any
    run_id: int
    priority: Any
    dependencies: tuple[Any, ...]
    missing: dict[Any, None]
    state: str = "waiting"
    started_as: int = 0
    before: str = ""
    started_at: float = 0.0
    error: Any = None
    resources: dict[str, float] | None = None


class ModelWorker:
    """A worker of the simulation.

    Attributes:
        data: key -> bytes of the stored results.
        jobs: key -> Job.
        who_has: key -> addresses known to this worker.
    """

    def __init__(self, world: World, address: str, nthreads: int) -> None:
        self.world = world
        self.address = address
        self.nthreads = nthreads
        self.status = "running"
        self.alive = True
        self.data: dict[Any, int] = {}
        self.jobs: dict[Any, Job] = {}
        self.who_has: dict[Any, list[str]] = {}
        self.in_flight: dict[Any, None] = {}
        self.asked: dict[Any, None] = {}
        self.occupied: dict[Any, None] = {}

    def supply(self, resources: dict[str, float]) -> None:
        """Ignore the resources; the scheduler alone accounts for them."""

    def place(self, key: Any, nbytes: int) -> None:
        """Store scattered data, as a client does."""
        self.data[key] = nbytes

    def lose_copy(self, key: Any) -> None:
        """Remove a replica that no task on this worker needs."""
        if not any(key in job.dependencies for job in self.jobs.values()):
            self._drop(key)

    def tell(self, message: Any) -> None:
        self.world.from_worker(self, message)

    # -- messages from the scheduler

    def receive(self, message: Any) -> None:
        HANDLERS[type(message)](self, message)
        self.pump()

    def on_compute_task(self, message: m.ComputeTask) -> None:
        key = message.key
        job = self.jobs.get(key)
        if job is not None and job.state in ("waiting", "ready", "executing", "long-running"):
            job.run_id = message.run_id
        elif key in self.data:
            self._tell_finished(key, message.run_id)
        elif job is not None and job.state == "cancelled":
            job.run_id = message.run_id
            job.state = job.before
            if job.state == "long-running":
                self.tell(m.LongRunning(key=key, run_id=job.run_id))
        else:
            self._new_job(message)

    def _new_job(self, message: m.ComputeTask) -> None:
        dependencies = tuple(message.who_has)
        assert all(message.who_has.values()), message
        missing = {d: None for d in dependencies if d not in self.data}
        self.jobs[message.key] = job = Job(
            message.key, message.run_id, message.priority, dependencies, missing
        )
        job.resources = message.resource_restrictions
        for key in missing:
            self.who_has[key] = [a for a in message.who_has[key] if a != self.address]
        if not missing:
            job.state = "ready"

    def on_free_keys(self, message: m.FreeKeys) -> None:
        for key in message.keys:
            if key in self.data:
                self._drop(key)
            job = self.jobs.get(key)
            if job is None:
                continue
            if job.state in ("executing", "long-running"):
                job.before = job.state
                job.state = "cancelled"
            elif job.state != "cancelled":
                del self.jobs[key]

    def on_steal_request(self, message: m.StealRequest) -> None:
        """Give the task back if it has not started."""
        key = message.key
        job = self.jobs.get(key)
        state = job.state if job is not None else ("memory" if key in self.data else None)
        if state in ("waiting", "ready"):
            del self.jobs[key]
        self.tell(m.StealResponse(key=key, state=state, stimulus_id=message.stimulus_id))

    def on_remove_replicas(self, message: m.RemoveReplicas) -> None:
        for key in message.keys:
            if key in self.data:
                self._drop(key)

    def on_acquire_replicas(self, message: m.AcquireReplicas) -> None:
        """Fetch replicas from those of the given workers that still have them."""
        for key, holders in message.who_has.items():
            if key not in self.data and key not in self.jobs:
                holder = self.world.rng.choice(holders)
                self.world.later(self.world.latency(), self._acquired, key, holder)

    def _acquired(self, key: Any, holder: str) -> None:
        peer = self.world.workers.get(holder)
        here = key in self.data or key in self.jobs or key in self.in_flight
        if self.alive and not here and peer is not None and key in peer.data:
            self._take(key, peer)
            self.pump()

    def _take(self, key: Any, peer: ModelWorker) -> None:
        """Store a replica received from a peer, and mark the jobs that waited for it as ready."""
        self.data[key] = peer.data[key]
        self.tell(m.AddKeys(keys=[key]))
        for job in self.jobs.values():
            job.missing.pop(key, None)
            if job.state == "waiting" and not job.missing:
                job.state = "ready"

    def _drop(self, key: Any) -> None:
        del self.data[key]
        for job in self.jobs.values():
            if key in job.dependencies and job.state in ("waiting", "ready"):
                job.missing[key] = None
                job.state = "waiting"
        self.tell(m.ReleaseWorkerData(key=key))

    def on_refresh_who_has(self, message: m.RefreshWhoHas) -> None:
        for key, addresses in message.who_has.items():
            self.who_has[key] = [a for a in addresses if a != self.address]

    def on_remove_worker(self, message: m.RemoveWorker) -> None:
        for addresses in self.who_has.values():
            if message.worker in addresses:
                addresses.remove(message.worker)

    def on_close(self, message: m.Close) -> None:
        self.world.worker_closes(self)

    def on_status_change(self, message: m.WorkerStatusChange) -> None:
        self.set_status(message.status)

    def set_status(self, status: str) -> None:
        if status != self.status and self.alive:
            self.status = status
            self.tell(m.WorkerStatusChange(status=status))
            self.pump()

    # -- execution

    def pump(self) -> None:
        """Start ready tasks while there are free threads."""
        if not self.alive or self.status in RESTING:
            return
        for key in self._needed():
            if key not in self.in_flight:
                self._fetch(key)
        ready = [job for job in self.jobs.values() if job.state == "ready"]
        ready.sort(key=lambda job: job.priority)
        for job in ready[: max(0, self.nthreads - len(self.occupied))]:
            self._execute(job)

    def _needed(self) -> dict[Any, None]:
        return {
            key: None for job in self.jobs.values() if job.state == "waiting" for key in job.missing
        }

    def _fetch(self, key: Any) -> None:
        holders = self.who_has.get(key)
        if holders:
            self.in_flight[key] = None
            holder = self.world.rng.choice(holders)
            self.world.later(self.world.latency(), self._fetched, key, holder)
        elif key not in self.asked:
            self.asked[key] = None
            self.tell(m.RequestRefreshWhoHas(keys=[key]))
            self.world.later(ASK_AGAIN_SECONDS, self._ask_again, key)

    def _ask_again(self, key: Any) -> None:
        self.asked.pop(key, None)
        self.pump()

    def _fetched(self, key: Any, holder: str) -> None:
        if not self.alive:
            return
        del self.in_flight[key]
        peer = self.world.workers.get(holder)
        needed = key in self._needed()
        if peer is None or key not in peer.data:
            if holder in self.who_has.get(key, ()):
                self.who_has[key].remove(holder)
        elif needed:
            self._take(key, peer)
        self.pump()

    def _execute(self, job: Job) -> None:
        assert all(d in self.data for d in job.dependencies), job
        job.state = "executing"
        job.started_as = job.run_id
        job.started_at = self.world.agenda.now
        self.occupied[job.key] = None
        self.world.executes(self, job)

    def secede(self, job: Job) -> None:
        """Secede from the thread pool."""
        if self.alive and job.key in self.occupied:
            del self.occupied[job.key]
            if job.state == "executing":
                job.state = "long-running"
                seconds = self.world.agenda.now - job.started_at
                self.tell(m.LongRunning(key=job.key, run_id=job.run_id, compute_duration=seconds))
            else:
                job.before = "long-running"
            self.pump()

    def done(self, job: Job, outcome: str) -> None:
        """End the task with "ok", "error" or "reschedule"."""
        if not self.alive:
            return
        self.occupied.pop(job.key, None)
        key = job.key
        if job.state == "cancelled":
            del self.jobs[key]
        elif outcome == "ok":
            del self.jobs[key]
            self.data[key] = self.world.workload.nbytes(key)
            self._tell_finished(key, job.started_as, job.started_at)
        elif outcome == "error":
            job.state = "erred"
            error = fake_error(f"boom {key}")
            self.tell(m.TaskErred(key=key, run_id=job.started_as, exception=error, traceback=error))
        else:
            del self.jobs[key]
            self.tell(m.Reschedule(key=key))
        self.pump()

    def _tell_finished(self, key: Any, run_id: int, started: float = 0.0) -> None:
        now = self.world.agenda.now
        spans = [m.StartStop(action="compute", start=started, stop=now)] if started else []
        self.tell(
            m.TaskFinished(
                key=key, run_id=run_id, nbytes=self.data[key], typename="int", startstops=spans
            )
        )

    def executing(self) -> dict[Any, float]:
        """Return the executing tasks of a heartbeat: key -> seconds since the start."""
        now = self.world.agenda.now
        return {
            job.key: now - job.started_at
            for job in self.jobs.values()
            if job.state in ("executing", "long-running", "cancelled")
        }


HANDLERS: dict[type[Any], Any] = {
    m.ComputeTask: ModelWorker.on_compute_task,
    m.FreeKeys: ModelWorker.on_free_keys,
    m.RemoveReplicas: ModelWorker.on_remove_replicas,
    m.StealRequest: ModelWorker.on_steal_request,
    m.AcquireReplicas: ModelWorker.on_acquire_replicas,
    m.RefreshWhoHas: ModelWorker.on_refresh_who_has,
    m.RemoveWorker: ModelWorker.on_remove_worker,
    m.Close: ModelWorker.on_close,
    m.WorkerStatusChange: ModelWorker.on_status_change,
}
