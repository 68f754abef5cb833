"""Scatter, replicate, delete, retire: requests that move data between workers, which reply as stock's do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from paceline.protocol.messages import (
    AcquireReplicas,
    Close,
    FreeKeysRpc,
    WorkerGather,
    WorkerUpdateData,
)
from paceline.scheduler.core.lifecycle.extra_runs import add_extra_run
from paceline.scheduler.core.stimuli import DataPlaced, SetWorkerStatus
from paceline.scheduler.server.requests import retire as retire_module
from paceline.scheduler.server.requests import scatter as scatter_module
from paceline.scheduler.server.requests.replicate import (
    delete_worker_data,
    gather_on_worker,
    replicate,
)
from paceline.scheduler.server.requests.retire import retire_workers
from paceline.scheduler.server.requests.scatter import scatter, update_data


def worker(request: Any) -> Any:
    """A worker that follows its instructions."""
    match request:
        case WorkerUpdateData(data=data):
            return {"status": "OK", "nbytes": dict.fromkeys(data, 7)}
        case WorkerGather():
            return {"status": "OK"}
        case FreeKeysRpc() | AcquireReplicas():
            return None
    raise AssertionError(request)


async def test_scatter_is_round_robin(server: Any) -> None:
    a, b = server.add_worker(1, worker), server.add_worker(2, worker)
    keys = await scatter(server, {"x": 1, "y": 2, "z": 3}, None, "c")
    assert keys == ["x", "y", "z"]
    assert [server.holders(k) for k in keys] == [{a}, {b}, {a}]
    await scatter(server, {"next": 1}, None, "c")
    assert server.holders("next") == {b}, "continues after the last worker of the previous scatter"
    assert server.state.tasks["x"].nbytes == 7
    assert {"action": "scatter", "client": "c", "count": 3} in server.events("c")


@pytest.mark.parametrize("key", [(), ((), 1), "", b"\xff"], ids=repr)
async def test_scatter_sends_no_key_that_workers_fail_on(server: Any, key: Any) -> None:
    def fails(request: Any) -> Any:
        raise AssertionError(request)

    server.add_worker(1, fails)
    with pytest.raises((IndexError, UnicodeDecodeError)):
        await scatter(server, {"good": 1, key: 2}, None, "c")
    assert not server.state.tasks


async def test_scatter_to_chosen_workers_by_name(server: Any) -> None:
    server.add_worker(1, worker)
    b = server.add_worker(2, worker)
    await scatter(server, {"x": 1, "y": 2}, ["w2"], "c")
    assert server.holders("x") == server.holders("y") == {b}
    with pytest.raises(KeyError):
        await scatter(server, {"z": 1}, ["tcp://10.0.0.9:1"], "c")


async def test_scatter_uses_another_worker_if_one_is_unreachable(server: Any) -> None:
    """Data for a worker that died goes to the next one; without another worker the request fails."""
    a, b, c = server.add_worker(1), server.add_worker(2, worker), server.add_worker(3, worker)
    await scatter(server, {"x": 1, "y": 2, "z": 3}, None, "c")
    assert [server.holders(k) for k in "xyz"] == [{b}, {b}, {c}]
    with pytest.raises(ConnectionRefusedError):
        await scatter(server, {"u": 1}, [a], "c")
    assert "u" not in server.state.tasks
    server.remove_worker(c)
    del server.answers[b]
    with pytest.raises(ConnectionRefusedError):
        await scatter(server, {"u": 1, "v": 2}, None, "c")


@pytest.mark.parametrize("reply", [None, {}, {"nbytes": 5}])
async def test_a_worker_with_invalid_replies_receives_no_data(server: Any, reply: Any) -> None:
    a, b = server.add_worker(1, lambda request: reply), server.add_worker(2, worker)
    await scatter(server, {"x": 1, "y": 2}, None, "c")
    assert server.holders("x") == server.holders("y") == {b}
    assert await gather_on_worker(server, a, {"x": [b]}) == {"x"}


@pytest.mark.parametrize("timeout", [0.02, "20ms"])
async def test_scatter_waits_for_a_worker(server: Any, timeout: Any) -> None:
    with pytest.raises(TimeoutError, match="No valid workers found"):
        await scatter(server, {"x": 1}, None, "c", timeout=timeout)
    asking = asyncio.create_task(scatter(server, {"x": 1}, None, "c", timeout=5))
    await asyncio.sleep(0.02)
    a = server.add_worker(1, worker)
    await asking
    assert server.holders("x") == {a}


async def test_scatter_waits_for_the_rest_if_a_chosen_worker_leaves(server: Any) -> None:
    a, b = server.add_worker(1, worker), server.add_worker(2, worker)
    for address in (a, b):
        server.send_stimulus(SetWorkerStatus(address, "paused"))
    asking = asyncio.create_task(scatter(server, {"x": 1}, [a, b], "c", timeout=5))
    await asyncio.sleep(0.02)
    server.remove_worker(a)
    server.send_stimulus(SetWorkerStatus(b, "running"))
    await asking
    assert server.holders("x") == {b}


async def test_scatter_broadcast_copies_everywhere(server: Any) -> None:
    addresses = {server.add_worker(i, worker) for i in range(1, 6)}
    await scatter(server, {"x": 1, "y": 2}, None, "c", broadcast=True)
    assert server.holders("x") == server.holders("y") == addresses
    await scatter(server, {"z": 1}, None, "c", broadcast=3)
    assert len(server.holders("z")) == 3


async def test_update_data_validates_workers(server: Any) -> None:
    a = server.add_worker(1)
    await update_data(server, {"x": [a]}, {"x": 5}, "c")
    assert server.holders("x") == {a}
    with pytest.raises(KeyError):
        await update_data(server, {"x": ["tcp://10.0.0.9:1"]}, {"x": 5})


async def test_gather_on_worker_reports_failed_keys(server: Any) -> None:
    def some(request: WorkerGather) -> Any:
        return {"status": "partial-fail", "keys": ["y"]}

    a, b, c = server.add_worker(1), server.add_worker(2, some), server.add_worker(3)
    server.place("x", a)
    server.place("y", a)
    assert await gather_on_worker(server, b, {"x": [a], "y": [a]}) == {"y"}
    assert server.holders("x") == {a, b} and server.holders("y") == {a}
    assert await gather_on_worker(server, c, {"x": [a]}) == {"x"}, "the worker does not answer"


async def test_delete_worker_data(server: Any) -> None:
    a, b = server.add_worker(1, worker), server.add_worker(2)
    server.place("x", a, b)
    await delete_worker_data(server, a, ["x"], "why")
    assert server.holders("x") == {b}
    await delete_worker_data(server, b, ["x"], "why")
    assert server.holders("x") == {b}, "the worker could not be reached"


async def test_replicate_adds_and_deletes(server: Any) -> None:
    addresses = [server.add_worker(i, worker) for i in range(1, 9)]
    server.place("x", addresses[0])
    assert await replicate(server, ["x"], n=5) is None
    assert len(server.holders("x")) == 5
    assert await replicate(server, ["x"], n=2) is None
    assert len(server.holders("x")) == 2
    assert await replicate(server, ["x"], n=5, workers=addresses[:1]) is None
    assert addresses[0] in server.holders("x")


async def test_replicate_reports_keys_after_its_last_attempt(server: Any) -> None:
    a = server.add_worker(1, worker)
    server.add_worker(2, lambda request: {"status": "partial-fail", "keys": ["x"]})
    server.place("x", a)
    assert await replicate(server, ["x"]) == {"status": "partial-fail", "keys": ["x"]}
    with pytest.raises(KeyError):
        await replicate(server, ["unknown"])
    with pytest.raises(ValueError, match="delete"):
        await replicate(server, ["x"], n=0)


async def test_retire_moves_sole_replicas(server: Any) -> None:
    a, b, c = (server.add_worker(i, worker) for i in (1, 2, 3))
    server.place("x", a, nbytes=100)
    server.place("y", a, b)
    server.place("z", a, nbytes=50)
    retired = await retire_workers(server, [a], close_workers=True)
    assert list(retired) == [a] and retired[a]["name"] == "w1"
    assert a not in server.state.workers
    assert server.holders("x") | server.holders("z") == {b, c}, "workers with the least data"
    assert (a, Close(reason="scheduler-remove-worker")) in server.sent
    assert {"action": "retired", "stimulus_id": server.events(a)[-1]["stimulus_id"]} in (
        server.events(a)
    )


async def test_retiring_workers_do_not_receive_data(server: Any) -> None:
    a, b, c = (server.add_worker(i, worker) for i in (1, 2, 3))
    server.place("x", a)
    server.place("y", b)
    server.place("both", a, b)
    assert set(await retire_workers(server, names=["w1", "w2"])) == {a, b}
    assert server.holders("x") == server.holders("y") == server.holders("both") == {c}


async def test_worker_whose_data_fits_nowhere_stays(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    a = server.add_worker(1, worker)
    server.place("x", a)
    assert await retire_workers(server, [a]) == {}
    assert server.state.workers[a].status == "running"
    assert "Could not retire worker" in caplog.text
    assert server.events(a)[-1]["action"] == "could-not-retire"


async def test_worker_whose_data_cannot_be_copied_stays(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retire_module, "FRUITLESS_PAUSE_SECONDS", 0)
    monkeypatch.setattr(retire_module, "PATIENCE_SECONDS", 0.05)
    a = server.add_worker(1, worker)
    server.add_worker(2)
    server.place("x", a)
    assert await retire_workers(server, [a]) == {}
    assert server.state.workers[a].status == "running"


async def test_a_recipient_that_leaves_is_replaced(server: Any) -> None:
    def leaving(request: Any) -> Any:
        server.remove_worker(b)
        raise ConnectionResetError

    a, b = server.add_worker(1, worker), server.add_worker(2, leaving)
    server.place("x", a)
    retiring = asyncio.create_task(retire_workers(server, [a]))
    while b in server.state.workers:
        await asyncio.sleep(0)
    c = server.add_worker(3, worker)
    assert list(await retiring) == [a]
    assert server.holders("x") == {c}


async def test_data_that_no_worker_fetches_is_requested(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(request: Any) -> Any:
        if isinstance(request, AcquireReplicas):
            raise ConnectionResetError  # always busy
        return worker(request)

    monkeypatch.setattr(retire_module, "PATIENCE_SECONDS", 0.05)
    a, b = server.add_worker(1, worker), server.add_worker(2, busy)
    server.place("x", a)
    assert list(await retire_workers(server, [a])) == [a]
    assert server.holders("x") == {b}


async def test_retire_without_removing(server: Any) -> None:
    a = server.add_worker(1, worker)
    server.add_worker(2, worker)
    server.place("x", a)
    assert list(await retire_workers(server, [a], remove=False)) == [a]
    assert server.state.workers[a].status == "closing_gracefully"


async def test_retire_chooses_idle_workers(server: Any) -> None:
    a, b = server.add_worker(1, worker), server.add_worker(2, worker)
    server.place("x", a)
    assert list(await retire_workers(server, n=1)) == [b]
    server.plugins.needed.add("w1")
    assert await retire_workers(server, n=1) == {}, "a plugin keeps it"
    with pytest.raises(TypeError):
        await retire_workers(server, [a], n=1)
    with pytest.raises(TypeError):
        await retire_workers(server, [a], names=["w1"])


async def test_a_worker_that_dies_while_it_retires(server: Any) -> None:
    def dying(request: Any) -> Any:
        server.remove_worker(a)
        raise ConnectionResetError

    a = server.add_worker(1, worker)
    server.add_worker(2, dying)
    server.place("x", a)
    assert list(await retire_workers(server, [a])) == [a]


async def test_a_worker_under_the_address_of_a_retired_one_stays(server: Any) -> None:
    def restarting(request: Any) -> Any:
        server.remove_worker(a)
        server.add_worker(1, worker)
        raise ConnectionResetError

    a = server.add_worker(1, worker)
    server.add_worker(2, restarting)
    server.place("x", a)
    assert list(await retire_workers(server, [a])) == [a]
    assert server.state.workers[a].status == "running"


async def test_a_worker_runs_again_after_two_requests_to_retire_it(server: Any) -> None:
    a, b = server.add_worker(1, worker), server.add_worker(2, worker)
    server.send_stimulus(SetWorkerStatus(b, "paused"))
    server.place("x", a)
    results = await asyncio.gather(retire_workers(server, [a]), retire_workers(server, [a]))
    assert results == [{}, {}]
    assert server.state.workers[a].status == "running"
    assert not server.request_state.retiring


async def test_workers_without_a_free_thread_receive_data(server: Any) -> None:
    a, b = server.add_worker(1, worker), server.add_worker(2, worker)
    server.place("x", a)
    account = server.state.shares.account("c")
    add_extra_run(server.state, server.state.workers[b], "given up", account)
    assert await replicate(server, ["x"], delete=False) is None
    assert server.holders("x") == {a, b}
    server.place("y", a)
    assert list(await retire_workers(server, [a])) == [a]
    assert server.holders("x") == server.holders("y") == {b}
    await scatter(server, {"z": 1}, None, "c", timeout=0.1)
    assert server.holders("z") == {b}


async def test_replicate_ends_if_a_worker_is_replaced(server: Any) -> None:
    def restarting(request: Any) -> Any:
        server.remove_worker(b)
        server.add_worker(2, worker)
        raise ConnectionResetError

    a, b = server.add_worker(1, worker), server.add_worker(2, restarting)
    server.place("x", a)
    assert await replicate(server, ["x"]) is None
    assert server.holders("x") == {a}


async def test_scatter_sends_what_a_worker_lost_meanwhile_to_another(server: Any) -> None:
    def slow(request: Any) -> Any:
        server.remove_worker(a)
        return worker(request)

    a, b = server.add_worker(1, worker), server.add_worker(2, slow)
    await scatter(server, {"x": 1, "y": 2}, None, "c")
    assert server.holders("x") == server.holders("y") == {b}
    with pytest.raises(OSError, match="have left"):
        await scatter(server, {"z": 3}, [server.add_worker(1, slow)], "c")


async def test_many_keys_take_several_turns(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_module, "PLACED_PER_TURN_MAX", 4)
    a, b = server.add_worker(1, worker), server.add_worker(2, worker)
    data = {f"x{i}": i for i in range(10)}
    assert await scatter(server, data, None, "c") == list(data)
    assert [len(m.who_has) for m in server.told if isinstance(m, DataPlaced)] == [4, 4, 2]
    assert all(server.holders(key) <= {a, b} and server.holders(key) for key in data)
    rest = update_data(
        server, {f"y{i}": [a] for i in range(5)}, {f"y{i}": 3 for i in range(5)}, "c"
    )
    assert rest is not None
    await rest
    assert server.holders("y4") == {a}
