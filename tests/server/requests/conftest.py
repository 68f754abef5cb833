"""A server without sockets: the real core, and workers that are Python functions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from paceline.protocol.messages import AcquireReplicas, RegisterWorker
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.stimuli import (
    ClientJoined,
    DataPlaced,
    ReplicasAdded,
    Stimulus,
    WorkerJoined,
    WorkerRemoved,
)
from paceline.scheduler.core.turn import Outbox
from paceline.scheduler.server.build_core import build_core
from paceline.scheduler.server.durable.log.recorder import Recorder
from paceline.scheduler.server.requests.state import RequestState
from paceline.scheduler.server.server_api import RemoteError, ServerApi

Answer = Callable[[Any], Any]


class Plugins:
    """Scheduler plugins in a dict."""

    def __init__(self, state: Any = None) -> None:
        self.facade = self.scheduler = state
        self.by_name: dict[str, Any] = {}
        self.needed: set[str] = set()
        self.pending_hooks: dict[str, set[Any]] = {"add_worker": set(), "remove_worker": set()}

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def add(self, plugin: Any, name: str, idempotent: bool = False) -> None:
        self.by_name[name] = plugin

    def valid_workers_downscaling(self, workers: list[Any]) -> list[Any]:
        return [ws for ws in workers if ws.name not in self.needed]

    def hooks_started_by(self, action: Callable[[], Any], hook: str) -> set[Any]:
        action()
        return set()

    def remove(self, name: str) -> None:
        if name not in self.by_name:
            raise ValueError(f"Could not find plugin {name!r} among the current scheduler plugins")
        del self.by_name[name]


class FakeServer:
    """The part of a server that requests use.

    Attributes:
        answers: address -> function that answers requests; an exception that it raises is raised to the caller.
        requests: (address, request), in order.
        acknowledged: address -> the message sent after a reply.
        sent: (address, message) to workers' streams.
        events: logged events, topic -> events.
    """

    def __init__(self) -> None:
        self.core = build_core(SchedulerConfig(validate=False))
        self.state = self.core.state
        self.request_state = RequestState()
        self.request_state.random.seed(0)
        self.driver = SimpleNamespace(client_streams={})
        self.recorder = Recorder()
        self.plugins = Plugins(self.state)
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, Any]] = []
        self.acknowledged: dict[str, Any] = {}
        self.sent: list[tuple[str, Any]] = []
        self.told: list[Any] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def now(self) -> float:
        return time.time()

    def send_stimulus(self, message: Any, source: str = "", stimulus_id: str | None = None) -> None:
        self.told.append(message)
        outbox: Outbox = self.core.handle(
            Stimulus(source, message, stimulus_id or "test"), time.time()
        )
        for address, messages in outbox.workers.items():
            self.sent += [(address, message) for message in messages]
            for message in messages:
                if isinstance(message, AcquireReplicas) and address in self.answers:
                    asyncio.get_running_loop().call_soon(self._acquire, address, message)

    log_event = ServerApi.log_event

    def _acquire(self, address: str, message: AcquireReplicas) -> None:
        """Handle acquire-replicas: the worker fetches the replicas, unless it answers with an error."""
        with contextlib.suppress(OSError):
            self.answers[address](message)
            self.send_stimulus(ReplicasAdded(address, list(message.who_has)))

    async def rpc_call(
        self,
        address: str,
        request: Any,
        timeout: float | None = None,
        *,
        acknowledge: Callable[[Any], Any] | None = None,
        allocate: Any = None,
    ) -> Any:
        self.requests.append((address, request))
        await asyncio.sleep(0)
        answer = self.answers.get(address)
        if answer is None:
            raise ConnectionRefusedError(f"no listener at {address}")
        async with asyncio.timeout(timeout):
            reply = answer(request)
            if asyncio.iscoroutine(reply):
                reply = await reply
        if acknowledge is not None:
            self.acknowledged[address] = acknowledge(reply)
        if isinstance(reply, dict) and reply.get("status") == "uncaught-error":
            raise RemoteError(address, "test", reply)
        return reply

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                while not predicate():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            return False
        return True

    def spawn(self, coroutine: Any, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self.tasks.append(task)
        return task

    # helpers of tests

    def add_worker(
        self, n: int, answer: Answer | None = None, nanny: str | None = None, nthreads: int = 1
    ) -> str:
        """Return the address of worker number n."""
        address = f"tcp://10.0.0.{n}:1000"
        message = RegisterWorker(
            address=address, name=f"w{n}", nthreads=nthreads, memory_limit=1000, nanny=nanny
        )
        self.send_stimulus(WorkerJoined(address, f"10.0.0.{n}", message), address)
        if answer is not None:
            self.answers[address] = answer
        return address

    def remove_worker(self, address: str) -> None:
        self.send_stimulus(WorkerRemoved(address), address)

    def place(self, key: Any, *addresses: str, nbytes: int = 10) -> None:
        """Store data that client "c" desires."""
        if "c" not in self.state.clients:
            self.send_stimulus(ClientJoined("c"), "c")
        self.send_stimulus(DataPlaced({key: list(addresses)}, {key: nbytes}, client="c"))

    def events(self, topic: str) -> list[Any]:
        return [event for _, event in self.state.events.topics[topic].events]

    def holders(self, key: Any) -> set[str]:
        return {ws.address for ws in self.state.tasks[key].who_has}


@pytest.fixture
async def server() -> Any:
    fake = FakeServer()
    yield fake
    for task in fake.tasks:
        task.cancel()
    fake.request_state.close()
