"""A cluster in memory: the core, model workers and clients, and slow or broken links, all drawn from one seed.

After each turn the tasks that it touched are checked, and every few turns the whole state. In the final phase no
fault occurs and every desired task must settle. Then everything is released, and no state may be left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.inspection.invariants import validate_state, validate_tasks
from paceline.scheduler.core.instructions import (
    DropWorkerConnection,
    MatchError,
    RestartSilentWorkers,
    SetTimer,
    WantsContinue,
)
from paceline.scheduler.core.policy.admission import may_spill
from paceline.scheduler.core.policy.fairness import can_run
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    ClientJoined,
    ClientRemoved,
    ConfigureStealing,
    Continue,
    DataPlaced,
    ErrorMatched,
    RecallTask,
    ReleaseAll,
    RetryKeys,
    SetWorkerStatus,
    Stimulus,
    Tick,
    TimerDue,
    WorkerBackpressured,
    WorkerHeartbeat,
    WorkerJoined,
    WorkerRemoved,
    stimulus_name,
)
from paceline.scheduler.extensions.memory_manager import MemoryManager
from paceline.scheduler.extensions.topics import Topics
from paceline.testing import FakeErrors, Rows, compile_rows

from tests.simulation.sim_checks import check_empty, check_settled
from tests.simulation.sim_client import ModelClient
from tests.simulation.sim_memory import LOOK_SECONDS, Pressure
from tests.simulation.sim_shares import ShareSettings
from tests.simulation.sim_time import Agenda, Link
from tests.simulation.sim_worker import Job, ModelWorker
from tests.simulation.sim_workload import Graph, Workload

#: Number of turns between checks of the whole state; after the other turns only touched tasks are checked.
FULL_CHECK_EVERY = 16
#: Maximum number of turns; a seed that needs more does not settle.
TURNS_MAX = 60_000
#: Latency of messages between peers and core, by the network that the seed selects (seconds).
LATENCIES = ((0.0, 0.0), (0.001, 0.005), (0.001, 0.2), (0.01, 3.0))
BEAT_SECONDS = 1.0
#: Factors by which workers are slower than others.
SLOWNESS = (1.0, 1.0, 1.0, 1.0, 20.0)
#: Interval of work stealing (seconds).
STEALING_SECONDS = (0.02, 0.1, 1.0)

WorkerClass = Callable[["World", str, int], Any]


class World:
    """A simulated cluster.

    Args:
        seed: seed of all random choices.
        worker_class: class of the workers; ``ModelWorker`` or a compatible one.
        hazards: whether tasks fail and kill, and workers and clients are lost.

    Attributes:
        digest: of every message and instruction that the core sent.
        story: description of the last turns, for debugging.
    """

    def __init__(
        self, seed: int, worker_class: WorkerClass = ModelWorker, hazards: bool = True
    ) -> None:
        self.rng = rng = Random(seed)
        self.agenda = Agenda(1000.0)
        self.workload = Workload(rng, hazards)
        self.worker_class = worker_class
        self.hazards = hazards
        self.share_settings = ShareSettings(self, seed)
        config = SchedulerConfig(
            turn_tasks_max=rng.choice([1, 3, 10, 2000]),
            worker_saturation=rng.choice([1.1, 1.0, 2.5, float("inf")]),
            allowed_failures=rng.choice([0, 1, 3]),
            worker_ttl_seconds=None,
            no_workers_timeout_seconds=rng.choice([None, None, 4.0]),
            speculation=rng.random() < 0.5,
            speculation_factor=rng.choice([1.01, 3.0]),
            shares_clients=self.share_settings.clients,
            shares_groups=self.share_settings.groups,
            shares_half_life_seconds=5.0,
        )
        machines = [MemoryManager(LOOK_SECONDS, config.amm_measure), Topics(0.0)]
        self.core = SchedulerCore(config, FakeErrors(), EventLog(100), machines)
        self.state = self.core.state
        self.pressure = Pressure(self, seed)
        self.latencies = rng.choice(LATENCIES)
        self.workers: dict[str, Any] = {}
        self.slowness: dict[str, float] = {}
        self.clients: dict[str, ModelClient] = {}
        self.links: dict[str, Link] = {}
        self.client_links: dict[str, Link] = {}
        self.graph_count = 0
        self.worker_count = 0
        self.continue_pending = False
        self.turns = 0
        self.digest = hashlib.sha256()
        self.story: list[str] = []
        self.faults = True
        self.stealing = rng.random() < 0.8
        self.seen_keys: dict[Any, None] = {}

    # ------------------------------------------------------------------ the driver

    def feed(self, message: Any, source: str = "") -> None:
        """Run one turn of the core."""
        self.turns += 1
        assert self.turns < TURNS_MAX, "the simulation does not settle"
        state = self.state
        count = state.transition_counter
        name = f"{stimulus_name(message)}-{self.turns}"
        if len(self.story) > 5000:
            del self.story[:2500]
        self.story.append(f"{self.agenda.now:.3f} {source}: {message}")
        outbox = self.core.handle(Stimulus(source, message, name), self.agenda.now)
        self._check(count)
        self.share_settings.check(message, outbox)
        for instruction in outbox.instructions:
            self._carry_out(instruction)
        for name, messages in outbox.clients.items():
            self._send("client " + name, self.client_links.get(name), messages)
        for address, messages in outbox.workers.items():
            self._send(address, self.links.get(address), messages)
        for instruction in outbox.instructions:
            if type(instruction) is DropWorkerConnection:
                link = self.links.pop(instruction.address, None)
                if link is not None:
                    self._close(link, instruction.address)

    def _send(self, peer: str, link: Link | None, messages: list[Any]) -> None:
        for message in messages:
            self.digest.update(f"{peer} {message!r}\n".encode())
            self.story.append(f"    -> {peer}: {message}")
            if link is not None:
                link.down(message)

    def _carry_out(self, instruction: Any) -> None:
        self.digest.update(repr(instruction).encode())
        if type(instruction) is WantsContinue and not self.continue_pending:
            self.continue_pending = True
            self.agenda.after(self.rng.choice([0.0, 0.0, 0.01, 0.1]), self._continue)
        elif type(instruction) is SetTimer:
            self.agenda.at(instruction.when, self.feed, TimerDue(instruction.timer_id))
        elif type(instruction) is MatchError:
            if not self.faults or self.rng.random() < 0.9:  # otherwise the comparison is lost
                matched = ErrorMatched(instruction.key, instruction.run_id, self.rng.random() < 0.7)
                self.later(self.latency(), self.feed, matched)
        elif type(instruction) is RestartSilentWorkers:
            for address in instruction.addresses:
                self.later(0.0, self.feed, WorkerRemoved(address))

    def _continue(self) -> None:
        self.continue_pending = False
        self.feed(Continue())

    def _close(self, link: Link, address: str) -> None:
        """Deliver what the core sent, but drop what the worker sends."""
        worker = self.workers.get(address)
        link._to_core = lambda message: None
        link.after_down(link.cut)
        if worker is not None:
            link.after_down(lambda: self._dies(worker))

    def _check(self, transitions_before: int) -> None:
        state = self.state
        if self.turns % FULL_CHECK_EVERY == 0:
            validate_state(state)
        else:
            log = state.transition_log
            new = min(state.transition_counter - transitions_before, len(log))
            touched = {log[-1 - i][0]: None for i in range(new)}
            tasks = [state.tasks[key] for key in touched if key in state.tasks]
            validate_tasks(state, tasks)

    # ------------------------------------------------------------------ peers

    def latency(self) -> float:
        return self.rng.uniform(*self.latencies)

    def later(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        self.agenda.after(seconds, what, *args)

    def add_worker(self, **facts: Any) -> None:
        """Start a worker and register it."""
        self.worker_count += 1
        name = f"w{self.worker_count}"
        address = f"tcp://{name}:1"
        nthreads = self.rng.randint(1, 3)
        worker = self.worker_class(self, address, nthreads)
        worker.supply(facts.get("resources") or {})
        self.workers[address] = worker
        self.slowness[address] = self.rng.choice(SLOWNESS)
        link = Link(
            self.agenda,
            self.rng,
            self.latencies,
            lambda message: self.feed(message, address),
            lambda message: worker.receive(message) if worker.alive else None,
        )
        self.links[address] = link
        message = m.RegisterWorker(
            address=address,
            name=name,
            nthreads=nthreads,
            memory_limit=self.pressure.limit,
            nanny=f"nanny-{address}",
            **facts,
        )
        self.feed(WorkerJoined(address, "host", message), address)
        self.later(BEAT_SECONDS, self._beat, worker)

    def _beat(self, worker: Any) -> None:
        if worker.alive and self.faults:
            self._send_heartbeat(worker)
            self.later(BEAT_SECONDS, self._beat, worker)

    def _send_heartbeat(self, worker: Any) -> None:
        message = m.HeartbeatWorker(
            address=worker.address,
            executing=worker.executing(),
            metrics=self.pressure.metrics(worker),
        )
        self.links[worker.address].up(WorkerHeartbeat(worker.address, message))

    def from_worker(self, worker: Any, message: Any) -> None:
        link = self.links.get(worker.address)
        if worker.alive and link is not None:
            link.up(message)

    def worker_closes(self, worker: Any) -> None:
        """Close a worker on request of the scheduler."""
        self._dies(worker)
        self._breaks(worker.address, expected=False)

    def _dies(self, worker: Any) -> None:
        worker.alive = False
        if self.workers.get(worker.address) is worker:
            del self.workers[worker.address]

    def kill(self, worker: Any, expected: bool = False) -> None:
        """Kill a worker process; the core notices after a delay. A nanny starts a replacement."""
        if not worker.alive:
            return
        self._dies(worker)
        self._breaks(worker.address, expected)
        if not expected:
            self.pressure.report(worker)
        self.later(self.rng.uniform(0.0, 3.0), self.add_worker)

    def _breaks(self, address: str, expected: bool) -> None:
        link = self.links.get(address)
        if link is None:
            return
        if expected:  # the worker closed its stream after its last message
            link.up(WorkerRemoved(address, expected=True))
        else:
            link.cut()
            self.later(self.latency(), self._gone, address, link)

    def _gone(self, address: str, link: Link) -> None:
        if self.links.get(address) is link:
            self.feed(WorkerRemoved(address))

    def executes(self, worker: Any, job: Job) -> None:
        """Start a task on a worker and draw how it ends."""
        seconds = self.workload.seconds(job.key) * self.slowness[worker.address]
        fate = self.workload.fate(job.key)
        if fate == "kill":
            self.later(seconds, self._killed_by, worker, job)
        elif fate == "secede":
            self.later(seconds / 2, worker.secede, job)
            self.later(seconds * 2, worker.done, job, "ok")
        else:
            self.later(seconds, worker.done, job, fate)

    def _killed_by(self, worker: Any, job: Job) -> None:
        if self.faults:
            self.kill(worker)
        elif worker.alive:
            worker.done(job, "error")

    def add_client(self) -> ModelClient:
        name = f"c{len(self.client_links)}"
        client = ModelClient(self, name)
        self.clients[name] = client
        self.client_links[name] = Link(
            self.agenda,
            self.rng,
            self.latencies,
            lambda message: self._hear_client(client, message),
            client.receive,
        )
        self.feed(ClientJoined(name), name)
        return client

    def _hear_client(self, client: ModelClient, message: Any) -> None:
        if client.alive or not isinstance(message, m.Message):
            self.feed(message, client.name)

    def from_client(self, client: ModelClient, message: Any) -> None:
        self.client_links[client.name].up(message)

    def submits(self, client: ModelClient, graph: Graph, want: list[Any]) -> None:
        """Deliver the compiled graph in parts, in the client's order."""
        self.graph_count += 1
        self.seen_keys.update(dict.fromkeys(graph))
        rng = self.rng
        rows = Rows(commit={"received_at": self.agenda.now})
        if rng.random() < 0.1:
            rows.commit["actors"] = rng.sample(list(graph), 1)
        if rng.random() < 0.15:
            policy = self.workload.policy(self.agenda.now)
            rows.annotations = {key: policy for key in graph if rng.random() < 0.7}
        elif rng.random() < 0.2:
            some = rng.sample(list(graph), 1)
            rows.annotations = dict.fromkeys(some, self.workload.annotation(self.worker_count))
        elif rng.random() < 0.3 and self.workers:  # too much for one worker: work is stolen
            crowded = [self.workers[rng.choice(list(self.workers))].address]
            together = AnnotationSet(workers=crowded, allow_other_workers=True)
            rows.annotations = dict.fromkeys(graph, together)
        size = rng.choice([1, 4, 1000])
        for part in compile_rows(graph, self.graph_count, want, client.name, rows, size):
            self.from_client(client, part)

    def lose_client(self, client: ModelClient) -> None:
        """Break the client's connection, possibly while its graph is being received."""
        client.alive = False
        link = self.client_links[client.name]
        self.later(self.latency(), self._client_gone, client, link)

    def _client_gone(self, client: ModelClient, link: Link) -> None:
        late = self.rng.random() < 0.5  # parts that were compiled earlier may still arrive
        if not late:
            link.cut()
        if self.clients.pop(client.name, None) is not None:
            self.feed(ClientRemoved(client.name), client.name)

    # ------------------------------------------------------------------ the program

    def run(self) -> str:
        """Run the simulation to its end. Return the digest of all that the core sent."""
        self.begin()
        self.go_on_until(self.agenda.now + 60.0)
        self.settle()
        check_settled(self)
        self.release_all()
        check_empty(self)
        return self.digest.hexdigest()

    def begin(self) -> None:
        """Add peers, and draw what happens to them."""
        rng = self.rng
        for _ in range(rng.randint(0, 3)):
            self.add_worker()
        self.later(rng.uniform(0, 5), self.add_worker)
        for _ in range(rng.randint(1, 3)):
            self.add_client()
        for _ in range(rng.randint(3, 14)):
            self.later(rng.uniform(0, 20), self._client_acts)
        if self.hazards:
            for _ in range(rng.choice([0, 1, 3, 8])):
                self.later(rng.uniform(0, 25), self._fault)
            for _ in range(rng.choice([0, 0, 5, 20])):
                self.later(rng.uniform(0, 25), self._ask_back)
        if self.stealing:
            self.feed(ConfigureStealing(True, rng.choice(STEALING_SECONDS)))
        self.pressure.begin()
        self.share_settings.begin()
        self.later(1.0, self._tick)

    def _tick(self) -> None:
        if self.faults:
            self.feed(Tick())
            self.later(1.0, self._tick)

    def go_on_until(self, when: float) -> None:
        while len(self.agenda) and self.agenda.now < when:
            self.agenda.step()

    def _client_acts(self) -> None:
        rng = self.rng
        client = rng.choice(list(self.clients.values()) or [self.add_client()])
        held = list(client.futures)
        everybodys = [k for c in self.clients.values() for k in c.futures]
        draw = rng.random()
        if draw < 0.5 or not held:
            gone = [k for k in self.seen_keys if k not in self.state.tasks]
            graph = self.workload.draw(held, gone[:50])
            if everybodys and rng.random() < 0.2:
                again = rng.choice(everybodys)
                graph[again] = [] if rng.random() < 0.2 else self._same_again(again, graph)
            want = [k for k in graph if rng.random() < 0.2] or [next(reversed(graph))]
            client.submit(graph, want)
        elif draw < 0.7:
            client.release(rng.sample(held, rng.randint(1, len(held))))
        elif draw < 0.8:
            client.desire(rng.sample(everybodys, 1))
        elif draw < 0.87 and self.hazards:
            client.cancel(rng.sample(held, rng.randint(1, len(held))), rng.random() < 0.5)
        elif draw < 0.94:
            self.from_client(client, RetryKeys(held, client.name))
        elif draw < 0.96:
            client.fire_and_forget(rng.sample(held, rng.randint(1, len(held))))
        else:
            self._scatter(client)

    def _same_again(self, key: Any, graph: Graph) -> list[Any]:
        """Return the same task for another graph, with those of its dependencies that are known."""
        ts = self.state.tasks.get(key)
        if ts is None:
            return []
        return [d.key for d in ts.dependencies if d.key not in graph or not graph[d.key]]

    def _scatter(self, client: ModelClient) -> None:
        holders = [w for w in self.workers.values() if w.alive and w.address in self.state.workers]
        if not holders:
            return
        key: Any = f"data-{self.turns}"
        wanted_by = client.name
        idle = [k for k, ts in self.state.tasks.items() if ts.state in ("released", "erred")]
        if idle and self.rng.random() < 0.2:  # another client computes it too
            key = self.rng.choice(idle)
            wanted_by = ""
            holders = [w for w in holders if key not in w.jobs and key not in w.data] or holders[:0]
            if not holders:
                return
        workers = self.rng.sample(holders, self.rng.randint(1, len(holders)))
        for worker in workers:
            worker.place(key, 80)
        if wanted_by:
            client.futures[key] = "pending"
        placed = DataPlaced({key: [w.address for w in workers]}, {key: 80}, client=wanted_by)
        self.feed(placed, wanted_by)

    def _fault(self) -> None:
        rng = self.rng
        worker = rng.choice(list(self.workers.values()) or [None])
        draw = rng.random()
        if draw < 0.45 and worker is not None:
            self.kill(worker, expected=rng.random() < 0.2)
        elif draw < 0.6 and worker is not None:
            worker.set_status("paused" if worker.status == "running" else "running")
        elif draw < 0.64 and worker is not None:
            self.feed(SetWorkerStatus(worker.address, "closing_gracefully"))
            self.later(rng.uniform(0, 3), self.kill, worker, True)
        elif draw < 0.68 and worker is not None:
            for state in (True, False):
                self.later(rng.uniform(0, 3), self._clog, worker.address, state)
        elif draw < 0.8:
            self.add_worker(resources={"gpu": 1} if rng.random() < 0.3 else None)
        elif draw < 0.95 and len(self.clients) > 1:
            self.lose_client(rng.choice(list(self.clients.values())))
        elif draw < 0.96:
            self.feed(ConfigureStealing(rng.random() < 0.5))
        elif draw < 0.98:
            self.feed(ReleaseAll())
        elif worker is not None and worker.data:
            worker.lose_copy(rng.choice(list(worker.data)))

    def _ask_back(self) -> None:
        """Move a task by hand."""
        busy = [ts for ts in self.state.tasks.values() if ts.state == "processing"]
        if busy and self.state.workers:
            ts = self.rng.choice(busy)
            thief = self.rng.choice(list(self.state.workers))
            self.feed(RecallTask(ts.key, thief))

    def _clog(self, address: str, backpressured: bool) -> None:
        self.feed(WorkerBackpressured(address, backpressured and self.faults))

    # ------------------------------------------------------------------ the end

    def settle(self) -> None:
        """Stop all faults and finish what was started."""
        self.faults = False
        self.pressure.end()
        self.share_settings.end()
        self.feed(ConfigureStealing(False))
        self.add_worker(resources={"gpu": 2})
        for worker in list(self.workers.values()):
            self.feed(SetWorkerStatus(worker.address, "running"))
            worker.set_status("running")
        for address in list(self.state.workers):
            self.feed(WorkerBackpressured(address, False))
        self._finish()
        while self._waits_for_ticks():
            self.later(BEAT_SECONDS, self._tick_and_beat)
            self._finish()

    def _waits_for_ticks(self) -> bool:
        """Return whether ticks will change the state, if nothing else happens."""
        state = self.state
        if state.task_policies.alarms or any(ws.extra_runs for ws in state.workers.values()):
            return True
        if state.queued.waiting and any(may_spill(state, ws) for ws in state.workers.values()):
            return True
        return bool(state.whole_workers.reserved) or any(
            ts.state == "no-worker" and can_run(state, ts) for ts in state.whole_workers.due
        )

    def _finish(self) -> None:
        while self.agenda.step():
            pass

    def _tick_and_beat(self) -> None:
        """Let the policies of tasks take effect, without faults."""
        for worker in self.workers.values():
            self._send_heartbeat(worker)
        self.feed(Tick())

    def release_all(self) -> None:
        for client in list(self.clients.values()):
            client.alive = False
            self.clients.pop(client.name)
            self.feed(ClientRemoved(client.name), client.name)
        for ts in self.state.clients["fire-and-forget"].wants_what:
            assert ts.state in ("no-worker", "waiting", "released"), (
                f"{ts} was fired and not forgotten"
            )
        self.feed(ClientRemoved("fire-and-forget"))
        while self.agenda.step():
            pass
