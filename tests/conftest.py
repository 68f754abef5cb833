"""Fixtures for all tests: real clusters, one per scheduler and session, and scheduler processes.

They do not depend on what a test computes. When a test fails, the ends of its processes' logs are printed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paceline.scheduler.server.runtime.build import COMPILED

from tests.support.real_cluster import (
    IMPORTABLE,
    SHORT_LOGS,
    Cluster,
    overridden,
    scheduler_command,
)

# Starting a cluster takes seconds, so tests that do not damage it share one.
CLUSTERS = pytest.StashKey[list[Cluster]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `pure` if the core is compiled."""
    if COMPILED:
        for item in items:
            if item.get_closest_marker("pure"):
                item.add_marker(pytest.mark.skip(reason="the core is compiled"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> object:
    """Print the logs of running clusters with a test that failed."""
    report = yield
    if report.failed:
        for cluster in item.session.stash.get(CLUSTERS, []):
            report.sections.append((f"processes of {cluster.name}", cluster.logs()))
    return report


@pytest.fixture(scope="session")
def clusters(request: pytest.FixtureRequest) -> Iterator[list[Cluster]]:
    """Running clusters, whose logs are printed when a test fails."""
    running = request.session.stash.setdefault(CLUSTERS, [])
    yield running
    for cluster in reversed(running):
        cluster.close()


@pytest.fixture(scope="session", autouse=True)
def violations_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make every scheduler check what it sends against the catalogue, and write violations to this file."""
    path = tmp_path_factory.mktemp("checks") / "violations.jsonl"
    path.touch()
    os.environ["PACELINE_CHECK_MESSAGES"] = str(path)
    yield path
    del os.environ["PACELINE_CHECK_MESSAGES"]


@pytest.fixture(autouse=True)
def only_what_the_catalogue_allows(
    violations_file: Path, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Fail a test if a scheduler sent an invalid message while it ran (or during its fixtures, or before)."""
    yield
    text = violations_file.read_text()
    violations_file.write_text("")
    if text and not request.node.get_closest_marker("violations"):
        lines = [json.loads(line) for line in text.splitlines()]
        listed = "\n".join(f"{line['text']}\n    in {line['message']}" for line in lines[:20])
        pytest.fail(f"{len(lines)} violations of the catalogue:\n{listed}", pytrace=False)


ClusterFactory = Callable[..., Cluster]


@pytest.fixture
def start_cluster(
    clusters: list[Cluster], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[ClusterFactory]:
    """Start a cluster for this test only: `start_cluster("paceline", nannies=(True,), options=[...])`."""
    mine: list[Cluster] = []

    def start(kind: str = "paceline", **options: Any) -> Cluster:
        folder = tmp_path / f"{kind}-{len(mine)}"
        cluster = Cluster(scheduler_command(kind), folder, name=f"{kind}-scheduler", **options)
        mine.append(cluster)
        clusters.append(cluster)
        cluster.__enter__()
        return cluster

    yield start
    for cluster in reversed(mine):
        clusters.remove(cluster)
        cluster.close()


def _shared(
    kind: str, what: str, clusters: list[Cluster], factory: pytest.TempPathFactory, **options: Any
) -> Cluster:
    folder = factory.mktemp(f"{kind}-{what}")
    name = f"{kind}-scheduler-{what}"
    options["config"] = {**IMPORTABLE, **SHORT_LOGS, **options.get("config", {})}
    if kind == "paceline" and not overridden():
        options["options"] = ["--journal", str(folder / "run.journal")]
    cluster = Cluster(scheduler_command(kind), folder, name=name, **options)
    cluster.__enter__()
    clusters.append(cluster)
    return cluster


@pytest.fixture(scope="session")
def stock(clusters: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The stock scheduler with two workers, one of them under a nanny."""
    return _shared("stock", "shared", clusters, tmp_path_factory)


@pytest.fixture(scope="session")
def paceline(clusters: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """paceline with two workers, one of them under a nanny."""
    return _shared("paceline", "shared", clusters, tmp_path_factory)


# Programs that kill workers need nannies, which restart them, and a low allowed-failures.
DEADLY = {
    "nannies": (True, True),
    "nthreads": 1,
    "config": {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"},
}


@pytest.fixture(scope="session")
def stock_nannies(clusters: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The stock scheduler with two one-thread workers under nannies; allowed-failures is 1."""
    return _shared("stock", "nannies", clusters, tmp_path_factory, **DEADLY)


@pytest.fixture(scope="session")
def paceline_nannies(clusters: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """paceline with two one-thread workers under nannies; allowed-failures is 1."""
    return _shared("paceline", "nannies", clusters, tmp_path_factory, **DEADLY)
