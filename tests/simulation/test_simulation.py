"""Simulations of whole clusters: for any seed the invariants hold and all desired tasks settle.

`SIMULATION_SEEDS=1000:3000 pytest tests/simulation` runs other seeds than CI does. Reproduce a failing seed with
`SIMULATION_SEEDS=77:78`; its last turns are printed. `pytest -m slow tests/simulation` (and `make test-all`) runs
2,000 seeds under two hash seeds and compares what the core sent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.sim_world import World

FIRST, LAST = map(int, os.environ.get("SIMULATION_SEEDS", "0:200").split(":"))
#: Number of seeds per test.
BLOCK = 10
#: The long run of `-m slow`: number of seeds under two hash seeds, and its total timeout (seconds).
LONG_SEEDS, LONG_SECONDS = 2_000, 3_600
#: Number of seeds that run with stock's own worker state machine.
STOCK_SEEDS = 40
#: Number of lines to print of a failing seed.
LINES_SHOWN = 60

ROOT = Path(__file__).parents[2]


def run(seed: int, hazards: bool = True) -> str:
    """Run one seed to its end; return the digest of all that the core sent."""
    world = World(seed, hazards=hazards)
    try:
        return world.run()
    except Exception as error:
        error.add_note(f"seed {seed}; last of all:\n" + "\n".join(world.story[-LINES_SHOWN:]))
        raise


@pytest.mark.parametrize("first", range(FIRST, LAST, BLOCK))
def test_seeds(first: int) -> None:
    for seed in range(first, min(first + BLOCK, LAST)):
        run(seed)


def test_all_tasks_are_computed_without_hazards() -> None:
    for seed in range(10):
        run(seed, hazards=False)


def test_tasks_whose_worker_died_of_memory_get_a_whole_worker() -> None:
    """With the invariants checked: a reserved worker runs one task, and all tasks end."""
    n_sent = 0
    for seed in range(30):
        world = World(seed)
        world.run()
        n_sent += world.state.whole_workers.sent_count
        assert not world.state.whole_workers.reserved
    assert n_sent > 0


def test_outputs_do_not_depend_on_hash_seed() -> None:
    assert len({digests(8, hash_seed, 100) for hash_seed in ("0", "1", "12345")}) == 1


@pytest.mark.slow
@pytest.mark.timeout(LONG_SECONDS)
def test_two_thousand_seeds_under_two_hash_seeds() -> None:
    """Test losses, steals, retirement and memory pressure, with invariants checked in all seeds."""
    first, second = (digests(LONG_SEEDS, seed, LONG_SECONDS) for seed in ("0", "12345"))
    assert first == second and len(first.splitlines()) == LONG_SEEDS


def digests(seeds: int, hash_seed: str, timeout: float) -> str:
    """Run the first seeds in a process with this hash seed, and return a line for each."""
    program = (
        "from tests.simulation.sim_world import World\n"
        f"for seed in range({seeds}): print(seed, World(seed).run(), flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, f"after {done.stdout.splitlines()[-1:]}: {done.stderr[-3000:]}"
    return done.stdout


def test_stock_worker_state_machine() -> None:
    """The scheduler sends nothing that a stock worker rejects.
    Runs in a child process, because stock's choices depend on the hash seed.
    """
    program = (
        "from tests.simulation.sim_world import World\n"
        "from tests.simulation.sim_stock_worker import StockWorker\n"
        f"for seed in range({STOCK_SEEDS}): print(seed, flush=True); World(seed, StockWorker).run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    seed = done.stdout.split()[-1:]
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-3000:]}"
