"""Other ways to start: former names, distributed's own commands after the takeover, a cluster on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import distributed
import psutil
import pytest
from click.testing import CliRunner
from dask.cli import cli as dask_cli
from distributed.deploy.spec import SpecCluster
from paceline.scheduler import LocalCluster, Scheduler
from paceline.scheduler.server.cli import replace_scheduler
from paceline.scheduler.server.cli.main import main


def test_dask_paceline() -> None:
    import dask.cli

    dask.cli._register_command_ep(
        dask_cli, type("EP", (), {"name": "paceline", "load": staticmethod(lambda: main)})()
    )
    result = CliRunner().invoke(dask_cli, ["paceline", "scheduler", "--version"])
    assert result.exit_code == 0 and "paceline, version" in result.output


def test_scheduler_process_is_identified_by_its_command() -> None:
    assert replace_scheduler.runs_a_scheduler(
        ["python", "-m", "distributed.cli.dask_spec", "--spec", "{}"]
    )
    assert replace_scheduler.runs_a_scheduler(
        ["/bin/python", "/bin/dask", "scheduler", "--port", "0"]
    )
    assert not replace_scheduler.runs_a_scheduler(["python", "program.py", "scheduler"])


@pytest.mark.parametrize("way", ["module", "variable"])
def test_takeover(way: str, tmp_path: object) -> None:
    """A process that imports distributed's class gets paceline's."""
    program = "import distributed, distributed.deploy.local as local; print(local.Scheduler.__mro__[1].__module__)"
    path = os.path.join(str(tmp_path), "named.py")
    with open(path, "w") as file:
        file.write(program)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    if way == "module":
        command = [sys.executable, "-m", "paceline.takeover", "-m", "named"]
    else:
        environment[replace_scheduler.VARIABLE] = "1"
        command = [sys.executable, "-c", f"{replace_scheduler.PTH_TEXT}\n{program}"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert found.stdout.split() == ["paceline.scheduler.server.scheduler"], found.stderr


def test_takeover_for_programs_that_use_distributeds_fixtures() -> None:
    """Third-party test suites use ``gen_cluster``, which reads ``Scheduler._instances``."""
    program = """
from paceline import takeover
takeover.install()
from distributed.utils_test import gen_cluster

@gen_cluster(client=True)
async def test(client, scheduler, *workers):
    assert list(type(scheduler)._instances) == [scheduler] and scheduler.is_replacement
    assert await client.submit(sum, [1, 2]) == 3

test()
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr


async def test_services() -> None:
    """The option ``services=``, and services that preloads add."""
    calls: list[object] = []

    class Service:
        port = 7

        def __init__(self, scheduler: Scheduler, io_loop: object, answer: int) -> None:
            calls.append((io_loop is not None, scheduler.workers, answer))

        def listen(self, address: object) -> None:
            calls.append(address)

        def stop(self) -> None:
            calls.append("stop")
            raise OSError("the close goes on")

    services = {("gateway", ":0"): (Service, {"answer": 42})}
    options = {"host": "127.0.0.1", "port": 0, "dashboard_address": "127.0.0.1:0"}
    async with Scheduler(**options, services=services, service_kwargs={"gateway": {}}) as scheduler:
        assert scheduler.service_ports["gateway"] == 7
        assert scheduler.identity()["services"]["gateway"] == 7
        assert calls == [(True, {}, 42), ("", 0)]
        scheduler.services["added"] = scheduler.services["gateway"]
    assert calls[2:] == ["stop", "stop"] and scheduler.status == distributed.Status.closed


async def test_options_that_have_no_effect(tmp_path: Path) -> None:
    options = {"dashboard_address": ":0", "local_directory": tmp_path, "needs_workdir": False}
    assert Scheduler(**options).status == distributed.Status.init
    with pytest.raises(TypeError, match="serializers"):
        Scheduler(serializers=["msgpack"])


async def test_in_a_spec_cluster() -> None:
    options = {"host": "127.0.0.1", "port": 0, "dashboard_address": "127.0.0.1:0"}
    worker = {"cls": distributed.Worker, "options": {"nthreads": 1, "dashboard_address": ":0"}}
    async with SpecCluster(
        scheduler={"cls": Scheduler, "options": options}, worker=worker, asynchronous=True
    ) as cluster:
        cluster.scale(2)
        await cluster
        async with distributed.Client(cluster, asynchronous=True) as client:
            await client.wait_for_workers(2)
            assert await client.submit(sum, [1, 2]) == 3
        assert cluster.scheduler.status == distributed.Status.running
        cluster.scale(1)
        while len(cluster.scheduler.workers) > 1:
            await asyncio.sleep(0.01)


async def test_contact_address_is_for_workers_only(tmp_path: Path) -> None:
    """The cluster, the scheduler file and the identity have the address of the listener."""
    file = tmp_path / "scheduler.json"
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    options["contact_address"] = "tcp://192.0.2.1:9"
    async with SpecCluster(
        scheduler={"cls": Scheduler, "options": {**options, "scheduler_file": str(file)}},
        asynchronous=True,
    ) as cluster:
        scheduler = cluster.scheduler
        assert scheduler.contact_address == "tcp://192.0.2.1:9"
        assert cluster.scheduler_address == scheduler.address == scheduler.contact_addresses[0]
        assert (
            scheduler.host == "127.0.0.1" and scheduler.identity()["address"] == scheduler.address
        )
        assert json.loads(file.read_text())["address"] == scheduler.address


@pytest.mark.parametrize("problem", ["journal", "port"])
async def test_failed_start_leaves_no_process(problem: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options: dict[str, Any] = {
            "journal": {"journal": str(tmp_path / "missing" / "journal")},
            "port": {"port": taken.getsockname()[1]},
        }[problem]
        before = psutil.Process().children()
        with pytest.raises(OSError):
            await Scheduler(host="127.0.0.1", dashboard=False, compile_in_threads=False, **options)
        assert psutil.Process().children() == before


def test_local_cluster() -> None:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert isinstance(cluster.scheduler, Scheduler)
        assert client.submit(sum, [1, 2]).result() == 3
        assert len(client.scheduler_info()["workers"]) == 2


def test_local_cluster_with_an_unknown_protocol() -> None:
    with pytest.raises(RuntimeError, match="unknown address scheme 'nosuch'"):
        LocalCluster(n_workers=0, protocol="nosuch://", dashboard_address=":0")


async def test_two_at_once() -> None:
    options = {"n_workers": 1, "processes": False, "dashboard_address": ":0", "asynchronous": True}
    async with LocalCluster(**options) as one, LocalCluster(**options) as two:
        assert one.scheduler_address != two.scheduler_address
        for cluster in (one, two):
            async with distributed.Client(cluster, asynchronous=True) as client:
                assert await client.submit(len, "abc") == 3
