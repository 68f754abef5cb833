"""The page of a performance report, rendered from plain data."""

from __future__ import annotations

from html import unescape

import pytest
from distributed import profile
from paceline.scheduler.server.requests import performance_report as flow
from paceline.workers_compat.performance_report import PastMonitor, ReportFacts, draw

pytest.importorskip("bokeh")


def facts(**more):
    record = {
        "key": "x-1", "worker": "tcp://127.0.0.1:1", "thread": 5, "status": "OK", "type": b"",
        "startstops": [{"action": "compute", "start": 10.0, "stop": 12.5}],
    }  # fmt: skip
    values = {
        "task_stream": [record],
        "compute": profile.create(),
        "administrative": profile.create(),
        "scheduler": profile.create(),
        "bandwidth_workers": {("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"): 1e6},
        "bandwidth_types": {"int": 1e6},
        "workers": {"tcp://127.0.0.1:1": {"name": "alice", "nthreads": 2, "memory_limit": 2**29}},
        "monitor": {
            "cpu": [1.0, 2.0], "memory": [1e6, 2e6], "time": [10.0, 10.5], "num_fds": [3, 4],
            "host_net_io.read_bps": [0.0, 1.0], "host_net_io.write_bps": [0.0, 1.0],
        },
        "logs": [(10.0, "INFO", "a line")],
    }  # fmt: skip
    return ReportFacts(10.0, 13.0, **{**values, **more})


def test_summary(monkeypatch):
    for clock in ("time.time", "distributed.scheduler.time"):  # drawing may take long
        monkeypatch.setattr(clock, lambda: 100.0)
    bob = {"tcp://127.0.0.1:2": {"name": "bob", "nthreads": 2, "memory_limit": 2**29}}
    workers = {**facts().workers, **bob}
    page = unescape(draw(facts(code="if a < b:\n    pass", workers=workers)))
    for part in ("Duration: 3.00 s", "number of tasks: 1", "compute time: 2.50 s", "Workers: 2"):
        assert part in page
    assert "if a &lt; b:" in page


def test_a_page_with_all_tabs():
    page = draw(facts(mode="inline"))
    assert page.lstrip().startswith("<!DOCTYPE html>")
    for title in ("Summary", "Task Stream", "System", "Scheduler Logs", "Bandwidth (Types)"):
        assert f'"title":"{title}"' in page


def test_plots_may_change_the_data_of_a_monitor():
    monitor = PastMonitor({"time": [1.0]}, {})
    monitor.range_query(0)["time"][0] = 1000.0
    assert monitor.range_query(0) == {"time": [1.0]}
    assert monitor.count == 1
    assert monitor.range_query(1) == {"time": []}  # plots that exist already are not drawn again


async def test_child_draws_the_page():
    page = await flow.draw(vars(facts()))
    assert "Dask Performance Report" in page


async def test_failed_child_reports_the_reason():
    with pytest.raises(RuntimeError, match="could not be drawn"):
        await flow.draw(vars(facts(compute={"no": "profile"})))
