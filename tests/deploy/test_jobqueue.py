"""dask-jobqueue: its cluster on this machine with `scheduler_cls`, and its runner as Slurm would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy import dataframe_program
from tests.support.real_cluster import IMPORTABLE

pytestmark = [pytest.mark.slow, pytest.mark.integration]
pytest.importorskip("dask.dataframe")
pytest.importorskip("dask_jobqueue")

RUNNER = """
from paceline import takeover
takeover.install()
import sys
from tests.deploy import dataframe_program
from dask.distributed import Client
from dask_jobqueue.slurm import SLURMRunner

options = {"dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
with SLURMRunner(scheduler_file=sys.argv[1], scheduler_options=options) as runner:
    with Client(runner) as client:
        client.wait_for_workers(runner.n_workers)
        print("computed", dataframe_program.run(client), flush=True)
"""


def test_jobqueue_cluster(tmp_path: Path) -> None:
    from dask_jobqueue.local import LocalCluster
    from distributed import Client
    from paceline.scheduler import Scheduler

    with (
        LocalCluster(
            cores=1,
            memory="1 GB",
            scheduler_cls=Scheduler,
            scheduler_options={"dashboard_address": "127.0.0.1:0"},
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.scale(2)
        assert isinstance(cluster.scheduler, Scheduler)
        dataframe_program.run(client)


def test_slurm_runner(tmp_path: Path) -> None:
    """Rank 0 is the scheduler, rank 1 the program, the others workers; ranks and job are Slurm's variables."""
    program = tmp_path / "program.py"
    program.write_text(RUNNER)
    ranks = []
    for rank in range(4):
        slurm = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "SLURM_JOB_ID": "17"}
        ranks.append(
            subprocess.Popen(
                [sys.executable, str(program), str(tmp_path / "scheduler-{job_id}.json")],
                env={**os.environ, **slurm, **IMPORTABLE},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert "computed" in outputs[1], "\n".join(outputs)
    assert [rank.returncode for rank in ranks] == [0, 0, 0, 0], "\n".join(outputs)
