"""A scheduler core with its extensions in memory, with a clock controlled by the tests."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.extension import ExtensionErrorReply
from paceline.scheduler.core.instructions import (
    LogLine,
    SetTimer,
)
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.stimuli import (
    ClientJoined,
    ClientRemoved,
    ReleaseAll,
    RequestGone,
    Stimulus,
    TimerDue,
    WorkerRemoved,
)
from paceline.scheduler.extensions import default_extensions

WAITING = "still waiting"


class PendingRequest:
    """A request that was sent, and its reply."""

    def __init__(self, world: World, request_id: int) -> None:
        self.world = world
        self.request_id = request_id

    @property
    def reply(self) -> Any:
        return self.world.replies.get(self.request_id, WAITING)

    @property
    def error(self) -> tuple[str, str]:
        reply = self.reply
        assert isinstance(reply, ExtensionErrorReply), reply
        return (reply.kind, reply.text)

    @property
    def waits(self) -> bool:
        return self.reply == WAITING


class World:
    """The core, its clock and its peers, recording replies, log lines and messages to clients."""

    def __init__(self, **config: Any) -> None:
        self.config = SchedulerConfig(**config)
        extensions = default_extensions(self.config)
        events = EventLog(self.config.low_level_log_length)
        self.core = SchedulerCore(self.config, errors=None, events=events, extensions=extensions)  # type: ignore[arg-type]
        self.now = 1000.0
        self.replies: dict[int, Any] = {}
        self.answered: list[int] = []
        self.lines: list[str] = []
        self.sent: list[tuple[str, Any]] = []
        self.timers: list[tuple[float, int]] = []
        self.request_ids = itertools.count(1)

    @property
    def state(self) -> Any:
        return self.core.state

    def feed(self, message: Any, source: str = "", request_id: int = 0) -> None:
        outbox = self.core.handle(Stimulus(source, message, "test", request_id), self.now)
        for number, value in outbox.replies:
            assert number not in self.replies, "a request has one reply"
            self.replies[number] = value
            self.answered.append(number)
        for client, messages in outbox.clients.items():
            self.sent.extend((client, message) for message in messages)
        for instruction in outbox.instructions:
            if isinstance(instruction, SetTimer):
                heapq.heappush(self.timers, (instruction.when, instruction.timer_id))
            elif isinstance(instruction, LogLine):
                self.lines.append(instruction.text)

    def request(self, message: Any, source: str = "") -> PendingRequest:
        """Send an RPC request."""
        request_id = next(self.request_ids)
        self.feed(message, source, request_id)
        return PendingRequest(self, request_id)

    def send(self, message: Any, source: str = "alice") -> None:
        """Send a message on a stream."""
        self.feed(message, source)

    def advance(self, seconds: float) -> None:
        """Advance the clock, firing timers that are due."""
        until = self.now + seconds
        while self.timers and self.timers[0][0] <= until:
            when, timer_id = heapq.heappop(self.timers)
            self.now = max(self.now, when)
            self.feed(TimerDue(timer_id))
        self.now = until

    def join(self, client: str) -> None:
        self.feed(ClientJoined(client), client)

    def leave(self, client: str) -> None:
        self.feed(ClientRemoved(client), client)

    def lose_worker(self, address: str) -> None:
        self.feed(WorkerRemoved(address), address)

    def disconnect(self, request: PendingRequest) -> None:
        self.feed(RequestGone(request.request_id))

    def restart(self) -> None:
        self.feed(ReleaseAll())

    def make_task(self, key: Any, client: str = "alice") -> None:
        """Create a task that `client` desires."""
        self.send(m.ClientDesiresKeys(keys=[key], client=client), client)

    def release(self, key: Any, client: str = "alice") -> None:
        self.send(m.ClientReleasesKeys(keys=[key], client=client), client)

    def holders(self, key: Any) -> set[str]:
        """Return the clients that desire a task; none if it is forgotten."""
        ts = self.state.tasks.get(key)
        return set() if ts is None else {cs.client_key for cs in ts.who_wants}

    def pending_timers(self) -> int:
        """Return the number of pending timers."""
        return len(self.state.timers)


@pytest.fixture
def new_world() -> Callable[..., World]:
    """Return a factory of cores with clients alice and bob, validated after each turn."""

    def make(**config: Any) -> World:
        made = World(**{"validate": True, **config})
        made.join("alice")
        made.join("bob")
        return made

    return make


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    """Return a core with clients alice and bob."""
    return new_world()
