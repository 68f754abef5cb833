"""Published datasets, and the flush that a put waits for."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.extensions import publish


def put(world: Any, uid: bytes = b"u", override: bool = False, **datasets: Any) -> Any:
    """Publish datasets: ``put(world, name=(data, keys))``."""
    message = m.PublishPut(
        names=tuple(datasets),
        keys=tuple(tuple(keys) for _, keys in datasets.values()),
        data=tuple(data for data, _ in datasets.values()),
        override=override,
        client="alice",
        uid=uid,
    )
    return world.request(message)


def flush(world: Any, uid: bytes = b"u") -> None:
    world.send(m.PublishFlushBatchedSend(uid=uid))


def put_now(world: Any, override: bool = False, **datasets: Any) -> Any:
    flush(world)
    return put(world, override=override, **datasets)


def delete(world: Any, *names: Any, uid: bytes = b"d") -> Any:
    flush(world, uid)
    return world.request(m.PublishDelete(names=names, client="alice", uid=uid))


def get(world: Any, *names: Any) -> Any:
    return world.request(m.PublishGet(names=names)).reply


def names(world: Any) -> Any:
    return world.request(m.PublishList()).reply


def test_put_get_list_delete(world: Any) -> None:
    world.make_task("x")
    world.make_task("y")
    assert put_now(world, b=("data-b", ["x"]), a=("data-a", ["x", "y"])).reply is None
    assert names(world) == ["a", "b"]
    assert get(world, "a", "what", "b") == [
        {"data": "data-a", "keys": ("x", "y")},
        None,
        {"data": "data-b", "keys": ("x",)},
    ]
    assert world.holders("x") == {"alice", "published-a", "published-b"}
    assert delete(world, "a", "what").reply is None
    assert names(world) == ["b"]
    assert world.holders("y") == {"alice"}
    assert "published-a" not in world.state.clients


def test_put_waits_for_its_flush(world: Any) -> None:
    first, second = put(world, b"1", a=(1, ["x"])), put(world, b"2", b=(2, ["x"]))
    assert first.waits and second.waits
    world.make_task("x")
    flush(world, b"2")
    assert second.reply is None
    assert first.waits
    flush(world, b"1")
    assert first.reply is None
    assert names(world) == ["a", "b"]
    assert world.pending_timers() == 0


def test_delete_waits_for_its_flush(world: Any) -> None:
    put_now(world, a=(1, []))
    asked = world.request(m.PublishDelete(names=("a",), client="alice", uid=b"d"))
    assert asked.waits
    assert names(world) == ["a"]
    flush(world, b"d")
    assert asked.reply is None
    assert names(world) == []


def test_put_waits_as_long_as_its_client_lives(world: Any) -> None:
    asked = put(world, a=(1, []))
    world.advance(100)
    assert asked.waits
    world.leave("alice")
    world.advance(31)
    assert asked.error == ("TimeoutError", "")
    assert world.pending_timers() == 1, "the topic of the client that left"


def test_a_dropped_put_is_ignored(world: Any) -> None:
    world.disconnect(put(world, a=(1, [])))
    flush(world)
    assert names(world) == []
    assert world.pending_timers() == 0


def test_a_name_is_taken(world: Any) -> None:
    put_now(world, a=(1, []))
    asked = put_now(world, b=(2, []), a=(3, []), c=(4, []))
    assert asked.error == ("KeyError", "Dataset a already exists")
    assert names(world) == ["a", "b"], "those before it stay published, as in stock"
    assert get(world, "a")[0]["data"] == 1


def test_override(world: Any) -> None:
    for key in ("x", "y", "z"):
        world.make_task(key)
    put_now(world, a=(1, ["x", "y"]))
    for key in ("x", "y", "z"):
        world.release(key) if key != "z" else None
    put_now(world, override=True, a=(2, ["y", "z"]))
    assert get(world, "a") == [{"data": 2, "keys": ("y", "z")}]
    assert world.holders("x") == set()
    assert world.holders("y") == {"published-a"}
    assert world.holders("z") == {"alice", "published-a"}


def test_names_need_not_be_text(world: Any) -> None:
    world.make_task("x")
    flush(world)
    message = m.PublishPut(
        names=(("a", 1), 5),
        keys=(("x",), ()),
        data=(1, 2),
        override=False,
        client="alice",
        uid=b"u",
    )
    assert world.request(message).reply is None
    assert names(world) == [("a", 1), 5]
    assert get(world, ["a", 1])[0]["data"] == 1
    assert "published-('a', 1)" in world.state.clients
    delete(world, ["a", 1])
    assert names(world) == [5]


def test_lists_of_different_length(world: Any) -> None:
    flush(world)
    message = m.PublishPut(
        names=("a", "b"), keys=((),), data=(1,), override=False, client="alice", uid=b"u"
    )
    assert world.request(message).error[0] == "ValueError"


def test_datasets_outlive_their_client_and_a_restart(world: Any) -> None:
    world.make_task("x")
    put_now(world, a=(1, ["x"]))
    world.leave("alice")
    assert world.holders("x") == {"published-a"}
    world.restart()
    assert names(world) == ["a"]
    assert "published-a" not in world.state.clients
    assert delete(world, "a").reply is None


def test_limits(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "DATASETS_MAX", 1)
    monkeypatch.setattr(publish, "FLUSHES_MAX", 2)
    put_now(world, a=(1, []))
    assert put_now(world, b=(1, [])).error[0] == "RuntimeError"
    for uid in (b"1", b"2", b"3"):
        flush(world, uid)
    assert put(world, b"1", override=True, a=(2, [])).waits
    assert put(world, b"3", override=True, a=(3, [])).reply is None
