"""Pages: health, metrics, stock's pages on workers and tasks, and ports in use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import warnings
from collections.abc import AsyncIterator
from urllib.parse import quote

import dask.config
import distributed
import pytest
from paceline.scheduler import Scheduler
from paceline.scheduler.core.inspection.dump import jsonable
from paceline.scheduler.server.http import metrics
from paceline.scheduler.server.http.server import HttpServer
from paceline.scheduler.server.runtime.measures import LoopLag
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPResponse
from tornado.websocket import websocket_connect

from tests.support.pages import get


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(**options, http_prefix="/a/", dashboard=False) as scheduler:
        yield scheduler


async def test_own_pages(scheduler: Scheduler) -> None:
    port = scheduler.http_server.port
    assert await get(port, "/a/health") == "ok"
    for front in ("/a/", "/a", "/"):
        assert scheduler.address in await get(port, front)
    counts = json.loads(await get(port, "/a/json/counts.json"))
    assert counts["tasks"] == counts["workers"] == 0
    identity = json.loads(await get(port, "/a/json/identity.json"))
    assert identity["id"] == scheduler.id
    paths = json.loads(await get(port, "/a/sitemap.json"))["paths"]
    assert {"/a/health", "/a/json/identity.json", "/a/statics/css/base.css"} <= set(paths)
    assert not any(path.startswith("/a/api") for path in paths)
    assert jsonable({("a", 1): (2.5, None)}) == {"('a', 1)": [2.5, None]}


async def test_metrics_have_rows_for_some_prefixes(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PREFIX_ROWS_MAX", 2)
    async with distributed.Client(scheduler.address, asynchronous=True) as client:
        futures = [client.submit(int, key=f"{name}-1") for name in ("a", "b", "c", "d")]
        state = scheduler.server.state
        while len(state.queued) + len(state.unrunnable) < 4:
            await asyncio.sleep(0.01)
        text = await get(scheduler.http_server.port, "/a/metrics")
        found = re.findall(
            r'prefix_state_totals_total{state="waiting",task_prefix_name="(.*)"} (.*)', text
        )
        assert found == [("a", "1.0"), ("b", "1.0"), ("(other)", "2.0")]
        counts = re.findall(r'dask_scheduler_tasks{state="(?:no-worker|queued)"} (.*)', text)
        assert sum(map(float, counts)) == 4
        for duration, n_workers in ("1h", 1), ("1ms", 4):
            with dask.config.set({"distributed.adaptive.target-duration": duration}):
                text = await get(scheduler.http_server.port, "/a/metrics")
            assert f"dask_scheduler_desired_workers {n_workers}.0" in text
        del futures


async def test_without_a_dashboard_there_are_no_plots(scheduler: Scheduler) -> None:
    port = scheduler.http_server.port
    assert json.loads(await get(port, "/a/individual-plots.json")) == {}
    with pytest.raises(HTTPClientError, match="404"):
        await get(port, "/a/status")


async def test_paths_of_plots_do_not_start_with_the_prefix() -> None:
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(**options, http_prefix="/a/") as scheduler:
        port = scheduler.http_server.port
        # created with the first page, to which a proxy may have given another prefix
        url = f"http://127.0.0.1:{port}/a/status?x=/1"
        options = {"follow_redirects": False, "raise_error": False}
        first = await AsyncHTTPClient().fetch(url, request_timeout=60, **options)
        assert (first.code, first.headers["Location"]) == (302, "./status?x=/1")
        plots = json.loads(await get(port, "/a/individual-plots.json"))
        assert plots["Individual Progress"] == "/individual-progress"
        assert "Cluster Map" in await get(port, "/a" + plots["Individual Cluster Map"])


async def test_stocks_pages(scheduler: Scheduler) -> None:
    port = scheduler.http_server.port
    async with (
        distributed.Worker(scheduler.address, name="alice", dashboard_address=":0") as worker,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        await client.submit(sum, [1, 2], key="x")
        erred = client.submit(int, "no number", key="y")
        await distributed.wait(erred)
        future = client.submit(sum, [1, 2], key=("z", 0))
        await future
        assert "alice" in await get(port, "/a/info/main/workers.html")
        assert "alice" in await get(
            port, f"/a/info/worker/{worker.address.replace('/', '%2F')}.html"
        )
        assert "no number" in await get(port, "/a/info/main/exceptions.html")
        assert "Register worker" in await get(port, "/a/info/main/logs.html")
        assert "memory" in await get(port, "/a/info/task/('z',%200).html")
        for page in ("logs", "call-stacks"):
            assert await get(port, f"/a/info/{page}/{worker.address.replace('/', '%2F')}.html")
        assert "not actively running" in await get(port, "/a/info/call-stack/('z',%200).html")


JSON = {"Content-Type": "application/json"}


@contextlib.asynccontextmanager
async def scheduler_with_commands(**settings: str) -> AsyncIterator[tuple[Scheduler, str]]:
    """Start a scheduler that serves `/api/v1`, configured as for stock; yield its address."""
    routes = dask.config.get("distributed.scheduler.http.routes")
    key = "distributed.scheduler.http.routes"
    with dask.config.set({key: [*routes, "distributed.http.scheduler.api"], **settings}):
        async with Scheduler(
            host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False
        ) as scheduler:
            yield scheduler, f"http://127.0.0.1:{scheduler.http_server.port}"


async def retire(url: str, headers: dict[str, str], body: str = '{"n": 1}') -> HTTPResponse:
    """Return the response to a command that retires a worker."""
    options = {"method": "POST", "headers": headers, "body": body, "raise_error": False}
    return await AsyncHTTPClient().fetch(f"{url}/api/v1/retire_workers", **options)


async def test_commands() -> None:
    async with (
        scheduler_with_commands() as (scheduler, url),
        distributed.Worker(scheduler.address, name="alice", dashboard_address=":0"),
    ):
        port = scheduler.http_server.port
        found = json.loads(await get(port, "/api/v1/get_workers"))
        assert [each["name"] for each in found["workers"]] == ["alice"]
        await get(port, "/metrics")
        assert json.loads(await get(port, "/json/counts.json"))["desired_workers"] == 0
        assert not scheduler.server.state.scaling.asked_at, "neither is a request"
        assert "workers" in json.loads(await get(port, "/api/v1/adaptive_target"))
        assert scheduler.server.state.scaling.asked_at
        assert "idle_since" in json.loads(await get(port, "/api/v1/check_idle"))
        (retired,) = json.loads((await retire(url, JSON)).body).values()
        assert retired["name"] == "alice"


async def test_api_has_the_share_groups() -> None:
    async with (
        scheduler_with_commands() as (scheduler, _),
        distributed.Client(scheduler.address, name="alice", asynchronous=True) as client,
    ):
        future = client.submit(int, key="x")
        while not scheduler.server.state.shares.active:
            await asyncio.sleep(0.01)
        port = scheduler.http_server.port
        found = json.loads(await get(port, "/api/v1/shares"))
        (group,) = found["groups"]
        assert (group["name"], group["queued"], group["waits_for"]) == ("alice", 1, "a worker")
        assert [each["client"] for each in group["clients"]] == [client.id]
        assert found == json.loads(await get(port, "/json/shares.json"))
        assert "/api/v1/shares" in json.loads(await get(port, "/sitemap.json"))["paths"]
        del future


async def test_commands_are_disabled_by_default(scheduler: Scheduler) -> None:
    url = f"http://127.0.0.1:{scheduler.http_server.port}/a"
    async with distributed.Worker(scheduler.address, dashboard_address=":0"):
        assert (await retire(url, JSON)).code == 404
        assert len(scheduler.workers) == 1


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 415),  # a form, or a script without a JSON content type
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({**JSON, "Origin": "http://elsewhere.example"}, 403),
        ({"Content-Type": "text/plain", "Origin": "http://elsewhere.example"}, 403),
        ({**JSON, "Origin": "null"}, 403),
        # DNS rebinding: the name of the site resolves to this machine after its page was loaded
        ({**JSON, "Host": "elsewhere.example", "Origin": "http://elsewhere.example"}, 403),
    ],
)
async def test_cross_site_commands_are_refused(headers: dict[str, str], code: int) -> None:
    async with (
        scheduler_with_commands() as (scheduler, url),
        distributed.Worker(scheduler.address, dashboard_address=":0"),
    ):
        assert (await retire(url, headers)).code == code
        assert len(scheduler.workers) == 1


async def test_commands_of_own_pages_are_executed() -> None:
    async with (
        scheduler_with_commands() as (scheduler, url),
        distributed.Worker(scheduler.address, dashboard_address=":0"),
    ):
        # stock's button sends text
        answer = await retire(url, {"Content-Type": "text/plain;charset=UTF-8", "Origin": url})
        assert answer.code == 200 and not scheduler.workers


async def test_commands_of_other_hosts_require_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = property(lambda request: "192.0.2.1", lambda request, value: None)
    monkeypatch.setattr("tornado.httputil.HTTPServerRequest.remote_ip", remote, raising=False)
    async with scheduler_with_commands() as (_, url):
        refused = await retire(url, JSON)
        assert refused.code == 403 and b"paceline.http.token" in refused.body
    async with scheduler_with_commands(**{"paceline.http.token": "t"}) as (_, url):
        assert (await retire(url, JSON)).code == 401
        assert (await retire(url, {**JSON, "Authorization": "Bearer t"})).code == 200
        assert (await retire(url, {"Authorization": "Bearer t"})).code == 415


async def test_event_stream(scheduler: Scheduler) -> None:
    socket = await websocket_connect(f"ws://127.0.0.1:{scheduler.http_server.port}/a/eventstream")
    async with (
        distributed.Worker(scheduler.address, name="alice", dashboard_address=":0"),
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        await client.submit(sum, [1, 2], key="x")
        heard = []
        while "transition" not in heard:
            heard.append(json.loads(str(await socket.read_message()))["name"])
        await distributed.wait(client.submit(int, "no number", key="bad"))
        told = {"key": "x"}
        while told.get("key") != "bad":
            told = json.loads(str(await socket.read_message()))
    assert heard[0] == "add_worker" and {"add_client", "update_graph"} < set(heard)
    assert told["color"] == "black" and told["stop"] >= told["start"] and "exception" not in told
    socket.close()


async def test_request_of_event_stream_without_upgrade_leaves_no_plugin(
    scheduler: Scheduler,
) -> None:
    before = list(scheduler.plugins)
    with pytest.raises(HTTPClientError) as caught:
        await get(scheduler.http_server.port, "/a/eventstream")
    assert caught.value.code == 400
    assert list(scheduler.plugins) == before


async def test_logs_of_unknown_worker_connect_to_nothing(scheduler: Scheduler) -> None:
    connected = asyncio.Event()
    server = await asyncio.start_server(lambda *_: connected.set(), "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with (
        pytest.raises(HTTPClientError) as caught,
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
    ):
        await get(scheduler.http_server.port, f"/a/info/logs/{quote(address, safe='')}.html")
    server.close()
    assert caught.value.code == 404
    assert not connected.is_set()


def names(metrics: str) -> set[str]:
    """Return the names of metrics with their labels that belong to the scheduler."""
    lines = [line for line in metrics.splitlines() if line.startswith("dask_")]
    return {re.sub(r'="[^"]*"', "", line.rpartition(" ")[0]) for line in lines}


def kinds(metrics: str) -> set[str]:
    """Return the lines that declare the types of metrics."""
    return {line for line in metrics.splitlines() if line.startswith("# TYPE dask_")}


async def test_all_metrics_of_stock_exist(scheduler: Scheduler) -> None:
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "dashboard": False}
    async with distributed.Scheduler(**options, port=0) as stock:
        texts = []
        for each, prefix in ((scheduler, "/a"), (stock, "")):
            async with (
                distributed.Worker(each.address, dashboard_address=":0"),
                distributed.Client(each.address, asynchronous=True) as client,
            ):
                await client.submit(sum, [1, 2])
                semaphore = await distributed.Semaphore(2, name="s")
                await semaphore.acquire()
                texts.append(await get(each.http_server.port, f"{prefix}/metrics"))
                await semaphore.release()
                await semaphore.close()
    ours, theirs = texts
    assert names(theirs) <= names(ours)
    assert kinds(theirs) <= kinds(ours)
    for name in ("turn_seconds_bucket", "loop_lag_seconds_sum", "graph_compile_seconds_count"):
        assert f"dask_paceline_{name}" in ours
    assert re.search(r'sampled_messages_total\{op="[a-z-]+"\} \d', ours)
    assert 'outgoing_buffer_bytes{of="all",peers="workers"}' in ours


async def test_ticks_are_configurable(caplog: pytest.LogCaptureFixture) -> None:
    with dask.config.set({"distributed.admin.tick": {"interval": 5, "limit": "1 ns"}}):
        lag = LoopLag()
    assert lag.seconds == 0.005  # plain numbers are milliseconds, as in stock
    caplog.set_level(logging.INFO, "distributed.scheduler")
    lag.start()
    async with asyncio.timeout(10):
        while lag.count == 0:
            await asyncio.sleep(0)
    lag.stop()
    assert "Event loop was unresponsive" in caplog.text


async def test_page_without_bokeh_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.workers_compat.facade.pages.has_bokeh", lambda: False)
    async with Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0") as scheduler:
        assert "bokeh is not installed" in await get(scheduler.http_server.port, "/")
        assert await get(scheduler.http_server.port, "/health") == "ok"


async def test_several_addresses() -> None:
    async with Scheduler(
        host="127.0.0.1", dashboard_address="127.0.0.1:0,127.0.0.1:0", dashboard=False
    ) as scheduler:
        assert scheduler.services["dashboard"].port == scheduler.http_server.port


async def test_port_in_use_is_replaced_with_a_warning() -> None:
    first = HttpServer([], [("127.0.0.1", 0)])
    with pytest.warns(UserWarning, match=f"Port {first.port} is already in use"):
        other = HttpServer([], [("127.0.0.1", first.port)])
    assert other.port != first.port
    other.stop()
    first.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HttpServer([], [("127.0.0.1", 0)]).stop()


async def test_invalid_https_files_are_reported_at_start() -> None:
    key = "distributed.scheduler.dashboard.tls"
    with (
        dask.config.set({f"{key}.cert": "/no/such/file"}),
        pytest.raises(ValueError, match=re.escape(key)),
    ):
        await Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0")
