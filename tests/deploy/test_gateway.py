"""dask-gateway: its server with the backend for local processes, and `scheduler_cmd` set to paceline's command.

The gateway starts the scheduler with its preload and options (`--dg-...`) that only this preload defines, with TLS. It sends
requests by HTTP and RPC to start and stop workers.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_cluster import IMPORTABLE, start_process
from tests.support.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(400)]
pytest.importorskip("dask.dataframe")
pytest.importorskip("dask_gateway")
pytest.importorskip("dask_gateway_server")

BIN = Path(sys.executable).parent
SERVER = shutil.which("dask-gateway-server", path=str(BIN))

EXAMPLE = ROOT / "examples" / "deploy" / "dask_gateway_config.py"
CONFIG = """
c.Proxy.address = "127.0.0.1:{port}"
c.UnsafeLocalBackend.clusters_directory = "{folder}"
c.ClusterConfig.worker_cores = 1
c.ClusterConfig.worker_memory = "1 G"
"""


# in a separate process: the gateway's client warns when it is collected after its loop has ended
PROGRAM = """
import sys, time
from tests.deploy import dataframe_program
from dask_gateway import Gateway
from dask_gateway.auth import BasicAuth

with Gateway(sys.argv[1], auth=BasicAuth("anybody")) as gateway, gateway.new_cluster() as cluster:
    cluster.scale(2)
    with cluster.get_client() as client:
        dataframe_program.run(client)
        cluster.scale(1)
        deadline = time.monotonic() + 60
        while len(client.scheduler_info()["workers"]) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        cluster.adapt(minimum=1, maximum=2)
        dataframe_program.run(client, workers=1)
print("finished")
"""
PROGRAM_SECONDS = 250


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[str]:
    """Return the address of a server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    clusters = tmp_path / "clusters"
    clusters.mkdir()
    config = tmp_path / "dask_gateway_config.py"
    config.write_text(EXAMPLE.read_text() + CONFIG.format(port=port, folder=clusters))
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    server = start_process("gateway", [str(SERVER), "-f", str(config)], tmp_path, path)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5):
                    break
            except OSError:
                assert server.running and time.monotonic() < deadline, server.output()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.popen.send_signal(signal.SIGINT)
        server.wait(20)
        print(server.output())
        for log in clusters.rglob("*.log"):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}")


def test_gateway(gateway: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), gateway],
        env={**os.environ, **IMPORTABLE},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
    )
    assert done.returncode == 0 and done.stdout.endswith("finished\n"), done.stdout + done.stderr
