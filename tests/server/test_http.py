"""Health, metrics, and ports that are taken."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from paceline.scheduler.server.assembly import build_core
from paceline.scheduler.server.http.metrics import MetricsPage, SchedulerMetrics
from paceline.scheduler.server.http.server import HttpServer, routes
from paceline.scheduler.server.ticks import Ticks
from paceline.workers_compat.config import scheduler_config
from tornado.httpclient import AsyncHTTPClient


@pytest.fixture
async def http() -> Iterator[HttpServer]:
    core = build_core(scheduler_config())
    page = MetricsPage(SchedulerMetrics(core.state, Ticks()))
    server = HttpServer(routes(page, lambda: {"workers": "<3>"}), [("127.0.0.1", 0)], prefix="/a/")
    yield server
    server.stop()


async def get(server: HttpServer, path: str) -> str:
    answer = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{server.port}{path}")
    return str(answer.body.decode())


async def test_pages(http: HttpServer) -> None:
    assert await get(http, "/a/health") == "ok"
    assert "&lt;3&gt;" in await get(http, "/a/")
    metrics = await get(http, "/a/metrics")
    for name in (
        "dask_scheduler_clients 0.0",
        'dask_scheduler_workers{state="idle"} 0.0',
        'dask_scheduler_tasks{state="processing"} 0.0',
        "dask_scheduler_client_connections_added_total 0.0",
        "dask_scheduler_tick_count_total",
        "process_cpu_seconds_total",
        'dask_stealing_request_count_total{cost_multiplier="1.03125"} 0.0',
        'dask_stealing_request_cost_total{cost_multiplier="257.0"} 0.0',
    ):
        assert name in metrics


async def test_a_taken_port_gives_another_and_a_warning(http: HttpServer) -> None:
    with pytest.warns(UserWarning, match=f"Port {http.port} is already in use"):
        other = HttpServer([], [("127.0.0.1", http.port)])
    assert other.port != http.port
    other.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HttpServer([], [("127.0.0.1", 0)]).stop()
