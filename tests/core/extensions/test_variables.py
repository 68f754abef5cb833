"""Variables: values and futures, and replaced futures that clients still need."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.extensions import variables


def set_value(world: Any, data: Any, name: Any = "v") -> Any:
    return world.request(m.VariableSet(name=name, data=data, timeout="30 s"))


def set_key(world: Any, key: Any, timeout: Any = "30 s", name: Any = "v") -> Any:
    return world.request(m.VariableSet(name=name, key=key, timeout=timeout))


def get(world: Any, timeout: Any = None, client: str = "bob", name: Any = "v") -> Any:
    return world.request(m.VariableGet(name=name, timeout=timeout, client=client))


def delete(world: Any) -> None:
    world.send(m.VariableDelete(name="v"))


def confirm(world: Any, record: dict[str, Any], client: str = "bob") -> None:
    message = m.VariableFutureReceivedConfirm(name="v", key=record["value"], token=record["token"])
    world.send(message, client)


def plain(value: Any) -> dict[str, Any]:
    return {"type": "msgpack", "value": value}


def test_set_and_get(world: Any) -> None:
    assert set_value(world, 1).reply is None
    assert get(world).reply == plain(1)
    set_value(world, None)
    assert get(world).reply == plain(None)


def test_get_waits_for_the_first_set(world: Any) -> None:
    early, other = get(world), get(world, name="w")
    second = get(world)
    set_value(world, 1)
    assert (early.reply, second.reply) == (plain(1), plain(1))
    assert other.waits


def test_get_times_out(world: Any) -> None:
    late = get(world, timeout=0.2)
    assert get(world, timeout=0).error == ("TimeoutError", "")
    world.advance(0.3)
    assert late.error == ("TimeoutError", "")
    set_value(world, 1)
    assert world.pending_timers() == 0


def test_bad_timeout(world: Any) -> None:
    assert get(world, timeout="5 parsecs").error[0] == "KeyError"
    assert get(world, timeout=[1]).error[0] == "TypeError"


def test_variable_holds_its_future(world: Any) -> None:
    world.make_task("x")
    assert set_key(world, "x").reply is None
    world.release("x")
    assert world.holders("x") == {"variable-v"}
    record = get(world).reply
    assert {k: v for k, v in record.items() if k != "token"} == {
        "type": "Future",
        "value": "x",
        "state": "released",
    }
    confirm(world, record)
    assert world.holders("x") == {"variable-v", "bob"}


def test_replaced_future_is_kept_until_confirmed(world: Any) -> None:
    world.make_task("x")
    set_key(world, "x")
    first, second = get(world).reply, get(world).reply
    assert first["token"] != second["token"]
    world.release("x")
    set_value(world, 1)
    assert world.holders("x") == {"variable-v"}
    confirm(world, first)
    assert world.holders("x") == {"variable-v", "bob"}
    confirm(world, second)
    assert world.holders("x") == {"bob"}
    assert "variable-v" not in world.state.clients


def test_future_set_again_stays(world: Any) -> None:
    world.make_task("x")
    set_key(world, "x")
    record = get(world).reply
    set_value(world, 1)
    set_key(world, "x")
    confirm(world, record)
    assert "variable-v" in world.holders("x")
    set_key(world, "x")
    assert "variable-v" in world.holders("x")


def test_one_future_for_another(world: Any) -> None:
    world.make_task("x")
    world.make_task("y")
    set_key(world, "x")
    set_key(world, "y")
    assert world.holders("x") == {"alice"}
    assert world.holders("y") == {"alice", "variable-v"}


def test_a_client_that_dies_confirms_nothing(world: Any) -> None:
    world.make_task("x")
    set_key(world, "x")
    get(world, client="bob")
    world.release("x")
    delete(world)
    assert world.holders("x") == {"variable-v"}
    world.leave("bob")
    assert world.holders("x") == set()
    assert "variable-v" not in world.state.clients


def test_delete(world: Any) -> None:
    world.make_task("x")
    set_key(world, "x")
    delete(world)
    delete(world)
    assert world.holders("x") == {"alice"}
    assert "variable-v" not in world.state.clients
    assert get(world, timeout=0).error[0] == "TimeoutError"


def test_delete_while_waited_for(world: Any) -> None:
    early = get(world)
    delete(world)
    set_value(world, 1)
    assert early.reply == plain(1)


def test_set_waits_for_the_graph(world: Any) -> None:
    asked = set_key(world, "x")
    reader = get(world)
    world.advance(0.05)
    world.make_task("x")
    world.advance(0.02)
    assert asked.reply is None
    assert reader.reply["value"] == "x"
    assert world.pending_timers() == 0


def test_set_of_an_unknown_key_times_out(world: Any) -> None:
    asked = set_key(world, "x", timeout="100ms")
    world.advance(0.2)
    assert asked.error == ("TimeoutError", "Task x unknown to scheduler.")


def test_lost_future(world: Any) -> None:
    world.make_task("x")
    set_key(world, "x")
    world.restart()
    assert get(world).reply["state"] == "lost"
    assert "variable-v" not in world.state.clients


def test_a_dead_getter_gets_no_token(world: Any) -> None:
    world.disconnect(get(world))
    world.make_task("x")
    set_key(world, "x")
    delete(world)
    assert world.holders("x") == {"alice"}


def test_an_unknown_confirmation(world: Any) -> None:
    world.make_task("x")
    confirm(world, {"value": "x", "token": "what"})
    assert world.holders("x") == {"alice", "bob"}


def test_limits(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "VARIABLES_MAX", 1)
    monkeypatch.setattr(variables, "TOKENS_MAX", 2)
    world.make_task("x")
    set_key(world, "x")
    assert set_value(world, 1, name="w").error[0] == "RuntimeError"
    records = [get(world).reply for _ in range(5)]
    delete(world)
    for record in records[3:]:
        assert "variable-v" in world.holders("x")
        confirm(world, record)
    assert "variable-v" not in world.holders("x")
