"""Attacks with real processes: workers that stop listening, logs that peers fill, clocks that jump, slow shutdowns.

The stock scheduler is the oracle where behaviour is compared.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, wait

from tests.support.real_cluster import Cluster, wait_for_nannies

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CONNECT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s"}


def outcome(function: Callable[[], Any]) -> tuple[str, str]:
    """Return the type and text of what `function` returns or raises."""
    try:
        result = function()
    except Exception as error:
        result = error
    return type(result).__name__, str(result)


def unreachable_worker(client: Client) -> list[tuple[str, str]]:
    """Return the outcomes of requests to a worker that no longer listens."""

    def stop_listening(dask_worker: Any) -> None:
        """Close the listening sockets of a worker and the connections they accepted; it stays registered."""
        for listener in dask_worker.listeners:
            listener.stop()
        for comm in list(dask_worker._comms):
            dask_worker.loop.call_later(0.2, comm.abort)

    (lost, kept) = sorted(client.scheduler_info(n_workers=-1)["workers"])
    client.run(stop_listening, workers=[lost])
    time.sleep(0.5)
    outcomes = [
        outcome(lambda: client.run(abs, -1, workers=[lost])),
        outcome(lambda: client.run(abs, -1, workers=[lost], on_error="return")[lost]),
        outcome(lambda: list(client.run(abs, -1, on_error="ignore"))),
        outcome(lambda: client.scatter(1, workers=[lost], hash=False, direct=False)),
        outcome(lambda: client.get_worker_logs(workers=[lost])),
        outcome(lambda: client.profile(workers=[lost])),
    ]
    return [(name, text.replace(lost, "LOST").replace(kept, "KEPT")) for name, text in outcomes]


def test_requests_to_a_worker_that_stopped_listening(
    start_cluster: Callable[..., Cluster],
) -> None:
    outcomes = {}
    for kind in ("stock", "paceline"):
        cluster = start_cluster(kind, nannies=(False, False), config=CONNECT)
        with Client(cluster.address) as client:
            client.wait_for_workers(2)
            outcomes[kind] = unreachable_worker(client)
    assert outcomes["paceline"] == outcomes["stock"]
    assert outcomes["paceline"][0] == ("OSError", "Timed out trying to connect to LOST after 2 s")


# Shifts `time.time` in the scheduler process by an hour once the file JUMP exists.
SITECUSTOMIZE = """
import os, sys, time
if any("paceline" in os.path.basename(part) for part in sys.orig_argv[:2]):
    wall = time.time
    time.time = lambda: wall() + 3600 * os.path.exists(os.environ["JUMP"])
"""


def test_a_jump_of_the_wall_clock(start_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """The clock of the scheduler's host is set forward by an hour while a task runs; its worker is not removed."""
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    jump = tmp_path / "jump"
    cluster = start_cluster(
        "paceline",
        nannies=(False, False),
        config={"PYTHONPATH": str(tmp_path), "JUMP": str(jump)},
    )
    with Client(cluster.address) as client:
        client.wait_for_workers(2)
        before = sorted(client.scheduler_info(n_workers=-1)["workers"])
        task = client.submit(time.sleep, 4)
        wall = client.run_on_scheduler(time.time)
        jump.touch()
        assert client.run_on_scheduler(time.time) > wall + 3000
        assert task.result(timeout=60) is None
        assert sorted(client.scheduler_info(n_workers=-1)["workers"]) == before
    assert "failed to heartbeat" not in cluster.processes[0].output()


def test_a_flood_of_malformed_frames(start_cluster: Callable[..., Cluster]) -> None:
    """Thousands of connections that send invalid bytes leave a log of bounded size, with the number of suppressed lines."""
    cluster = start_cluster("paceline", nannies=(False,))
    host, port = cluster.address.removeprefix("tcp://").split(":")
    for _ in range(6_000):
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"\xff" * 64)
            with contextlib.suppress(ConnectionError):
                while sock.recv(2**16):
                    pass
    scheduler = cluster.processes[0]
    scheduler.terminate()
    scheduler.wait()
    log = scheduler.output()
    assert "similar lines suppressed. The last one: Dropping connection" in log
    assert len(log) < 1_500_000


def test_nannies_end_with_the_scheduler(start_cluster: Callable[..., Cluster]) -> None:
    """Busy workers with nannies exit after the scheduler got SIGTERM."""
    cluster = start_cluster("paceline", nannies=(True,) * 4, nthreads=1)
    scheduler, *nannies = cluster.processes
    with Client(cluster.address) as client:
        wait_for_nannies(client, 4)
        futures = client.map(lambda n: time.sleep(0.05), range(4_000), pure=False)
        wait(futures[:20])
        scheduler.terminate()
        for nanny in nannies:
            nanny.popen.wait(timeout=60)
