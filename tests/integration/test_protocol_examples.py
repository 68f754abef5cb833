"""Peers built on `paceline.protocol` alone work in real clusters, of the stock scheduler and of paceline."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from operator import add
from pathlib import Path

import pytest

from tests.support.real_cluster import Cluster, Process, start_process
from tests.support.source_tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
EXAMPLES = ROOT / "examples"
PATIENCE_SECONDS = 30.0
#: Configuration in which copies of results stay where they are until they are released.
KEEP_COPIES = {"DASK_DISTRIBUTED__SCHEDULER__ACTIVE_MEMORY_MANAGER__START": "False"}


def start_example(cluster: Cluster, name: str, *options: str) -> Process:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), cluster.address, *options]
    process = start_process(name, command, cluster.folder)
    cluster.processes.append(process)
    return process


def wait_for(what: Callable[[], object], process: Process) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline, process.tail()
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["stock", "paceline"])
def test_worker_and_monitor(kind: str, start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(kind, nannies=(False,), config=KEEP_COPIES)
    worker = start_example(cluster, "worker_on_protocol", "--name", "ours", "--nthreads", "2")
    monitor = start_example(cluster, "monitor", "news", *(["all"] if kind == "paceline" else []))
    cluster.wait_for_workers(2)
    wait_for(lambda: "listening to news" in monitor.output(), monitor)
    with cluster.client() as client:
        infos = client.scheduler_info()["workers"]
        (ours,) = [address for address, info in infos.items() if info["name"] == "ours"]
        (theirs,) = [address for address in infos if address != ours]

        # results are sent in both directions, including those with out-of-band buffers
        import numpy as np

        x = client.submit(np.arange, 1000, workers=ours, key="x")
        y = client.submit(add, x, 1, workers=theirs, key="y")
        z = client.submit(add, y, x, workers=ours, key="z")
        np.testing.assert_array_equal(client.gather(z), 2 * np.arange(1000) + 1)
        assert ours in client.who_has([z])["z"] and theirs in client.who_has([y])["y"]
        assert set(client.who_has([x])["x"]) == {ours, theirs}
        mixed = client.submit(lambda: {"a": [b"x", np.arange(3)], ("b", 1): ()}, workers=theirs)
        assert client.submit(lambda got: got["a"][0] * 2, mixed, workers=ours).result() == b"xx"
        del x, y, z, mixed

        # a chain on any of the workers
        chain = client.submit(lambda i: i, 0, pure=False)
        for _ in range(20):
            chain = client.submit(lambda i: i + 1, chain, pure=False)
        assert chain.result() == 20
        many = client.map(lambda i: i * i, range(200))
        assert client.submit(sum, many).result() == sum(i * i for i in range(200))
        assert {a for where in client.who_has(many).values() for a in where} == {ours, theirs}
        del chain

        # errors, scattered data, functions, copies
        failing = client.submit(lambda: 1 / 0, workers=ours)
        with pytest.raises(ZeroDivisionError):
            failing.result()
        (given,) = client.scatter(["given"], workers=[ours])
        assert client.submit(str.upper, given, workers=theirs).result() == "GIVEN"
        assert client.run(lambda: 7, workers=[ours]) == {ours: 7}
        client.replicate([given], n=2)
        assert set(client.who_has([given])[given.key]) == {ours, theirs}

        # released data is removed there
        del many, failing, given
        wait_for(lambda: not client.has_what()[ours], worker)

        client.log_event("news", {"x": 1})
        wait_for(lambda: 'news {"x": 1}' in monitor.output(), monitor)

        # an unknown request gets an error, and the worker continues
        with pytest.raises(Exception, match="no such operation"):
            client.sync(client.scheduler.broadcast, msg={"op": "get_logs"}, workers=[ours])
        client.retire_workers([ours])
        wait_for(lambda: not worker.running, worker)
        assert list(client.scheduler_info()["workers"]) == [theirs]
    assert worker.popen.returncode == 0, worker.tail()


@pytest.mark.skipif(
    not shutil.which("node") or not shutil.which("npm"), reason="no node, or no npm"
)
def test_javascript_reads_every_vector(tmp_path: Path) -> None:
    """Decode the vectors with a reader written from docs/protocol.md in JavaScript."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "vectors").symlink_to(ROOT / "docs" / "vectors")
    folder = tmp_path / "examples" / "javascript"
    folder.mkdir(parents=True)
    for name in ("package.json", "read.mjs"):  # install nothing into the checkout
        shutil.copy(EXAMPLES / "javascript" / name, folder)
    install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
    installed = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=90)
    if installed.returncode:
        pytest.skip(f"npm cannot install: {installed.stderr[-300:]}")
    command = ["node", "read.mjs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "vectors are read as they should be" in done.stdout
