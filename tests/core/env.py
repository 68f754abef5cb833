"""A core in memory: feed it stimuli in a few words, and say exactly what must come of them.

After every turn all invariants are checked. What the core sends is kept until ``expect`` or ``take`` looks at it, so
that a test which expects something also says that nothing else was sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.payload import Payload
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.inspection.invariants import validate_state
from paceline.scheduler.core.instructions import (
    LogLine,
    WantsContinue,
)
from paceline.scheduler.core.policy import placement
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.state.model import TaskState, WorkerState
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.stimuli import (
    ClientJoined,
    ClientRemoved,
    Continue,
    GraphChunk,
    GraphCommit,
    Stimulus,
    Tick,
    WorkerHeartbeat,
    WorkerJoined,
    WorkerRemoved,
    stimulus_name,
)
from paceline.scheduler.core.turn import Outbox

from tests.core.graph_rows import Graph, Rows, compile_rows
from tests.core.wording import UNSPOKEN, in_words

#: Work that was cut into turns must end; a test that needs more has found a loop.
TURNS_MAX = 100_000


class FakeErrors:
    """Exceptions that say what they are."""

    def killed_worker(self, task_key: Any, worker_facts: Any, allowed_failures: int) -> Payload:
        return fake_error(f"KilledWorker({task_key}, {worker_facts['address']})")

    def no_worker(self, task_key: Any, timeout: float) -> Payload:
        return fake_error(f"NoWorker({task_key})")

    def no_valid_worker(
        self, task_key: Any, hosts: Any, workers: Any, resources: Any, timeout: float
    ) -> Payload:
        return fake_error(f"NoValidWorker({task_key})")

    def memory_error(self, text: str) -> Payload:
        return fake_error("MemoryError")

    def actor_lost(self) -> Payload:
        return fake_error("ActorLost")


def fake_error(text: str) -> Payload:
    """A closed exception that is its own description."""
    return Payload("pickled", text.encode(), ())


class Env:
    """The core, its clock, and what it has sent.

    Args:
        config: settings that differ from the defaults.

    Attributes:
        now: seconds since the epoch; tests turn it.
        outbox: what was sent and not yet looked at.
        lines: log lines, (level, text).
        wants_continue: the core has asked for ``Continue``.
        turns: how many there were.
    """

    def __init__(self, **config: Any) -> None:
        self.config = SchedulerConfig(**config)
        self.core = SchedulerCore(self.config, FakeErrors(), EventLog())
        self.now = 1000.0
        self.outbox = Outbox()
        self.lines: list[tuple[int, str]] = []
        self.replies: dict[int, Any] = {}
        self.wants_continue = False
        self.turns = 0
        self.checks = True
        self._graph_ids = itertools.count(1)
        self._request_ids = itertools.count(1)

    # -- looking

    @property
    def state(self) -> SchedulerState:
        return self.core.state

    def task(self, key: Any) -> TaskState:
        return self.state.tasks[key]

    def worker(self, address: str) -> WorkerState:
        return self.state.workers[address]

    def states(self, *keys: Any) -> list[str]:
        """States of tasks; "forgotten" for those that are."""
        tasks = self.state.tasks
        return [tasks[k].state if k in tasks else "forgotten" for k in keys]

    def where(self, key: Any) -> str:
        """Where a task is processing."""
        ws = self.task(key).processing_on
        assert ws is not None, self.task(key)
        return ws.address

    def processing(self, address: str) -> list[Any]:
        """Keys that a worker processes."""
        return [ts.key for ts in self.worker(address).processing]

    # -- what was sent

    def take(self) -> list[str]:
        """All that was sent since the last look, ``peer: message`` each; peers in order of their first message."""
        box, self.outbox = self.outbox, Outbox()
        out = [
            f"{peer}: {in_words(message)}"
            for peers in (box.workers, box.clients)
            for peer, messages in peers.items()
            for message in messages
        ]
        out += [f"driver: {in_words(i)}" for i in box.instructions if not isinstance(i, UNSPOKEN)]
        return out

    def expect(self, *lines: str) -> None:
        """Exactly these were sent since the last look: in this order to each peer, peers in any order."""
        sent = self.take()
        if _by_peer(sent) != _by_peer(lines):
            raise AssertionError("\n  ".join(["expected", *lines, "and there was", *sent]))

    # -- feeding

    def turn(self, message: Any, source: str = "", request_id: int = 0) -> None:
        """One turn, and no ``Continue``."""
        self.turns += 1
        name = f"{stimulus_name(message)}-{self.turns}"
        self.outbox.instructions = [
            i for i in self.outbox.instructions if type(i) is not WantsContinue
        ]
        n_instructions = len(self.outbox.instructions)
        if type(message) is Continue:
            self.wants_continue = False
        stimulus = Stimulus(source, message, name, request_id)
        self.core.handle(stimulus, self.now, self.outbox)
        for instruction in self.outbox.instructions[n_instructions:]:
            if isinstance(instruction, LogLine):
                self.lines.append((instruction.level, instruction.text))
            self.wants_continue |= type(instruction) is WantsContinue
        self.replies.update(self.outbox.replies)
        self.outbox.replies.clear()
        self.check()

    def check(self) -> None:
        """All invariants, and what only the driver sees: unfinished work asks to go on."""
        if not self.checks:
            return
        state = self.state
        validate_state(state)
        if state.deferred:
            assert self.wants_continue, "there is more to do, and nobody was asked to go on"
        if not self.wants_continue:
            idle = len(state.queued) and len(placement.workers_with_free_slots(state))
            assert not idle, "tasks are queued while workers have slots"

    def go_on(self) -> None:
        """``Continue`` until nothing is left to be continued."""
        for _ in range(TURNS_MAX):
            if not self.wants_continue:
                return
            self.turn(Continue())
        raise AssertionError("the core wants to go on for ever")

    def feed(self, message: Any, source: str = "") -> None:
        """A turn, and all that it leaves for later turns."""
        self.turn(message, source)
        self.go_on()

    def ask(self, message: Any, source: str = "") -> Any:
        """An RPC request; its reply."""
        number = next(self._request_ids)
        self.turn(message, source, number)
        self.go_on()
        return self.replies.pop(number)

    # -- peers

    def join(self, *addresses: str, nthreads: int = 1, host: str = "", **facts: Any) -> None:
        """Workers register; a worker's address is its name."""
        for address in addresses:
            message = m.RegisterWorker(address=address, name=address, nthreads=nthreads, **facts)
            self.feed(WorkerJoined(address, host or f"host-{address}", message), address)

    def beat(self, address: str, executing: dict[Any, float] | None = None, **facts: Any) -> None:
        """A heartbeat."""
        message = m.HeartbeatWorker(address=address, executing=executing or {}, **facts)
        self.feed(WorkerHeartbeat(address, f"host-{address}", message), address)

    def lose(self, address: str, expected: bool = False) -> None:
        """A worker dies, or leaves."""
        self.feed(WorkerRemoved(address, expected=expected), address)

    def status(self, address: str, status: str) -> None:
        """A worker tells of its status."""
        self.feed(m.WorkerStatusChange(status=status), address)

    def client(self, *names: str) -> None:
        """Clients register."""
        for name in names:
            self.feed(ClientJoined(name), name)

    def leave(self, name: str) -> None:
        """A client leaves."""
        self.feed(ClientRemoved(name), name)

    # -- graphs and wishes

    def rows(
        self,
        graph: Graph,
        want: Iterable[Any] | None = None,
        client: str = "alice",
        chunk_size: int = 10_000,
        **rows: Any,
    ) -> list[GraphChunk | GraphCommit]:
        """Chunks and commit of a graph; without ``want`` the keys that nothing depends on are wanted."""
        if want is None:
            inner = {d for dependencies in graph.values() for d in dependencies}
            want = [key for key in graph if key not in inner]
        number = next(self._graph_ids)
        rows.setdefault("commit", {}).setdefault("received_at", self.now)
        return compile_rows(graph, number, list(want), client, Rows(**rows), chunk_size)

    def submit(
        self, graph: Graph, want: Iterable[Any] | None = None, client: str = "alice", **rows: Any
    ) -> None:
        """A graph, whole."""
        for part in self.rows(graph, want, client, **rows):
            self.turn(part, client)
        self.go_on()

    def desire(self, *keys: Any, client: str = "alice") -> None:
        self.feed(m.ClientDesiresKeys(keys=list(keys), client=client), client)

    def release(self, *keys: Any, client: str = "alice") -> None:
        self.feed(m.ClientReleasesKeys(keys=list(keys), client=client), client)

    def cancel(self, *keys: Any, client: str = "alice", **how: Any) -> None:
        self.feed(m.CancelKeys(keys=list(keys), client=client, **how), client)

    # -- what workers do

    def finished(self, key: Any, nbytes: int = 8, seconds: float = 0.1, **fields: Any) -> Any:
        """The message that tells of a finished task."""
        span = m.StartStop(action="compute", start=self.now, stop=self.now + seconds)
        fields = {"run_id": self.task(key).run_id, "typename": "int", **fields}
        return m.TaskFinished(key=key, nbytes=nbytes, startstops=[span], **fields)

    def finish(self, *keys: Any, **fields: Any) -> None:
        """Tasks finish where they are processing."""
        for key in keys:
            self.feed(self.finished(key, **fields), self.where(key))

    def fail(self, *keys: Any, text: str = "boom", **fields: Any) -> None:
        """Tasks raise where they are processing."""
        for key in keys:
            fields = {"run_id": self.task(key).run_id, **fields}
            error = fake_error(f"{text} {key}")
            message = m.TaskErred(key=key, exception=error, traceback=error, **fields)
            self.feed(message, self.where(key))

    def fetched(self, address: str, *keys: Any) -> None:
        """A worker has copies."""
        self.feed(m.AddKeys(keys=list(keys)), address)

    def work(self, rounds: int = 10_000) -> None:
        """Workers finish all that they are given, until nothing is left."""
        for _ in range(rounds):
            busy = [ws for ws in self.state.workers.values() if ws.processing]
            if not busy:
                return
            for ws in busy:
                if ws.processing and self.state.workers.get(ws.address) is ws:
                    self.finish(next(iter(ws.processing)).key)
        raise AssertionError("the work does not end")

    def tick(self, seconds: float = 0.0) -> None:
        """Time passes, and the core looks at the clock."""
        self.now += seconds
        self.feed(Tick())


def _by_peer(lines: Iterable[str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for line in lines:
        peer, _, message = line.partition(": ")
        out.setdefault(peer, []).append(message)
    return out
