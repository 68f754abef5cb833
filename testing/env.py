"""An environment for tests of the core: clock, stimuli, and the messages that the core sends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from paceline.protocol import messages as m
from paceline.protocol.keys import Key
from paceline.protocol.limits import WorkerStatus
from paceline.protocol.payload import Payload
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.inspection.invariants import validate_state
from paceline.scheduler.core.instructions import LogLine, WantsContinue
from paceline.scheduler.core.policy import memory_queue
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

from .graph_rows import Graph, Rows, compile_rows
from .message_text import OMITTED, message_text

#: Limit of the turns of one stimulus. More than this is an endless loop.
TURNS_MAX = 100_000


class FakeErrors:
    """Source of the exceptions that the core sends: their description in place of a pickle."""

    def killed_worker(self, task_key: Key, worker_facts: Any, allowed_failures: int) -> Payload:
        return fake_error(f"KilledWorker({task_key!s}, {worker_facts['address']})")

    def no_worker(self, task_key: Key, timeout: float) -> Payload:
        return fake_error(f"NoWorker({task_key!s})")

    def no_valid_worker(
        self, task_key: Key, hosts: Any, workers: Any, resources: Any, timeout: float
    ) -> Payload:
        return fake_error(f"NoValidWorker({task_key!s}, {hosts}, {workers}, {resources})")

    def memory_error(self, text: str) -> Payload:
        return fake_error("MemoryError")

    def timeout_error(self, text: str) -> Payload:
        return fake_error(f"TimeoutError({text})")

    def actor_lost(self) -> Payload:
        return fake_error("ActorLost")


def fake_error(text: str) -> Payload:
    """Return a serialized exception that consists of its description `text`."""
    return Payload("pickled", text.encode(), ())


class Env:
    """A scheduling core with a clock and the messages it has sent.

    Messages are kept until `expect` or `take` is called, so that a test which expects some messages
    also fails if others were sent. All invariants of the core are checked after each turn.

    Args:
        config: fields of ``SchedulerConfig`` that differ from the defaults.

    Attributes:
        now: time of the core in seconds; only the test advances it.
        outbox: messages sent since the last `take`.
        lines: log lines, (level, text).
        wants_continue: whether the core has requested ``Continue``.
        turns: number of turns.
        checks: whether invariants are checked after each turn.
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

    # -- state

    @property
    def state(self) -> SchedulerState:
        return self.core.state

    def task(self, key: Key) -> TaskState:
        return self.state.tasks[key]

    def worker(self, address: str) -> WorkerState:
        return self.state.workers[address]

    def states(self, *keys: Key) -> list[str]:
        """Return the states of the tasks `keys`, "forgotten" for unknown ones."""
        tasks = self.state.tasks
        return [tasks[k].state if k in tasks else "forgotten" for k in keys]

    def where(self, key: Key) -> str:
        """Return the address of the worker that processes the task `key`."""
        ws = self.task(key).processing_on
        assert ws is not None, self.task(key)
        return ws.address

    def processing(self, address: str) -> list[Key]:
        """Return the keys of the tasks that the worker `address` processes."""
        return [ts.key for ts in self.worker(address).processing]

    # -- messages

    def take(self) -> list[str]:
        """Return the messages since the last call as ``peer: message``, grouped by peer."""
        box, self.outbox = self.outbox, Outbox()
        out = [
            f"{peer}: {message_text(message)}"
            for peers in (box.workers, box.clients)
            for peer, messages in peers.items()
            for message in messages
        ]
        instructions = [i for i in box.instructions if not isinstance(i, OMITTED)]
        out += [f"driver: {message_text(instruction)}" for instruction in instructions]
        return out

    def expect(self, *lines: str) -> None:
        """Check that exactly `lines` were sent since the last `take`, in this order per peer.

        Raises:
            AssertionError: other messages were sent.
        """
        sent = self.take()
        if _by_peer(sent) != _by_peer(lines):
            raise AssertionError("\n  ".join(["expected", *lines, "but sent", *sent]))

    # -- stimuli

    def turn(self, message: Any, source: str = "", request_id: int = 0) -> None:
        """Handle one stimulus in one turn, without the turns that it leaves for later."""
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
        """Check all invariants, and that the core requests ``Continue`` while work is deferred."""
        if not self.checks:
            return
        state = self.state
        validate_state(state)
        if state.deferred:
            assert self.wants_continue, "work is deferred without a request for Continue"
        if not self.wants_continue:
            choice = memory_queue.next_task(state)
            assert choice is None, f"{choice} is queued, and could run"

    def run_deferred(self) -> None:
        """Send ``Continue`` until no work is deferred."""
        for _ in range(TURNS_MAX):
            if not self.wants_continue:
                return
            self.turn(Continue())
        raise AssertionError(f"the core requests Continue after {TURNS_MAX} turns")

    def feed(self, message: Any, source: str = "") -> None:
        """Handle one stimulus, with all turns that it leaves for later."""
        self.turn(message, source)
        self.run_deferred()

    def request(self, message: Any, source: str = "") -> Any:
        """Handle an RPC request and return its reply."""
        number = next(self._request_ids)
        self.turn(message, source, number)
        self.run_deferred()
        return self.replies.pop(number)

    # -- peers

    def join(self, *addresses: str, nthreads: int = 1, host: str = "", **facts: Any) -> None:
        """Register workers. The address of a worker is its name."""
        for address in addresses:
            message = m.RegisterWorker(address=address, name=address, nthreads=nthreads, **facts)
            self.feed(WorkerJoined(address, host or f"host-{address}", message), address)

    def heartbeat(
        self, address: str, executing: dict[Key, float] | None = None, **facts: Any
    ) -> None:
        """Send a heartbeat of the worker `address`; `executing` maps keys to seconds."""
        message = m.HeartbeatWorker(address=address, executing=executing or {}, **facts)
        self.feed(WorkerHeartbeat(address, message), address)

    def lose(self, address: str, expected: bool = False) -> None:
        """Remove the worker `address`; `expected` if it leaves on request."""
        self.feed(WorkerRemoved(address, expected=expected), address)

    def status(self, address: str, status: WorkerStatus) -> None:
        """Report a new status of the worker `address`."""
        self.feed(m.WorkerStatusChange(status=status), address)

    def client(self, *names: str) -> None:
        """Register clients."""
        for name in names:
            self.feed(ClientJoined(name), name)

    def leave(self, name: str) -> None:
        """Remove the client `name`."""
        self.feed(ClientRemoved(name), name)

    # -- graphs and desired keys

    def rows(
        self,
        graph: Graph,
        want: Iterable[Key] | None = None,
        client: str = "alice",
        chunk_size: int = 10_000,
        **rows: Any,
    ) -> list[GraphChunk | GraphCommit]:
        """Return chunks and commit of `graph`; `want` defaults to the keys without dependents."""
        if want is None:
            inner = {d for dependencies in graph.values() for d in dependencies}
            want = [key for key in graph if key not in inner]
        number = next(self._graph_ids)
        rows.setdefault("commit", {}).setdefault("received_at", self.now)
        return compile_rows(graph, number, list(want), client, Rows(**rows), chunk_size)

    def submit(
        self, graph: Graph, want: Iterable[Key] | None = None, client: str = "alice", **rows: Any
    ) -> None:
        """Submit `graph`: all chunks and the commit."""
        for part in self.rows(graph, want, client, **rows):
            self.turn(part, client)
        self.run_deferred()

    def desire(self, *keys: Key, client: str = "alice") -> None:
        self.feed(m.ClientDesiresKeys(keys=list(keys), client=client), client)

    def release(self, *keys: Key, client: str = "alice") -> None:
        self.feed(m.ClientReleasesKeys(keys=list(keys), client=client), client)

    def cancel(self, *keys: Key, client: str = "alice", **how: Any) -> None:
        self.feed(m.CancelKeys(keys=list(keys), client=client, **how), client)

    # -- tasks

    def finished(
        self, key: Key, nbytes: int = 8, seconds: float = 0.1, **fields: Any
    ) -> m.TaskFinished:
        """Return the message by which a worker reports that the task `key` finished."""
        span = m.StartStop(action="compute", start=self.now, stop=self.now + seconds)
        fields = {"run_id": self.task(key).run_id, "typename": "int", **fields}
        return m.TaskFinished(key=key, nbytes=nbytes, startstops=[span], **fields)

    def finish(self, *keys: Key, **fields: Any) -> None:
        """Finish the tasks `keys` on the workers that process them."""
        for key in keys:
            self.feed(self.finished(key, **fields), self.where(key))

    def fail(self, *keys: Key, text: str = "boom", **fields: Any) -> None:
        """Fail the tasks `keys` on the workers that process them."""
        for key in keys:
            error = fake_error(f"{text} {key!s}")
            found = {"run_id": self.task(key).run_id, **fields}
            message = m.TaskErred(key=key, exception=error, traceback=error, **found)
            self.feed(message, self.where(key))

    def give_back(self, *keys: Key, state: str | None = "ready") -> None:
        """Answer the requests to give back `keys`, which the workers have in `state`."""
        for key in keys:
            steal = self.state.stealing.in_flight[self.task(key)]
            message = m.StealResponse(key=key, state=state, stimulus_id=steal.stimulus_id)
            self.feed(message, steal.victim.address)

    def fetched(self, address: str, *keys: Key) -> None:
        """Report that the worker `address` has replicas of `keys`."""
        self.feed(m.AddKeys(keys=list(keys)), address)

    def work(self, rounds: int = 10_000) -> None:
        """Finish tasks on all workers until none is processing."""
        for _ in range(rounds):
            busy = [ws for ws in self.state.workers.values() if ws.processing]
            if not busy:
                return
            for ws in busy:
                if ws.processing and self.state.workers.get(ws.address) is ws:
                    self.finish(next(iter(ws.processing)).key)
        raise AssertionError(f"tasks are still processing after {rounds} rounds")

    def tick(self, seconds: float = 0.0) -> None:
        """Advance the clock by `seconds` and send a ``Tick``."""
        self.now += seconds
        self.feed(Tick())


def _by_peer(lines: Iterable[str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for line in lines:
        peer, _, message = line.partition(": ")
        out.setdefault(peer, []).append(message)
    return out
