"""Parts shared by the extensions: names, durations, wait queues, the base class."""

from __future__ import annotations

from typing import Any

import pytest
from dask.utils import parse_timedelta
from paceline.protocol import messages as m
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import HANDLERS
from paceline.scheduler.core.extension import ExtensionError
from paceline.scheduler.extensions import default_extensions, names, wait_queues


@pytest.mark.parametrize(
    "span",
    [0, 1, 2.5, "3", "3s", "3.5 seconds", "300ms", "1 h", "2 Days", "5us", "7 ns", "1w", "h"],
)
def test_durations_equal_dasks(span: Any) -> None:
    assert names.parse_seconds(span) == pytest.approx(parse_timedelta(span))


def test_no_duration() -> None:
    assert names.parse_seconds(None) is None
    assert names.deadline_after(5.0, None) is None
    assert names.deadline_after(5.0, float("inf")) is None
    assert names.deadline_after(5.0, "1s") == 6.0


@pytest.mark.parametrize("span", ["1 parsec", "x.y s", "1.2.3s", float("nan"), [1], {}])
def test_invalid_durations(span: Any) -> None:
    with pytest.raises(ExtensionError):
        names.parse_seconds(span)


def test_names() -> None:
    assert names.hashable_name(["a", ["b", 1]]) == ("a", ("b", 1))
    assert names.hashable_name("a") == "a"
    with pytest.raises(ExtensionError, match="TypeError"):
        names.hashable_name(["a", {}])


def test_too_many_waiters(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_queues, "WAITERS_MAX", 2)
    asked = [world.request(m.EventWait(name="e", timeout=None)) for _ in range(3)]
    assert asked[0].waits and asked[1].waits
    assert asked[2].error[0] == "RuntimeError"
    world.disconnect(asked[0])
    assert world.request(m.EventWait(name="e", timeout=None)).waits


def test_requests_without_a_reply_may_wait(world: Any) -> None:
    """Requests with ``reply: False`` have no request ID."""
    world.request(m.QueueCreate(name="q", maxsize=1))
    for value in (1, 2, 3):
        world.send(m.QueuePut(name="q", data=value, timeout=None))
    batch = [world.request(m.QueueGet(name="q", timeout=None, batch=False)).reply for _ in range(3)]
    assert [record["value"] for record in batch] == [1, 2, 3]
    assert 0 not in world.replies


def test_each_message_has_one_handler() -> None:
    seen: dict[type[Any], str] = dict.fromkeys(HANDLERS, "core")
    for extension in default_extensions(SchedulerConfig()):
        assert extension.name
        for message in extension.handlers():
            assert message not in seen, (message, seen.get(message), extension.name)
            seen[message] = extension.name


def test_two_schedulers_share_nothing() -> None:
    one, two = default_extensions(SchedulerConfig()), default_extensions(SchedulerConfig())
    assert not {id(extension) for extension in one} & {id(extension) for extension in two}
