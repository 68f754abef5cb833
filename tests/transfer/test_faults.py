"""Backends that are killed, filled and slowed while results move: results are right, each worker warns once, nothing is left."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paceline.transfer import Transfer
from paceline.transfer.redis import connect
from redis.exceptions import OutOfMemoryError

from tests.support.redis_servers import Server, program, redis_server
from tests.support.transfer_cluster import TransferCluster, transfer_cluster

needs_server = pytest.mark.skipif(program() is None, reason="no Redis server is installed")


def slow(fault: str) -> Any:
    """Mark a parameter as slow, because it differs little from the others."""
    return pytest.param(fault, marks=pytest.mark.slow)


SIZE = 50_000
ROUNDS = 4


def make(i: int, *taken: np.ndarray) -> np.ndarray:
    return np.full(SIZE, float(i) + sum(float(each[-1]) for each in taken))


async def work(cluster: TransferCluster, between: Callable[[], None] | None = None) -> None:
    """Run rounds in which each worker combines results of the others; call `between` in the middle."""
    made = [cluster.client.submit(make, i, workers=[str(i % 3)], pure=False) for i in range(6)]
    expected = [float(i) for i in range(6)]
    for number in range(ROUNDS):
        if number == ROUNDS // 2 and between is not None:
            between()
        taken = [(made[i - 1], made[(i + 2) % 6]) for i in range(6)]
        numbers = [expected[i - 1] + expected[(i + 2) % 6] for i in range(6)]
        made = [
            cluster.client.submit(make, i, *taken[i], workers=[str(i % 3)], pure=False)
            for i in range(6)
        ]
        expected = [i + numbers[i] for i in range(6)]
        await cluster.client.gather([cluster.client.submit(len, m, pure=False) for m in made])
    assert [float(each[0]) for each in await cluster.client.gather(made)] == expected


async def nothing_held(cluster: TransferCluster) -> None:
    for _ in range(300):
        gc.collect()
        exchanges = [cluster.transfer(i) for i in range(3)]
        if not any(len(each.published) for each in exchanges):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("something is held still")


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [r for r in caplog.records if r.name == "distributed.worker.transfer"]
    return [r.getMessage() for r in records if r.levelno >= logging.WARNING]


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with redis_server(tmp_path / "redis", memory="40mb") as found:
        yield found


@needs_server
@pytest.mark.parametrize("fault", ["kill", *map(slow, ("pause", "fill", "flush"))])
async def test_redis(server: Server, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {"url": server.url, "timeout_seconds": 0.5}

    def happen() -> None:
        if fault == "fill":
            with pytest.raises(OutOfMemoryError), connect(server.url, 5) as line:
                for number in range(40):
                    line.set(f"other-{number}", bytes(1 << 20))
        elif fault == "flush":
            connect(server.url, 5).flushall()
        elif fault == "pause":
            server.pause()
        else:
            server.kill()

    async with transfer_cluster(Transfer("redis", redis=options, min_nbytes=1000)) as cluster:
        await work(cluster, happen)
        assert cluster.traffic("redis")["got_count"] > 0
        await nothing_held(cluster)
    said = warnings_in(caplog)
    assert len(said) <= 3, "one for each worker"
    if fault in ("kill", "pause"):
        assert said and all("Dask's own transfer is used" in text for text in said)
    if fault == "pause":
        server.resume()
    if fault in ("fill", "flush"):
        assert (server.keys() > 0) == (fault == "fill")


@pytest.mark.parametrize("fault", ["removed", *map(slow, ("full", "slow"))])
async def test_files(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import shutil
    import time

    from paceline.transfer import files

    real = os.pwritev

    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    def slowly(*args: Any) -> int:
        time.sleep(0.05)
        return real(*args)

    def happen() -> None:
        if fault == "removed":
            shutil.rmtree(tmp_path / "shared")
        else:
            monkeypatch.setattr(os, "pwritev", full if fault == "full" else slowly)

    async with transfer_cluster(
        Transfer("file", file=str(tmp_path / "shared"), min_nbytes=1000)
    ) as cluster:
        await work(cluster, happen)
        assert cluster.traffic("file")["got_count"] > 0
        await nothing_held(cluster)
    assert len(warnings_in(caplog)) <= 3
    left = [p for p in (tmp_path / "shared").rglob("*") if p.is_file()]
    assert left == []
    assert files.LEASE


@pytest.mark.parametrize("fault", ["full", slow("no descriptors")])
async def test_shared_memory(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any, **options: Any) -> int:
        raise OSError(24, "Too many open files")

    async with transfer_cluster(Transfer("shm", min_nbytes=1000)) as cluster:
        backends = [cluster.transfer(i).health.backends["shm"] for i in range(3)]

        def happen() -> None:
            if fault == "full":
                for backend in backends:
                    backend._limit_nbytes = SIZE
            else:
                monkeypatch.setattr(os, "memfd_create", refuse)
                for backend in backends:
                    backend._idle_max = 0

        await work(cluster, happen)
        assert cluster.traffic("shm")["got_count"] > 0
        await nothing_held(cluster)
        assert all(not backend._segments for backend in backends)
    assert len(warnings_in(caplog)) <= 3


@pytest.mark.parametrize("fault", ["cut", slow("closed")])
async def test_direct(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    async with transfer_cluster(Transfer("direct", min_nbytes=1000)) as cluster:
        backends = [cluster.transfer(i).health.backends["direct"] for i in range(3)]

        def happen() -> None:
            for backend in backends:
                if fault == "closed":
                    backend.close()
                else:
                    for line in list(backend._open):
                        line.shutdown(2)

        await work(cluster, happen)
        assert cluster.traffic("direct")["got_count"] > 0
        await nothing_held(cluster)
        assert all(not backend._offered for backend in backends)
    assert len(warnings_in(caplog)) <= 3
