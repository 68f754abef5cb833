"""`Client.shutdown` ends the processes of the scheduler and its workers, on both schedulers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest
from distributed import Client

from tests.support.real_cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.mark.parametrize("kind", ["stock", "paceline"])
def test_shutdown_ends_all_processes(kind: str, start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(kind, nannies=(True, False), nthreads=1)
    with Client(cluster.address, set_as_default=False) as bystander:
        client = Client(cluster.address)
        future = client.submit(sum, [1, 2])
        assert future.result(timeout=30) == 3
        client.shutdown()
        assert client.status == "closed"
        deadline = time.monotonic() + 30
        while any(process.popen.poll() is None for process in cluster.processes):
            assert time.monotonic() < deadline, [p.popen.poll() for p in cluster.processes]
            time.sleep(0.05)
        while bystander.status == "running":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert cluster.processes[0].popen.poll() == 0, "the scheduler exits with 0"


@pytest.mark.parametrize("kind", ["stock", "paceline"])
def test_a_function_that_exits_ends_the_scheduler_but_not_the_client(
    kind: str, start_cluster: Callable[..., Cluster]
) -> None:
    cluster = start_cluster(kind, nannies=(False,), nthreads=1)
    with Client(cluster.address, timeout=5) as client:
        with pytest.raises(OSError):
            client.run_on_scheduler(sys.exit, 3)
        assert client.loop.asyncio_loop.is_running()
        assert cluster.processes[0].popen.wait(30) == 3
