"""The stock worker's own state machine in a simulated cluster, in place of the model in ``sim_worker``.

It raises if the scheduler requests something that a stock worker does not expect. Its sets of strings make its
choices depend on the hash seed, so reproduce a seed under the same ``PYTHONHASHSEED``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed import worker_state_machine as stock
from distributed.protocol.serialize import Serialize
from paceline.protocol import messages as m
from paceline.testing import fake_error

if TYPE_CHECKING:
    from tests.simulation.sim_world import World

#: Stock's ``find-missing`` callback.
FIND_MISSING_SECONDS = 1.0


@dataclass
class Attempt:
    """A task being executed.

    Attributes:
        run_id: the run_id when the attempt began; its end is reported under it.
    """

    key: Any
    run_id: int
    started_at: float


class StockWorker:
    """``ModelWorker``'s methods over stock's ``WorkerState``."""

    def __init__(self, world: World, address: str, nthreads: int) -> None:
        self.world = world
        self.address = address
        self.status = "running"
        self.alive = True
        self.machine = stock.WorkerState(nthreads=nthreads, address=address, validate=True)
        self._looks_for_missing = False

    @property
    def data(self) -> dict[Any, Any]:
        machine = self.machine
        made = {k: v for k, v in machine.actors.items() if machine.tasks[k].state == "memory"}
        return {**machine.data, **made}

    @property
    def jobs(self) -> dict[Any, Any]:
        return self.machine.tasks

    def supply(self, resources: dict[str, float]) -> None:
        self.machine.total_resources.update(resources)
        self.machine.available_resources.update(resources)

    def place(self, key: Any, nbytes: int) -> None:
        """Store scattered data, as a client does."""
        self._handle(stock.UpdateDataEvent(data={key: nbytes}, stimulus_id="scatter"))

    def lose_copy(self, key: Any) -> None:
        ts = self.machine.tasks[key]
        if not ts.dependents:
            self._handle(stock.RemoveReplicasEvent(keys=[key], stimulus_id="lost"))

    # -- messages from the scheduler

    def receive(self, message: Any) -> None:
        kind = type(message)
        name = message.stimulus_id if hasattr(message, "stimulus_id") else ""
        if kind is m.ComputeTask:
            self._handle(self._compute(message))
        elif kind is m.FreeKeys:
            self._handle(stock.FreeKeysEvent(keys=message.keys, stimulus_id=name))
        elif kind is m.RemoveReplicas:
            self._handle(stock.RemoveReplicasEvent(keys=message.keys, stimulus_id=name))
        elif kind is m.AcquireReplicas:
            self._handle(
                stock.AcquireReplicasEvent(
                    who_has=message.who_has, nbytes=message.nbytes, stimulus_id=name
                )
            )
        elif kind is m.RefreshWhoHas:
            self._handle(stock.RefreshWhoHasEvent(who_has=message.who_has, stimulus_id=name))
        elif kind is m.RemoveWorker:
            self._handle(stock.RemoveWorkerEvent(worker=message.worker, stimulus_id=name))
        elif kind is m.WorkerStatusChange:
            self.set_status(message.status)
        elif kind is m.StealRequest:
            self._handle(stock.StealRequestEvent(key=message.key, stimulus_id=name))
        elif kind is m.Close:
            self.world.worker_closes(self)
        else:
            raise TypeError(f"a worker got {message}")

    def _compute(self, message: m.ComputeTask) -> stock.ComputeTaskEvent:
        return stock.ComputeTaskEvent(
            key=message.key,
            run_id=message.run_id,
            who_has=message.who_has,
            nbytes=message.nbytes,
            priority=tuple(message.priority),
            run_spec=stock.ComputeTaskEvent.dummy_runspec(message.key),
            resource_restrictions=message.resource_restrictions or {},
            actor=message.actor,
            annotations=message.annotations,
            span_id=message.span_id,
            stimulus_id=message.stimulus_id,
        )

    def set_status(self, status: str) -> None:
        if status == self.status or not self.alive:
            return
        self.status = status
        self.world.from_worker(self, m.WorkerStatusChange(status=status))
        if status == "running":
            self._handle(stock.UnpauseEvent(stimulus_id="unpause"))
        else:
            self._handle(stock.PauseEvent(stimulus_id="pause"))

    # -- instructions of the state machine

    def _handle(self, event: Any) -> None:
        if not self.alive:
            return
        for instruction in self.machine.handle_stimulus(event):
            if isinstance(instruction, stock.Execute):
                run_id = self.machine.tasks[instruction.key].run_id
                attempt = Attempt(instruction.key, run_id, self.world.agenda.now)
                self.world.executes(self, attempt)
            elif isinstance(instruction, stock.GatherDep):
                self.world.later(self.world.latency(), self._gathered, instruction)
            else:
                self.world.from_worker(self, self._told(instruction))
        if self.machine.missing_dep_flight and not self._looks_for_missing:
            self._looks_for_missing = True
            self.world.later(FIND_MISSING_SECONDS, self._find_missing)

    def _gathered(self, asked: stock.GatherDep) -> None:
        peer = self.world.workers.get(asked.worker)
        facts = {
            "worker": asked.worker,
            "total_nbytes": asked.total_nbytes,
            "stimulus_id": "gathered",
        }
        if peer is None:
            self._handle(stock.GatherDepNetworkFailureEvent(**facts))
        else:
            data = {key: peer.data[key] for key in asked.to_gather if key in peer.data}
            self._handle(stock.GatherDepSuccessEvent(data=data, **facts))

    def _find_missing(self) -> None:
        self._looks_for_missing = False
        if self.machine.missing_dep_flight:
            self._handle(stock.FindMissingEvent(stimulus_id="find-missing"))

    def _told(self, said: Any) -> Any:
        """Return the wire message for a message of the state machine."""
        if isinstance(said, stock.TaskFinishedMsg):
            spans = [
                m.StartStop(action=s["action"], start=s["start"], stop=s["stop"])
                for s in said.startstops
            ]
            return m.TaskFinished(
                key=said.key,
                run_id=said.run_id,
                nbytes=said.nbytes,
                typename="int",
                startstops=spans,
            )
        if isinstance(said, stock.TaskErredMsg):
            error = fake_error(f"boom {said.key}")
            return m.TaskErred(key=said.key, run_id=said.run_id, exception=error, traceback=error)
        if isinstance(said, stock.ReleaseWorkerDataMsg):
            return m.ReleaseWorkerData(key=said.key)
        if isinstance(said, stock.AddKeysMsg):
            return m.AddKeys(keys=list(said.keys))
        if isinstance(said, stock.RequestRefreshWhoHasMsg):
            return m.RequestRefreshWhoHas(keys=list(said.keys))
        if isinstance(said, stock.StealResponseMsg):
            return m.StealResponse(key=said.key, state=said.state, stimulus_id=said.stimulus_id)
        if isinstance(said, stock.RescheduleMsg):
            return m.Reschedule(key=said.key)
        if isinstance(said, stock.LongRunningMsg):
            return m.LongRunning(
                key=said.key, run_id=said.run_id, compute_duration=said.compute_duration
            )
        raise TypeError(f"the machine says {said}")

    # -- ends of attempts

    def secede(self, job: Attempt) -> None:
        seconds = self.world.agenda.now - job.started_at
        self._handle(stock.SecedeEvent(key=job.key, compute_duration=seconds, stimulus_id="secede"))

    def done(self, job: Attempt, outcome: str) -> None:
        """End the attempt with "ok", "error" or "reschedule"."""
        now = self.world.agenda.now
        if outcome == "ok":
            event: Any = stock.ExecuteSuccessEvent(
                key=job.key,
                run_id=job.run_id,
                value=self.world.workload.nbytes(job.key),
                start=job.started_at,
                stop=now,
                nbytes=self.world.workload.nbytes(job.key),
                type=int,
                stimulus_id="done",
            )
        elif outcome == "error":
            event = stock.ExecuteFailureEvent(
                key=job.key,
                run_id=job.run_id,
                start=job.started_at,
                stop=now,
                exception=Serialize(None),
                traceback=None,
                exception_text="",
                traceback_text="",
                stimulus_id="done",
            )
        else:
            event = stock.RescheduleEvent(key=job.key, stimulus_id="done")
        self._handle(event)

    def executing(self) -> dict[Any, float]:
        """Return the executing tasks of a heartbeat."""
        return {ts.key: 0.1 for ts in self.machine.executing | self.machine.long_running}
