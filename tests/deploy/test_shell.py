"""From a shell: a scheduler by each of its commands, workers, a program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.deploy import dataframe_program
from tests.support.real_cluster import PACELINE, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.integration]
pytest.importorskip("dask.dataframe")

BIN = Path(sys.executable).parent
WAYS = {
    "paceline": PACELINE,
    "dask-scheduler": (str(BIN / "dask-scheduler"),),
    "dask paceline": (sys.executable, "-m", "dask", "paceline"),
    "python -m paceline.scheduler": (sys.executable, "-m", "paceline.scheduler"),
    "the takeover of a module": (
        *(sys.executable, "-m", "paceline.takeover"),
        *("-m", "distributed.cli.dask_scheduler"),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_start_from_shell(way: str, tmp_path: Path) -> None:
    from distributed import Client

    with (
        Cluster(WAYS[way], tmp_path / "cluster", name=way.replace(" ", "-")) as cluster,
        Client(cluster.address, timeout=60) as client,
    ):
        dataframe_program.run(client)


def test_former_module_name_after_takeover(taken_over: Path, tmp_path: Path) -> None:
    """`python -m distributed.cli.dask_scheduler`, as dask-cloudprovider's machines start it."""
    from distributed import Client

    command = (sys.executable, "-m", "distributed.cli.dask_scheduler")
    with (
        Cluster(command, tmp_path / "cluster", name="module") as cluster,
        Client(cluster.address, timeout=60) as client,
    ):
        dataframe_program.run(client)
