"""``SchedulerCore``: accepted and rejected messages, and equal outputs for equal stimuli."""

from __future__ import annotations

from math import nan

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.state.event_log import EventLog
from paceline.scheduler.core.stimuli import (
    LogEventCommand,
    MetadataSet,
    RequestGone,
    Stimulus,
    TimerDue,
    stimulus_name,
)
from paceline.scheduler.core.turn import Outbox
from paceline.testing import Env, FakeErrors


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("worker_saturation", 0.0),
        ("worker_saturation", nan),
        ("bandwidth", 0),
        ("turn_tasks_max", 0),
    ],
)
def test_settings_out_of_range_are_refused(setting: str, value: float) -> None:
    with pytest.raises(ValueError):
        SchedulerCore(SchedulerConfig(**{setting: value}), FakeErrors(), EventLog())


def test_unhandled_message_raises(env: Env) -> None:
    class Odd:
        pass

    assert Odd not in env.core.handlers
    assert env.core.handlers.keys() >= {m.TaskFinished, TimerDue}
    with pytest.raises(KeyError, match="no handler for Odd"):
        env.core.handle(Stimulus("", Odd(), "odd"), env.now)


def test_obsolete_stimuli_have_no_output(env: Env) -> None:
    env.feed(TimerDue(99))
    env.feed(RequestGone(99))
    env.expect()
    assert not Outbox()


def test_outputs_of_several_turns_gather_in_one_outbox(duo: Env) -> None:
    box = Outbox()
    for key in ("x", "y"):
        message = m.ClientDesiresKeys(keys=[key], client="alice")
        assert duo.core.handle(Stimulus("alice", message, key), duo.now, box) is box
    assert not box.clients
    duo.core.handle(Stimulus("alice", m.ReportKey(key="nobody-knows"), "ask"), duo.now, box)
    assert box.clients == {"alice": [m.CancelledKeys(keys=["nobody-knows"])]}


def test_metadata_is_nested(env: Env) -> None:
    env.feed(MetadataSet(["a", "b", "c"], 1))
    env.feed(MetadataSet(["a", "d"], 2))
    env.feed(MetadataSet(["a", "b"], 3))
    env.feed(MetadataSet(["a", "b", "e"], 4))
    assert env.state.task_metadata == {"a": {"b": {"e": 4}, "d": 2}}


def test_metadata_of_a_task_is_removed_with_it(duo: Env) -> None:
    duo.submit({"x": []})
    duo.feed(MetadataSet(["x"], "note"))
    duo.release("x")
    assert duo.state.task_metadata == {}


def test_events_are_logged_by_command(env: Env) -> None:
    env.feed(LogEventCommand(["here", "there"], {"n": 1}))
    assert env.state.events.get("here") == env.state.events.get("there") == ((env.now, {"n": 1}),)


def test_names_of_stimuli() -> None:
    assert stimulus_name(m.TaskFinished(key="x")) == "task-finished"
    assert stimulus_name(TimerDue(1)) == "timer-due"


def test_messages_of_one_turn_are_merged(duo: Env) -> None:
    """Keys that are freed together are sent in one message."""
    duo.submit({"x": [], "y": ["x"], "z": ["y"]}, want=["x", "y", "z"])
    duo.work()
    duo.take()
    duo.release("x", "y", "z")
    duo.expect("w0: free-keys z y x")


def test_the_same_stimuli_give_the_same_outputs() -> None:
    def play() -> list[str]:
        env = Env()
        env.client("alice", "bob")
        env.join("w0", "w1", nthreads=2)
        env.submit({("x", i): [] for i in range(9)} | {"y": [("x", i) for i in range(9)]})
        env.finish(("x", 0), ("x", 1))
        env.lose("w0")
        env.work()
        env.leave("alice")
        return env.take()

    assert play() == play()
