"""Journals of real runs replay: the same hash of all outputs under any hash seed, after a crash too.

It must not know the format of a journal; it uses the command as a user would.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import faults, futures, graphs
from real_cluster import Cluster, scheduler_command

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

IMPORTABLE = {"PYTHONPATH": str(Path(__file__).parent)}


def replay(journal: Path, *options: str, seed: str = "0") -> str:
    """What `paceline replay` prints."""
    command = [*scheduler_command("paceline"), "replay", str(journal), *options]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def digest(output: str) -> str:
    found = re.search(r"^outputs (\w+)$", output, re.MULTILINE)
    assert found is not None, output
    return found[1]


@pytest.fixture
def journaled(start_cluster: Callable[..., Cluster], tmp_path: Path) -> tuple[Cluster, Path]:
    journal = tmp_path / "run.journal"
    options = ["--journal", str(journal)]
    return start_cluster("paceline", options=options, config=IMPORTABLE), journal


def test_a_run_replays_alike(journaled: tuple[Cluster, Path]) -> None:
    cluster, journal = journaled
    with cluster.client() as client:
        for program in (graphs.tree, graphs.bag, futures.scattered, futures.two_clients):
            program(client)
        faults.error_of_a_dependency(client)
        assert client.submit(sum, [1, 2], key="told-of").result() == 3
    cluster.close()
    digests = {digest(replay(journal, seed=seed)) for seed in ("0", "1", "4711")}
    assert len(digests) == 1, "the hash seed shows in the outputs"
    story = replay(journal, "--key", "told-of")
    assert "told-of" in story and "processing" in story and "memory" in story
    assert digest(replay(journal, "--until", "5")) not in digests
    assert "compute-task" in replay(journal, "--print").lower() or "ComputeTask" in replay(
        journal, "--print"
    )


def test_a_run_that_was_killed_replays(journaled: tuple[Cluster, Path]) -> None:
    cluster, journal = journaled
    with cluster.client() as client:
        graphs.merge_slow(client)
        pending = client.map(futures.double, range(500), pure=False)
        cluster.processes[0].popen.kill()
        cluster.processes[0].popen.wait()
        del pending
    one, two = (digest(replay(journal, seed=seed)) for seed in ("1", "2"))
    assert one == two
