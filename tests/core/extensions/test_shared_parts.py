"""What the machines share: names, spans of time, lines of waiters, their common shape."""

from __future__ import annotations

from typing import Any

import pytest
from dask.utils import parse_timedelta
from paceline.protocol import messages as m
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import HANDLERS
from paceline.scheduler.extensions import default_extensions, names, waiting
from paceline.scheduler.extensions.replies import Refused


@pytest.mark.parametrize(
    "span",
    [0, 1, 2.5, "3", "3s", "3.5 seconds", "300ms", "1 h", "2 Days", "5us", "7 ns", "1w", "h"],
)
def test_spans_as_dask_reads_them(span: Any) -> None:
    assert names.parse_seconds(span) == pytest.approx(parse_timedelta(span))


def test_no_span() -> None:
    assert names.parse_seconds(None) is None
    assert names.deadline_after(5.0, None) is None
    assert names.deadline_after(5.0, float("inf")) is None
    assert names.deadline_after(5.0, "1s") == 6.0


@pytest.mark.parametrize("span", ["1 parsec", "x.y s", "1.2.3s", float("nan"), [1], {}])
def test_what_is_no_span(span: Any) -> None:
    with pytest.raises(Refused):
        names.parse_seconds(span)


def test_names() -> None:
    assert names.hashable_name(["a", ["b", 1]]) == ("a", ("b", 1))
    assert names.hashable_name("a") == "a"
    with pytest.raises(Refused, match="TypeError"):
        names.hashable_name(["a", {}])


def test_too_many_waiters(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    room = world.core.machines["events"]._room
    room._waiters_max = 2
    asked = [world.ask(m.EventWait(name="e", timeout=None)) for _ in range(3)]
    assert asked[0].waits and asked[1].waits
    assert asked[2].error[0] == "RuntimeError"
    world.hang_up(asked[0])
    assert world.ask(m.EventWait(name="e", timeout=None)).waits
    assert waiting.WAITERS_MAX > 1000


def test_requests_without_a_reply_may_wait(world: Any) -> None:
    """A peer may ask with ``reply: False``: such requests have no number."""
    world.ask(m.QueueCreate(name="q", maxsize=1))
    for value in (1, 2, 3):
        world.tell(m.QueuePut(name="q", data=value, timeout=None))
    batch = [world.ask(m.QueueGet(name="q", timeout=None, batch=False)).reply for _ in range(3)]
    assert [record["value"] for record in batch] == [1, 2, 3]
    assert 0 not in world.replies


def test_each_message_has_one_handler() -> None:
    seen: dict[type[Any], str] = dict.fromkeys(HANDLERS, "core")
    for machine in default_extensions(SchedulerConfig()):
        assert machine.name
        for message in machine.handlers():
            assert message not in seen, (message, seen.get(message), machine.name)
            seen[message] = machine.name


def test_two_schedulers_share_nothing() -> None:
    one, two = default_extensions(SchedulerConfig()), default_extensions(SchedulerConfig())
    assert not {id(machine) for machine in one} & {id(machine) for machine in two}
