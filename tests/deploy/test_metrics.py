"""Prometheus and Grafana: /metrics exports every metric of the dashboard in docs/, and a scrape is fast."""

from __future__ import annotations

import json
import re
from typing import Any

import distributed
import yaml
from paceline.scheduler import Scheduler

from tests.support.pages import get
from tests.support.source_tree import ROOT

DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"
NAME = re.compile(r"\b(?:dask|process|python)_[a-z0-9_]+")


def expressions() -> list[str]:
    """Return all Prometheus expressions of the dashboard."""
    dashboard = json.loads(DASHBOARD.read_text())
    targets = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    queries = [each["query"] for each in dashboard["templating"]["list"]]
    return targets + [query["query"] for query in queries if isinstance(query, dict)]


async def exported() -> str:
    """Return the text of /metrics of a scheduler that has run tasks."""
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0") as scheduler,
        distributed.Worker(scheduler.address, dashboard_address=":0"),
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        assert await client.submit(sum, [1, 2]) == 3
        return await get(scheduler.services["dashboard"].port, "/metrics")


def names(text: str) -> set[str]:
    """Return the names of samples, and of metrics without samples."""
    found = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            found |= {
                name,
                *(f"{name}{end}" for end in ("_bucket", "_sum", "_count") if kind == "histogram"),
            }
        elif line and not line.startswith("#"):
            found.add(re.split("[{ ]", line)[0])
    return found


def labels(text: str) -> dict[str, set[str]]:
    """Return the labels of each metric that has samples."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            found.setdefault(re.split("[{ ]", line)[0], set()).update(re.findall(r'(\w+)="', line))
    return found


async def test_every_metric_of_the_dashboard_is_exported() -> None:
    text = await exported()
    there, known = names(text), labels(text)
    asked = [name for expression in expressions() for name in NAME.findall(expression)]
    assert len(set(asked)) > 25
    assert [name for name in asked if name not in there] == []
    for expression in expressions():
        (by,) = re.findall(r"by \((\w+)\)", expression) or [None]
        (name,) = set(NAME.findall(expression))
        if by is not None and name in known:
            assert by in known[name], expression


def test_dashboard_is_complete() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            assert (
                panel["targets"]
                and panel["title"]
                and panel["datasource"]["uid"] == "${datasource}"
            )
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_prometheus_configuration_scrapes_the_served_path() -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / "examples/deploy/prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs["paceline-scheduler"]["static_configs"] == [{"targets": ["localhost:8787"]}]
    assert all("metrics_path" not in job for job in jobs.values()), "/metrics is the default"
    pods = yaml.safe_load_all((ROOT / "examples/deploy/kubernetes.yaml").read_text())
    scheduler = next(pod for pod in pods if pod["metadata"]["name"] == "paceline-scheduler")
    annotations = scheduler["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "8787"


async def test_scrape_does_not_iterate_over_tasks() -> None:
    """A scrape does not iterate over tasks, so its cost does not depend on their number."""
    from paceline.scheduler.server.http.metrics import SchedulerMetrics

    class Counting(dict[Any, Any]):
        """A dict of tasks that must not be iterated."""

        def __iter__(self) -> Any:
            raise AssertionError("a scrape walks over all tasks")

        items = values = keys = __iter__  # type: ignore[assignment]

    async with Scheduler(
        host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False
    ) as scheduler:
        state = scheduler.server.state
        tasks, state.tasks = state.tasks, Counting()
        try:
            page = SchedulerMetrics(scheduler.server, scheduler._loop_lag, "dask")
            assert b"dask_scheduler_tasks" in page.render()
        finally:
            state.tasks = tasks
