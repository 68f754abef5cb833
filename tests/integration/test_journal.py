"""Journals of real runs replay with the same hash of all outputs under any hash seed, also after a crash."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.programs import dataframes, faults, futures, graphs
from tests.support.real_cluster import IMPORTABLE, Cluster, scheduler_command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def replay(journal: Path, *options: str, seed: str = "0") -> str:
    """Return the output of `paceline replay`."""
    command = [*scheduler_command("paceline"), "replay", str(journal), *options]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "differ" not in done.stdout, done.stdout[-500:]
    return done.stdout


def digest(output: str) -> str:
    found = re.search(r"^Hash of the outputs: (\w+)$", output, re.MULTILINE)
    assert found is not None, output
    return found[1]


@pytest.fixture
def journaled(start_cluster: Callable[..., Cluster], tmp_path: Path) -> tuple[Cluster, Path]:
    journal = tmp_path / "run.journal"
    options = ["--journal", str(journal)]
    return start_cluster("paceline", options=options, config=IMPORTABLE), journal


def test_replays_of_a_run_are_identical(journaled: tuple[Cluster, Path]) -> None:
    cluster, journal = journaled
    with cluster.client() as client:
        for program in (graphs.tree, graphs.bag, futures.scattered, futures.two_clients):
            program(client)
        faults.error_of_a_dependency(client)
        dataframes.merge_by_p2p(client)
        assert client.submit(sum, [1, 2], key="in-the-story").result() == 3
    cluster.close()
    replays = [replay(journal, seed=seed) for seed in ("0", "1", "4711")]
    assert all("The outputs are the same as in the run" in text for text in replays), replays
    digests = set(map(digest, replays))
    assert len(digests) == 1, "outputs depend on the hash seed"
    story = replay(journal, "--key", "in-the-story")
    assert "in-the-story" in story and "processing" in story and "memory" in story
    assert digest(replay(journal, "--until", "5")) not in digests
    assert "ComputeTask" in replay(journal, "--print")


def test_killed_run_replays(journaled: tuple[Cluster, Path]) -> None:
    cluster, journal = journaled
    with cluster.client() as client:
        graphs.merge_slow(client)
        pending = client.map(futures.double, range(500), pure=False)
        cluster.processes[0].popen.kill()
        cluster.processes[0].popen.wait()
        del pending
    one, two = (digest(replay(journal, seed=seed)) for seed in ("1", "2"))
    assert one == two


def test_run_in_which_workers_die_replays(
    start_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    journal = tmp_path / "run.journal"
    config = {**IMPORTABLE, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    options = ["--journal", str(journal)]
    cluster = start_cluster("paceline", options=options, config=config, nannies=(True, True))
    with cluster.client() as client:
        faults.worker_killed_in_the_middle(client)
        faults.task_that_kills_its_worker(client)
        client.restart()
        graphs.tree(client)
    cluster.close()
    assert "The outputs are the same as in the run" in replay(journal, seed="7")
