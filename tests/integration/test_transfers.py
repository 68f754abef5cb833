"""Each program gives the same result with every transfer as on the stock scheduler without one. Small values are included."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.integration.test_same_as_stock import Program, assert_same, programs, run
from tests.support.real_cluster import IMPORTABLE, Cluster, scheduler_command
from tests.support.redis_servers import program as server_program
from tests.support.redis_servers import redis_server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TRANSFERS = ("auto", "shm", "vm", "file", "redis", "direct")
IN_CI = {("auto", "arrays")}
"""What is not slow."""


def cases() -> Iterator[object]:
    for transfer in TRANSFERS:
        for each in programs():
            module = each.id.partition("-")[0]  # type: ignore[attr-defined]
            marks = list(each.marks)  # type: ignore[attr-defined]
            if (transfer, module) not in IN_CI:
                marks.append(pytest.mark.slow)
            if transfer == "redis" and server_program() is None:
                marks.append(pytest.mark.skip(reason="no Redis server is installed"))
            values = each.values  # type: ignore[attr-defined]
            yield pytest.param(transfer, *values, id=f"{transfer}-{each.id}", marks=marks)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def with_transfer(
    clusters: list[Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, str], Cluster]]:
    """Start a cluster whose configuration names a transfer; one at a time."""
    running: dict[tuple[str, str], Cluster] = {}
    servers = []

    def start(transfer: str, suffix: str) -> Cluster:
        if (transfer, suffix) not in running:
            while running:
                _, cluster = running.popitem()
                clusters.remove(cluster)
                cluster.close()
            folder = tmp_path_factory.mktemp(f"{transfer}{suffix}")
            config = {
                **IMPORTABLE,
                "DASK_PACELINE__TRANSFER__BACKENDS": transfer,
                "DASK_PACELINE__TRANSFER__MIN_NBYTES": "200",
            }
            if transfer == "file":
                config["DASK_PACELINE__TRANSFER__FILE"] = str(folder / "shared")
            if transfer == "redis":
                server = redis_server(folder / "redis")
                servers.append(server)
                config["DASK_PACELINE__TRANSFER__REDIS"] = server.__enter__().url
            nannies = (True, True) if suffix else (True, False)
            cluster = Cluster(
                scheduler_command("paceline"), folder, nannies=nannies, name=transfer, config=config
            )
            cluster.__enter__()
            clusters.append(cluster)
            running[transfer, suffix] = cluster
        return running[transfer, suffix]

    yield start
    for cluster in running.values():
        clusters.remove(cluster)
        cluster.close()
    for server in servers:
        server.__exit__(None, None, None)


@pytest.mark.parametrize(("transfer", "program", "suffix", "expected"), list(cases()))
def test_program(
    transfer: str,
    program: Program,
    suffix: str,
    expected: object,
    with_transfer: Callable[[str, str], Cluster],
    request: pytest.FixtureRequest,
) -> None:
    if expected is None:
        expected = run(program, request.getfixturevalue("stock" + suffix))
    assert_same(run(program, with_transfer(transfer, suffix)), expected)
    assert not [name for name in os.listdir("/dev/shm") if "paceline" in name]
