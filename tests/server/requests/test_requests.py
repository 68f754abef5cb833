"""Broadcast, restart, plugins, functions, diagnostics."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import cloudpickle
import pytest
from distributed.diagnostics.plugin import SchedulerPlugin
from paceline.protocol.messages import RegisterNanny
from paceline.protocol.payload import Payload, payload_pickle
from paceline.scheduler.server.requests import cluster, diagnostics, plugins
from paceline.scheduler.server.requests.broadcast import broadcast, proxy
from paceline.scheduler.server.requests.handler_parts import shielded
from paceline.scheduler.server.requests.restart import restart, restart_workers
from paceline.scheduler.server.requests.run_function import run_function
from paceline.scheduler.server.server_api import RemoteError


def failing(request: Any) -> Any:
    return {"status": "uncaught-error", "exception_text": "ZeroDivisionError()"}


# ------------------------------------------------------------------ broadcast


async def test_broadcast_to_workers_hosts_and_nannies(server: Any) -> None:
    a = server.add_worker(1, lambda r: 1, nanny="tcp://n:1")
    b = server.add_worker(2, lambda r: 2)
    server.answers["tcp://n:1"] = lambda r: "nanny"
    msg = {"op": "whatever"}
    assert await broadcast(server, msg) == {a: 1, b: 2}
    assert await broadcast(server, msg, workers=[b]) == {b: 2}
    assert await broadcast(server, msg, hosts=["10.0.0.1", "nowhere"]) == {a: 1}
    assert await broadcast(server, msg, workers=[b], hosts=["10.0.0.1"]) == {b: 2, a: 1}
    assert await broadcast(server, msg, nanny=True) == {a: "nanny"}
    assert await proxy(server, msg, b) == 2


async def test_broadcast_errors(server: Any) -> None:
    a = server.add_worker(1, lambda r: 1)
    b = server.add_worker(2)
    c = server.add_worker(3, failing)
    msg = {"op": "whatever"}
    with pytest.raises(OSError):
        await broadcast(server, msg, workers=[a, b])
    with pytest.raises(RemoteError):
        await broadcast(server, msg, workers=[c])
    assert await broadcast(server, msg, on_error="ignore") == {a: 1}
    replies = await broadcast(server, msg, on_error="return_pickle")
    assert isinstance(pickle.loads(replies[b]), OSError)
    error = pickle.loads(replies[c])
    assert type(error) is Exception and str(error) == "ZeroDivisionError()"
    closed = (await broadcast(server, msg, on_error="return"))[b]
    assert isinstance(closed, Payload)
    assert isinstance(pickle.loads(payload_pickle(closed)[0]), OSError)
    with pytest.raises(ValueError, match="on_error"):
        await broadcast(server, msg, on_error="explode")


# ------------------------------------------------------------------ restart


@pytest.mark.parametrize("timeout", [5, None])
async def test_restart_with_and_without_nannies(server: Any, timeout: Any) -> None:
    def kill(request: Any) -> None:
        server.remove_worker(a)
        asyncio.get_running_loop().call_later(0.02, server.add_worker, 3)
        asyncio.get_running_loop().call_later(0.02, server.add_worker, 4)

    a = server.add_worker(1, nanny="tcp://n:1")
    b = server.add_worker(2)
    server.answers["tcp://n:1"] = kill
    server.place("x", a)
    await restart(server, client="c", timeout=timeout)
    assert not server.state.tasks
    assert list(server.state.workers) == ["tcp://10.0.0.3:1000", "tcp://10.0.0.4:1000"]
    assert server.events("c")[-1] == {"action": "restart-workers", "workers": [a, b]}


async def test_restart_of_workers_that_do_not_return(server: Any) -> None:
    a = server.add_worker(1)
    server.add_worker(2)
    with pytest.raises(TimeoutError, match=r"Waited for 1 worker\(s\) to reconnect"):
        await restart_workers(server, [a], timeout=0.05)
    b = server.add_worker(3)
    out = await restart_workers(server, [b], timeout=0.05, on_error="return")
    assert out == {b: "removed"}
    c = server.add_worker(4)
    assert await restart_workers(server, [c, "unknown"], wait_for_workers=False) == {c: "removed"}


async def test_restart_with_a_nanny_that_hangs(server: Any) -> None:
    async def hang(request: Any) -> None:
        await asyncio.sleep(10)

    a = server.add_worker(1, nanny="tcp://n:1")
    server.answers["tcp://n:1"] = hang
    with pytest.raises(TimeoutError, match=r"1/1 nanny worker\(s\) did not shut down"):
        await restart_workers(server, timeout=0.05)
    assert a not in server.state.workers
    b = server.add_worker(2, nanny="tcp://n:1")
    out = await restart_workers(server, timeout=0.05, on_error="return")
    assert out == {b: "timed out"}


async def test_a_nanny_that_reports_an_error_does_not_keep_its_worker(server: Any) -> None:
    async def hang(request: Any) -> None:
        await asyncio.sleep(10)

    server.answers |= {"tcp://n:1": failing, "tcp://n:2": hang}
    a, b = server.add_worker(1, nanny="tcp://n:1"), server.add_worker(2, nanny="tcp://n:2")
    out = await restart_workers(server, timeout=0.05, on_error="return")
    assert out == {a: "timed out", b: "timed out"}
    assert not server.state.workers
    server.add_worker(1, nanny="tcp://n:1")
    with pytest.raises(RemoteError, match="ZeroDivisionError"):
        await restart_workers(server, timeout=0.05)
    assert not server.state.workers


async def test_a_worker_that_is_back_before_its_nanny_answers_stays(server: Any) -> None:
    async def slow(request: Any) -> None:
        server.remove_worker(a)
        server.add_worker(1, nanny="tcp://n:1")
        await asyncio.sleep(10)

    a = server.add_worker(1, nanny="tcp://n:1")
    server.answers["tcp://n:1"] = slow
    await restart_workers(server, timeout=0.05, on_error="return")
    assert a in server.state.workers


async def test_shielded_request_survives_its_caller(server: Any) -> None:
    done = []

    async def flow() -> int:
        await asyncio.sleep(0.02)
        done.append(1)
        return 5

    assert await shielded(server, flow(), "flow") == 5
    asking = asyncio.create_task(shielded(server, flow(), "flow"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.sleep(0.05)
    assert done == [1, 1]

    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await shielded(server, fails(), "fails")


# ------------------------------------------------------------------ plugins


async def test_worker_plugins_are_stored_and_sent(server: Any) -> None:
    a = server.add_worker(1, lambda r: {"status": "OK"})
    replies = await plugins.register_worker_plugin(server, b"p", "name")
    assert replies == {a: {"status": "OK"}}
    assert server.request_state.worker_plugins == {"name": b"p"}
    assert await plugins.register_worker_plugin(server, b"q", "name", idempotent=True) == {}
    assert server.request_state.worker_plugins == {"name": b"p"}
    await plugins.unregister_worker_plugin(server, "name")
    assert server.request_state.worker_plugins == {}
    with pytest.raises(ValueError, match="The worker plugin name does not exist"):
        await plugins.unregister_worker_plugin(server, "name")


class Nanny:
    """A nanny's connection."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.closed = False
        self.up = asyncio.get_running_loop().create_future()

    def send(self, value: Any) -> None:
        self.told.append(value)

    async def read(self) -> Any:
        return await self.up


async def test_a_nanny_plugin_waits_for_nannies_that_start(server: Any) -> None:
    server.request_state.nanny_plugins["old"] = b"o"
    nanny = Nanny()
    starting = asyncio.create_task(
        plugins.handle_register_nanny(server, RegisterNanny(address="tcp://n:1"), nanny)
    )
    await asyncio.sleep(0.01)
    assert nanny.told == [{"status": "OK", "nanny-plugins": {"old": b"o"}}]
    registering = asyncio.create_task(plugins.register_nanny_plugin(server, b"p", "new"))
    await asyncio.sleep(0.01)
    assert not registering.done()
    a = server.add_worker(1, nanny="tcp://n:1")
    server.answers["tcp://n:1"] = lambda r: {"status": "OK"}
    nanny.up.set_result({"status": "ok"})
    await starting
    assert await registering == {a: {"status": "OK"}}
    assert await plugins.unregister_nanny_plugin(server, "new") == {a: {"status": "OK"}}


async def test_nanny_lost_during_start_does_not_block_others(server: Any) -> None:
    nanny = Nanny()
    starting = asyncio.create_task(
        plugins.handle_register_nanny(server, RegisterNanny(address="tcp://n:1"), nanny)
    )
    await asyncio.sleep(0.01)
    nanny.up.set_exception(ConnectionResetError())
    await starting
    assert await plugins.register_nanny_plugin(server, b"p", "new") == {}


class Recorder(SchedulerPlugin):
    started: Any = None

    async def start(self, scheduler: Any) -> None:
        self.started = scheduler


async def test_scheduler_plugins(server: Any) -> None:
    pickled = cloudpickle.dumps(Recorder())
    await plugins.register_scheduler_plugin(server, pickled, "r")
    assert server.plugins.by_name["r"].started is server.plugins.scheduler
    first = server.plugins.by_name["r"]
    await plugins.register_scheduler_plugin(server, pickled, "r", idempotent=True)
    assert server.plugins.by_name["r"] is first
    plugins.unregister_scheduler_plugin(server, "r")
    with pytest.raises(ValueError, match="Could not find plugin"):
        plugins.unregister_scheduler_plugin(server, "r")
    with pytest.raises(TypeError):
        await plugins.register_scheduler_plugin(server, pickle.dumps(1), "r")


# ------------------------------------------------------------------ functions


def opened(reply: dict[str, Any]) -> Any:
    data, buffers = payload_pickle(reply["result"])
    return pickle.loads(data, buffers=buffers)


async def test_functions(server: Any) -> None:
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    scheduler = server.plugins.scheduler
    dumps = cloudpickle.dumps
    reply = await run_function(server, dumps(lambda x, y: x - y), dumps((3,)), dumps({"y": 1}))
    assert reply["status"] == "OK" and opened(reply) == 2
    assert opened(await run_function(server, dumps(later), dumps((1,)))) == 2
    seen = await run_function(server, dumps(lambda dask_scheduler: id(dask_scheduler)))
    assert opened(seen) == id(scheduler)
    assert opened(await run_function(server, dumps(later), dumps((1,)), wait=False)) is None
    with pytest.raises(AssertionError, match="not supported"):
        await run_function(server, dumps(abs), dumps((1,)), wait=False)
    assert server.events("all")[0]["action"] == "run-function"


async def test_a_function_that_fails(server: Any, caplog: pytest.LogCaptureFixture) -> None:
    from distributed.core import clean_exception
    from distributed.protocol.serialize import Serialized, deserialize

    reply = await run_function(server, cloudpickle.dumps(lambda: 1 / 0))
    assert reply["status"] == "error" and "Run Failed" in caplog.text
    assert "ZeroDivisionError" in reply["exception_text"]
    from paceline.protocol.payload import payload_header

    payload = reply["exception"]
    exception = deserialize(payload_header(payload), list(payload.frames))
    assert Serialized is not None
    assert isinstance(clean_exception(exception)[1], ZeroDivisionError)


# ------------------------------------------------------------------ diagnostics


async def test_call_stack_omits_workers_without_tasks(server: Any) -> None:
    a = server.add_worker(1, lambda r: {"x": ["frame"]})
    server.add_worker(2, lambda r: {})
    assert await diagnostics.call_stack(server) == {a: {"x": ["frame"]}}
    assert await diagnostics.call_stack(server, []) == {}


async def test_benchmark_hardware_averages(server: Any) -> None:
    for i, value in ((1, 10.0), (2, 20.0)):
        server.add_worker(i, lambda r, value=value: {"1 kiB": value})
    result = await diagnostics.benchmark_hardware(server)
    assert result["disk"] == result["memory"] == {"1 kiB": 15.0}
    assert set(result["network"]) == {"1 kiB"}


def test_profiles_are_merged_as_in_stock() -> None:
    from distributed import profile

    def tree(count: int, **children: Any) -> dict[str, Any]:
        return {
            "count": count,
            "identifier": "root",
            "description": {"name": "f"},
            "children": {k: {**v, "identifier": k} for k, v in children.items()},
        }

    trees = [tree(3, a=tree(1), b=tree(2)), tree(4, b=tree(3, c=tree(1)))]
    assert diagnostics.merged_profile(trees) == profile.merge(*trees)
    assert diagnostics.merged_profile([]) == profile.create()


async def test_profiles(server: Any) -> None:
    root = diagnostics.merged_profile([])
    a = server.add_worker(1, lambda r: {**root, "count": 2})
    server.add_worker(2)
    assert (await diagnostics.profile(server))["count"] == 2
    assert list(await diagnostics.profile(server, merge_workers=False)) == [a]
    assert (await diagnostics.profile(server, scheduler=True))["count"] == 0


class Watcher:
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.closed = False

    def send(self, value: Any) -> None:
        self.told += value

    async def drained(self) -> None:
        pass


async def test_workers_are_watched(server: Any) -> None:
    a = server.add_worker(1)
    watcher = Watcher()
    seen = {a: server.state.workers[a], "gone": object()}
    watching = asyncio.create_task(cluster.watch_workers(server, watcher, seen))
    await asyncio.sleep(0.02)
    assert watcher.told == [["remove", "gone"]]
    b = server.add_worker(2)
    await asyncio.sleep(0.02)
    assert watcher.told[1][0] == "add" and list(watcher.told[1][1]["workers"]) == [b]
    assert "metrics" not in watcher.told[1][1]["workers"][b]
    server.remove_worker(a)
    await asyncio.sleep(0.02)
    assert watcher.told[2:] == [["remove", a]]
    watcher.closed = True
    await asyncio.wait_for(watching, 1)
