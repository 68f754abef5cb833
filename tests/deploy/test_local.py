"""Clusters on this machine that a program starts: LocalCluster, SubprocessCluster, SpecCluster of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed import Client
from paceline.scheduler import LocalCluster, Scheduler

from tests.deploy import dataframe_program

pytestmark = [pytest.mark.slow, pytest.mark.integration]
pytest.importorskip("dask.dataframe")


@pytest.mark.parametrize("processes", [True, False])
def test_local_cluster(processes: bool) -> None:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=processes, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        assert isinstance(cluster.scheduler, Scheduler)
        dataframe_program.run(client)


def test_adaptive_local_cluster() -> None:
    with LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0") as cluster:
        cluster.adapt(minimum=1, maximum=2, interval="100ms")
        with Client(cluster) as client:
            dataframe_program.run(client, workers=1)


def test_subprocess_cluster(taken_over: Path) -> None:
    from distributed.deploy.subprocess import SubprocessCluster

    with (
        SubprocessCluster(
            n_workers=2,
            threads_per_worker=1,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"},
        ) as cluster,
        Client(cluster) as client,
    ):
        dataframe_program.run(client)
