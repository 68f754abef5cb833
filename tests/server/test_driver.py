"""The driver, with a core that runs functions of the test."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core import instructions, stimuli
from paceline.scheduler.core.stimuli import Stimulus
from paceline.scheduler.core.turn import Outbox
from paceline.scheduler.server.driver import (
    CANCELLED_TIMERS_MAX,
    WAKE_UP_MESSAGES_MAX,
    WAKE_UP_TRANSITIONS_MAX,
    CoreError,
    Driver,
)


class FakeState:
    transition_counter = 0
    plugins = None
    tasks: dict[Any, Any] = {}
    graphs: dict[int, Any] = {}
    timers: dict[int, Any] = {}
    deferred = SimpleNamespace(commits=[])


class FakeCore:
    """Call the function that the test passed as the message."""

    def __init__(self) -> None:
        self.state = FakeState()
        self.seen: list[Stimulus] = []

    def handle(self, stimulus: Stimulus, now: float, outbox: Outbox) -> Outbox:
        self.seen.append(stimulus)
        if callable(stimulus.message):
            stimulus.message(outbox, stimulus)
        return outbox


class FakeStream:
    def __init__(self, log: list[Any], name: str) -> None:
        self.log = log
        self.name = name

    def send(self, messages: list[Any]) -> None:
        self.log.append((self.name, list(messages)))

    def close_when_written(self) -> None:
        self.log.append((self.name, "closed"))


@pytest.fixture
async def driver() -> Driver:
    return Driver(FakeCore(), close_scheduler=lambda reason: None)  # type: ignore[arg-type]


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_one_batch_per_peer_and_clients_first(driver: Driver) -> None:
    log: list[Any] = []
    driver.worker_streams["w"] = FakeStream(log, "w")
    driver.client_streams["c"] = FakeStream(log, "c")
    for i in range(2):
        driver.feed(lambda outbox, s, i=i: outbox.workers.setdefault("w", []).append(i))
        driver.feed(lambda outbox, s, i=i: outbox.clients.setdefault("c", []).append(i))
    assert log == []
    await settle()
    assert log == [("c", [0, 1]), ("w", [0, 1])]


async def test_each_message_of_a_batch_is_a_turn(driver: Driver) -> None:
    messages = [
        m.ReleaseWorkerData(key="x", stimulus_id="given"),
        m.KeepAlive(),
    ]
    driver.feed_batch("w", messages)
    first, second = driver.core.seen  # type: ignore[attr-defined]
    assert (first.source, first.stimulus_id) == ("w", "given")
    assert second.stimulus_id.startswith("keep-alive-")


class DeferredStream:
    """A stream whose messages make many transitions each."""

    def __init__(self, driver: Driver, name: str, log: list[str]) -> None:
        self.driver = driver
        self.name = name
        self.number = 0
        self.log = log
        self.messages = [self.message for _ in range(4)]

    def message(self, outbox: Outbox, stimulus: Stimulus) -> None:
        self.driver.core.state.transition_counter += WAKE_UP_TRANSITIONS_MAX // 2
        self.log.append(self.name)

    def handle_deferred(self, count: int) -> bool:
        del self.messages[: self.driver.feed_batch(self.name, self.messages[:count])]
        return bool(self.messages)


async def test_transitions_end_a_wake_up(driver: Driver) -> None:
    """Handle the rest in later wake-ups, in which the streams take turns."""
    log: list[str] = []
    for name in "ab":
        driver.defer(DeferredStream(driver, name, log))
    driver.feed_batch("w", [lambda outbox, s: log.append("w")])
    wake_ups = []
    while len(log) < 9:
        before = len(log)
        await asyncio.sleep(0)
        wake_ups += ["".join(log[before:])] if len(log) > before else []
    assert log[0] == "w"
    assert wake_ups == ["aa", "bb", "aa", "bb"]
    await settle()
    assert driver.messages_left == WAKE_UP_MESSAGES_MAX


async def test_continue_follows_waiting_messages(driver: Driver) -> None:
    loop = asyncio.get_running_loop()
    driver.feed(lambda outbox, s: outbox.instructions.append(instructions.WantsContinue()))
    loop.call_soon(lambda: loop.call_soon(driver.feed, stimuli.Tick()))
    await settle()
    kinds = [type(s.message) for s in driver.core.seen][1:]  # type: ignore[attr-defined]
    assert kinds == [stimuli.Tick, stimuli.Continue]


async def test_timers_and_replies(driver: Driver) -> None:
    now = driver.clock()
    driver.feed(lambda outbox, s: outbox.instructions.append(instructions.SetTimer(now + 0.01, 7)))
    numbers: list[int] = []
    late = driver.request(lambda outbox, s: numbers.append(s.request_id))
    driver.feed(lambda outbox, s: outbox.replies.append((numbers[0], "late")))
    gone = driver.request(lambda outbox, s: numbers.append(s.request_id))
    gone.cancel()
    await asyncio.sleep(0.05)
    assert late.result() == "late"
    messages = [s.message for s in driver.core.seen]  # type: ignore[attr-defined]
    assert stimuli.TimerDue(7) in messages
    assert stimuli.RequestGone(numbers[1]) in messages
    assert stimuli.RequestGone(numbers[0]) not in messages


async def test_cancelled_timers_are_removed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.core.state, "timers", {7: None})
    when = driver.clock() + 3600
    for timer_id in range(2 * CANCELLED_TIMERS_MAX):
        set_timer = instructions.SetTimer(when, timer_id)
        driver.feed(lambda outbox, s, set_timer=set_timer: outbox.instructions.append(set_timer))
    await settle()
    assert len(driver._timers) <= CANCELLED_TIMERS_MAX + 2 and 7 in driver._timers
    driver.close()


async def test_core_error_affects_its_stimulus_only(driver: Driver) -> None:
    def fails(outbox: Outbox, stimulus: Stimulus) -> None:
        raise ZeroDivisionError

    assert isinstance(driver.request(fails).exception(), CoreError)
    driver.feed(stimuli.Tick())
    assert driver.n_core_errors == 1


async def test_an_error_of_an_instruction_affects_no_other_output(driver: Driver) -> None:
    log: list[Any] = []
    driver.record_sinks.append(log.extend)
    driver.instructions[instructions.CloseScheduler] = lambda instruction: log.index("absent")
    driver.instructions[instructions.LogLine] = lambda instruction: log.append(instruction.text)

    def handle(outbox: Outbox, stimulus: Stimulus) -> None:
        outbox.instructions.append(instructions.CloseScheduler("reason"))
        outbox.instructions.append(instructions.LogLine(20, "text", "x"))
        outbox.records.append(("record",))

    driver.feed(handle)
    driver.flush()
    assert log == ["text", ("record",)]


async def test_wait_for(driver: Driver) -> None:
    found: list[int] = []
    assert not await driver.conditions.wait_for(lambda: bool(found), 0.01)
    waiting = asyncio.ensure_future(driver.conditions.wait_for(lambda: bool(found), 5))
    await settle()
    driver.feed(lambda outbox, s: found.append(1))
    assert await waiting


async def test_an_error_of_a_predicate_fails_its_caller_only(driver: Driver) -> None:
    found: dict[str, bool] = {"x": False}
    waiting = [
        asyncio.ensure_future(driver.conditions.wait_for(lambda: found["x"], 5)),
        asyncio.ensure_future(driver.conditions.wait_for(lambda: not found, 5)),
    ]
    await settle()
    driver.feed(lambda outbox, s: found.clear())
    first, second = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(first, KeyError) and second is True


async def test_rows_of_pending_graphs_count_for_garbage_collection() -> None:
    core = FakeCore()
    core.state.tasks = {"x": None}
    core.state.graphs = {1: SimpleNamespace(keys=["a", "b"]), 2: SimpleNamespace(keys=["c"])}
    policy = Mock()
    driver = Driver(core, close_scheduler=lambda reason: None, gc_policy=policy)  # type: ignore[arg-type]
    driver.flush()
    policy.after_flush.assert_called_once_with(4)
