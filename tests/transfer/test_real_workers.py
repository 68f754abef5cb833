"""The transfer on processes of stock workers, with and without nannies, under paceline: by configuration, and after ``kill -9``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from tests.support.real_cluster import IMPORTABLE, Cluster, scheduler_command

pytestmark = pytest.mark.integration
SIZE = 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transfer")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster whose scheduler configuration names the transfer; workers have no configuration."""
    shared = folder / "shared"
    config = {
        "DASK_PACELINE__TRANSFER__BACKENDS": "shm,file",
        "DASK_PACELINE__TRANSFER__FILE": str(shared),
        **IMPORTABLE,
    }
    with Cluster(
        scheduler_command("paceline"), folder / "c", [True, False, False], 1, config=config
    ) as c:
        yield c


def folders(shared: Path) -> list[Path]:
    return [p for p in shared.glob("*/*") if p.is_dir()]


def test_configuration_and_killed_worker(cluster: Cluster, folder: Path) -> None:
    def traffic(dask_worker: object) -> dict[str, int]:
        backends = dask_worker.plugins["paceline-transfer"].transfer.health.backends  # type: ignore[attr-defined]
        return {name: backend.traffic.put_count for name, backend in backends.items()}

    def renew(dask_worker: object) -> None:
        dask_worker.plugins["paceline-transfer"].transfer.health.renew()  # type: ignore[attr-defined]

    with Client(cluster.address) as client:
        workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
        assert all("memory_domain" in w["metrics"] for w in _info(client).values())
        # computed elsewhere if the memory manager left one replica, on the worker that dies
        elsewhere = {"allow_other_workers": True}
        made = client.submit(np.arange, SIZE, workers=workers[:1], **elsewhere)
        text = client.submit(lambda: b"x" * 3_000_000, workers=workers[:1], **elsewhere)
        sums = [
            client.submit(lambda a, b: int(a[-1]) + len(b), made, text, workers=[w], pure=False)
            for w in workers[1:]
        ]
        assert client.gather(sums) == [SIZE - 1 + 3_000_000] * 2
        put = client.run(traffic)
        assert sum(each["shm"] for each in put.values()) == 1
        assert sum(each["file"] for each in put.values()) >= 1
        assert len(folders(folder / "shared")) == 3

        pid = client.run(os.getpid, workers=workers[:1])[workers[0]]
        os.kill(pid, signal.SIGKILL)
        again = client.submit(lambda a, b: int(a[-1]) + len(b), made, text, pure=False)
        assert again.result(timeout=60) == SIZE - 1 + 3_000_000
        client.run(renew)
        deadline = time.monotonic() + 30
        while len(folders(folder / "shared")) > len(client.scheduler_info(n_workers=-1)["workers"]):
            assert time.monotonic() < deadline, "data of the dead worker is still there"
            client.run(renew)
            time.sleep(0.2)
        del made, text, sums, again
    assert not list(Path("/dev/shm").glob("*paceline*"))


def _info(client: Client) -> dict[str, dict]:
    deadline = time.monotonic() + 20
    while True:
        found = client.scheduler_info(n_workers=-1)["workers"]
        if (
            all("memory_domain" in w["metrics"] for w in found.values())
            or time.monotonic() > deadline
        ):
            return found
        time.sleep(0.1)
