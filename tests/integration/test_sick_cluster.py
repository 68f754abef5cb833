"""A dump of a cluster with stopped or dead workers contains those that reply, names the others, and does not hang."""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import yaml
from distributed import Client

from tests.support.real_cluster import Cluster, Process

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

CONFIG = {"DASK_PACELINE__SCHEDULER__DUMP_TIMEOUT": "1s"}


@contextlib.contextmanager
def standing_still(process: Process) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def read(path: Path) -> dict[str, Any]:
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            return dict(msgpack.unpack(file))
    return dict(yaml.load(path.read_text(), Loader=yaml.CSafeLoader))


def test_dump_of_a_sick_cluster(tmp_path: Path, start_cluster: Callable[..., Cluster]) -> None:
    """Dump in both formats, locally and by the scheduler, with a stopped and a killed worker."""
    cluster = start_cluster("paceline", nannies=(False, False, False), config=CONFIG)
    _, well, still, dead = cluster.processes
    with Client(cluster.address) as client:
        named = {ws["name"]: a for a, ws in client.scheduler_info(n_workers=-1)["workers"].items()}
        with standing_still(still):
            dead.kill()
            dead.popen.wait()
            for number, options in enumerate(
                (
                    {"format": "msgpack"},
                    {"format": "yaml"},
                    {"format": "msgpack", "write_from_scheduler": True},
                    {"format": "yaml", "write_from_scheduler": True},
                )
            ):
                place = f"file://{tmp_path}/{number}"
                client.dump_cluster_state(place, **options)
                (path,) = tmp_path.glob(f"{number}.*")
                state = read(path)
                workers = state["workers"]
                assert isinstance(workers[named[well.name]], dict)
                assert "TimeoutError" in workers[named[still.name]]
                # killed: removed from the state already, or listed with its error
                assert isinstance(workers.get(named[dead.name], ""), str)
                assert named[well.name] in state["versions"]["workers"]
                assert named[still.name] not in state["versions"]["workers"]
                assert state["scheduler"]["workers"][named[still.name]]["status"] == "running"
        assert client.submit(pow, 2, 3, workers=[well.name]).result(timeout=30) == 8


async def test_dump_to_fsspec_memory() -> None:
    """The scheduler writes to any file system of fsspec."""
    import fsspec
    from paceline.scheduler.server.scheduler import Scheduler

    async with (
        Scheduler(port=0, host="127.0.0.1", dashboard=False) as scheduler,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        await client.dump_cluster_state("memory://dumps/one", write_from_scheduler=True)
        with fsspec.open("memory://dumps/one.msgpack.gz", compression="infer") as file:
            state = msgpack.unpack(file)
        assert state["scheduler"]["address"] == scheduler.address
        with pytest.raises(ValueError, match="nosuchscheme"):
            await client.dump_cluster_state("nosuchscheme://x/y")
