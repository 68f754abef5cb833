"""Queues: behaviour from stock's tests and documentation, and clients that die."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.protocol.payload import pickled_payload
from paceline.scheduler.extensions import queues


def create(world: Any, name: Any = "q", maxsize: int = 0) -> None:
    assert world.request(m.QueueCreate(name=name, maxsize=maxsize)).reply is None


def put(world: Any, data: Any, timeout: float | None = None, name: Any = "q") -> Any:
    return world.request(m.QueuePut(name=name, data=data, timeout=timeout))


def put_key(world: Any, key: Any, timeout: float | None = None, name: Any = "q") -> Any:
    return world.request(m.QueuePut(name=name, key=key, timeout=timeout))


def get(world: Any, timeout: float | None = None, batch: Any = False, name: Any = "q") -> Any:
    return world.request(m.QueueGet(name=name, timeout=timeout, batch=batch))


def size(world: Any, name: Any = "q") -> Any:
    return world.request(m.QueueQsize(name=name)).reply


def plain(value: Any) -> dict[str, Any]:
    return {"type": "msgpack", "value": value}


def test_first_in_first_out(world: Any) -> None:
    create(world)
    for value in (1, 2, 3):
        assert put(world, value).reply is None
    assert size(world) == 3
    assert [get(world).reply for _ in range(3)] == [plain(1), plain(2), plain(3)]
    assert size(world) == 0


def test_none_is_a_value(world: Any) -> None:
    create(world)
    put(world, None)
    assert get(world).reply == plain(None)


def test_getters_are_served_in_order(world: Any) -> None:
    create(world)
    first, second = get(world), get(world)
    put(world, "a")
    assert first.reply == plain("a")
    assert second.waits
    put(world, "b")
    assert second.reply == plain("b")


def test_get_times_out(world: Any) -> None:
    create(world)
    late = get(world, timeout=0.3)
    world.advance(0.29)
    assert late.waits
    world.advance(0.02)
    assert late.error == ("TimeoutError", "")
    put(world, 1)
    assert size(world) == 1, "no client takes an item after giving up"


def test_timeout_zero_takes_an_available_item(world: Any) -> None:
    create(world)
    assert get(world, timeout=0).error[0] == "TimeoutError"
    put(world, 1)
    assert get(world, timeout=0).reply == plain(1)


def test_puts_wait_for_space_in_order(world: Any) -> None:
    create(world, maxsize=1)
    put(world, 1)
    second, third = put(world, 2), put(world, 3)
    assert second.waits and third.waits
    assert get(world).reply == plain(1)
    assert second.reply is None
    assert third.waits
    assert get(world).reply == plain(2)
    assert third.reply is None
    assert get(world).reply == plain(3)


def test_put_times_out(world: Any) -> None:
    create(world, maxsize=1)
    put(world, 1)
    late = put(world, 2, timeout=0.3)
    assert put(world, 3, timeout=0).error == ("TimeoutError", "")
    world.advance(0.31)
    assert late.error == ("TimeoutError", "")
    assert get(world).reply == plain(1)
    assert size(world) == 0


def test_the_first_create_sets_maxsize(world: Any) -> None:
    create(world, maxsize=1)
    create(world, maxsize=5)
    put(world, 1)
    assert put(world, 2).waits


def test_batch_true_takes_all_items(world: Any) -> None:
    create(world, maxsize=2)
    assert get(world, batch=True).reply == []
    put(world, 1)
    put(world, 2)
    third = put(world, 3)
    assert get(world, batch=True).reply == [plain(1), plain(2)]
    assert third.reply is None
    assert size(world) == 1


def test_batch_number_waits_for_all(world: Any) -> None:
    create(world)
    put(world, 1)
    some = get(world, batch=3)
    put(world, 2)
    assert some.waits
    put(world, 3)
    assert some.reply == [plain(1), plain(2), plain(3)]


def test_batch_number_and_timeout(world: Any) -> None:
    create(world)
    kind, text = get(world, batch=2, timeout=1).error
    assert kind == "NotImplementedError"
    assert "integer batch sizes and timeouts" in text


def test_batches_take_turns(world: Any) -> None:
    create(world)
    first, second = get(world, batch=2), get(world, batch=2)
    for value in "abc":
        put(world, value)
    assert first.reply == [plain("a"), plain("c")]
    put(world, "d")
    assert second.reply == [plain("b"), plain("d")]


def test_batch_larger_than_the_queue(world: Any) -> None:
    create(world, maxsize=1)
    put(world, 1)
    waiting = [put(world, value) for value in (2, 3)]
    assert get(world, batch=3).reply == [plain(1), plain(2), plain(3)]
    assert [asked.reply for asked in waiting] == [None, None]


def test_items_of_a_dead_getter_are_returned(world: Any) -> None:
    create(world)
    some = get(world, batch=3)
    other = get(world)
    put(world, 1)
    put(world, 2)
    assert other.reply == plain(2)
    world.disconnect(some)
    assert get(world).reply == plain(1)
    assert world.pending_timers() == 0


def test_a_dead_getter_takes_nothing(world: Any) -> None:
    create(world)
    world.disconnect(get(world, timeout=5))
    put(world, 1)
    assert size(world) == 1
    assert world.pending_timers() == 0


def test_a_dead_putter_puts_nothing(world: Any) -> None:
    create(world, maxsize=1)
    world.make_task("x")
    put(world, 1)
    dead = put_key(world, "x", timeout=5)
    assert world.holders("x") == {"alice", "queue-q"}
    world.disconnect(dead)
    assert world.holders("x") == {"alice"}
    assert "queue-q" not in world.state.clients
    assert get(world, batch=True).reply == [plain(1)]


def test_unknown_queue(world: Any) -> None:
    for asked in (put(world, 1), get(world), world.request(m.QueueQsize(name="q"))):
        assert asked.error == ("KeyError", "q")


def test_unhashable_name(world: Any) -> None:
    assert put(world, 1, name={}).error[0] == "TypeError"


def test_a_list_is_a_name(world: Any) -> None:
    create(world, name=["a", 1])
    put(world, 1, name=("a", 1))
    assert size(world, name=["a", 1]) == 1


def test_queue_holds_futures(world: Any) -> None:
    create(world)
    world.make_task("x")
    assert put_key(world, "x").reply is None
    world.release("x")
    assert world.holders("x") == {"queue-q"}
    assert get(world).reply == {"type": "Future", "value": "x", "state": "released"}
    assert world.holders("x") == {"queue-q"}, "until the getter desires it"
    world.send(m.QueueFutureRelease(name="q", key="x"), "bob")
    assert world.holders("x") == {"bob"}
    assert "queue-q" not in world.state.clients


def test_same_future_many_times(world: Any) -> None:
    create(world)
    world.make_task("x")
    for _ in range(3):
        put_key(world, "x")
    for _ in range(3):
        assert "queue-q" in world.holders("x")
        get(world)
        world.send(m.QueueFutureRelease(name="q", key="x"), "bob")
    assert world.holders("x") == {"alice", "bob"}


def test_release_of_a_future_that_is_not_in_the_queue(world: Any) -> None:
    create(world)
    world.make_task("x")
    world.send(m.QueueFutureRelease(name="q", key="x"), "bob")
    put_key(world, "x")
    assert "queue-q" in world.holders("x")


def test_erred_future_comes_with_its_error(new_world: Any) -> None:
    world = new_world(validate=False)  # the error of the task is not known to the core
    create(world)
    world.make_task("x")
    ts = world.state.tasks["x"]
    ts.state = "erred"
    details = ts.ensure_details()
    error, trace = pickled_payload(b"error"), pickled_payload(b"trace")
    details.exception, details.traceback, details.exception_blame = error, trace, ts
    put_key(world, "x")
    record = get(world).reply
    assert (record["state"], record["exception"], record["traceback"]) == (
        "erred",
        error,
        trace,
    )


def test_lost_future(world: Any) -> None:
    create(world)
    world.make_task("x")
    put_key(world, "x")
    world.restart()
    assert get(world).reply == {"type": "Future", "value": "x", "state": "lost"}
    world.send(m.QueueFutureRelease(name="q", key="x"), "bob")
    assert "x" not in world.state.tasks, "a lost key is not computed again"
    assert "queue-q" not in world.state.clients


def test_put_waits_for_the_graph(world: Any) -> None:
    create(world)
    early = put_key(world, "x")
    world.advance(0.05)
    assert early.waits
    world.make_task("x")
    world.advance(0.02)
    assert early.reply is None
    assert world.holders("x") == {"alice", "queue-q"}
    assert world.pending_timers() == 0


def test_put_of_an_unknown_key_times_out(world: Any) -> None:
    create(world)
    asked = put_key(world, "x", timeout=0.1)
    world.advance(0.2)
    assert asked.error == ("TimeoutError", "Task x unknown to scheduler.")
    assert world.pending_timers() == 0
    assert size(world) == 0


def test_key_is_looked_up_before_the_queue(world: Any) -> None:
    """As in stock: a put of an unknown key does not report that the queue is unknown too."""
    timed_out = put_key(world, "x", timeout=0.1)
    world.advance(0.2)
    assert timed_out.error == ("TimeoutError", "Task x unknown to scheduler.")
    refused = put_key(world, "x", timeout=5)
    world.make_task("x")
    world.advance(1.1)
    assert refused.error == ("KeyError", "q")
    assert world.pending_timers() == 0


def test_checks_for_a_key_slow_down(world: Any) -> None:
    create(world)
    asked = put_key(world, "x")
    turns = 0
    while world.now < 1060:
        turns += 1
        world.advance(world.timers[0][0] - world.now)
    assert turns < 200
    world.make_task("x")
    world.advance(1.1)
    assert asked.reply is None


def test_dead_put_of_an_unknown_key(world: Any) -> None:
    create(world)
    world.disconnect(put_key(world, "x", timeout=10))
    world.make_task("x")
    world.advance(1)
    assert size(world) == 0
    assert world.pending_timers() == 0


def test_close_releases_futures(world: Any) -> None:
    create(world)
    create(world)
    world.make_task("x")
    put_key(world, "x")
    world.send(m.QueueRelease(name="q"))
    assert size(world) == 1
    world.send(m.QueueRelease(name="q"))
    assert put(world, 1).error == ("KeyError", "q")
    assert world.holders("x") == {"alice"}
    world.send(m.QueueRelease(name="q"))


def test_close_keeps_unconfirmed_futures(world: Any) -> None:
    create(world)
    world.make_task("x")
    put_key(world, "x")
    put_key(world, "x")
    get(world)
    world.release("x")
    world.send(m.QueueRelease(name="q"))
    assert world.holders("x") == {"queue-q"}, "its getter will desire it next"
    world.send(m.QueueFutureRelease(name="q", key="x"), "bob")
    assert world.holders("x") == {"bob"}


def test_waiters_of_a_closed_queue_do_not_join_a_new_one(world: Any) -> None:
    create(world)
    old, late = get(world), get(world, timeout=5)
    world.send(m.QueueRelease(name="q"))
    create(world)
    put(world, 1)
    assert size(world) == 1
    assert old.waits
    world.advance(6)
    assert late.error[0] == "TimeoutError"


def test_limits(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "QUEUE_ITEMS_MAX", 2)
    monkeypatch.setattr(queues, "QUEUES_MAX", 1)
    create(world)
    assert world.request(m.QueueCreate(name="r", maxsize=0)).error[0] == "RuntimeError"
    put(world, 1)
    put(world, 2)
    assert put(world, 3).waits
