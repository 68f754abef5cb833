"""Whole clusters, simulated: whatever a seed draws, the invariants hold, and what is wanted settles.

`SIMULATION_SEEDS=1000:3000 pytest tests/simulation` tries others than CI does. A seed that fails is tried again by
`SIMULATION_SEEDS=77:78`; what happened last is shown with it. `pytest -m slow tests/simulation` (and `make test-all`) plays
2,000 of them under two hash seeds and compares what the core gave.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.sim_world import World

FIRST, LAST = map(int, os.environ.get("SIMULATION_SEEDS", "0:200").split(":"))
#: So many seeds make a test.
BLOCK = 10
#: The long run, of `-m slow`: so many seeds under two hash seeds, and how long it may take in all (seconds).
LONG_SEEDS, LONG_SECONDS = 2_000, 3_600
#: So many seeds are played with stock's own worker state machine.
STOCK_SEEDS = 40
#: Of a seed that fails, so many lines are shown.
LINES_SHOWN = 60

ROOT = Path(__file__).parents[2]


def run(seed: int, hazards: bool = True) -> str:
    """One seed to its end; returns the digest of all that the core gave."""
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


def test_without_hazards_everything_is_computed() -> None:
    for seed in range(10):
        run(seed, hazards=False)


def test_same_seed_same_outputs_whatever_the_hash_seed() -> None:
    assert len({digests(8, hash_seed, 100) for hash_seed in ("0", "1", "12345")}) == 1


@pytest.mark.slow
@pytest.mark.timeout(LONG_SECONDS)
def test_two_thousand_seeds_settle_the_same_under_two_hash_seeds() -> None:
    """Losses, steals, retirement and memory that runs short; invariants are on in all of them."""
    first, second = (digests(LONG_SEEDS, seed, LONG_SECONDS) for seed in ("0", "12345"))
    assert first == second and len(first.splitlines()) == LONG_SEEDS


def digests(seeds: int, hash_seed: str, timeout: float) -> str:
    """Of the first seeds, a line each, played in a process with this hash seed."""
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


def test_with_the_state_machine_of_stock_workers() -> None:
    """Nothing that the scheduler asks for is a surprise to a stock worker. In a process of its own, because stock's
    choices depend on the hash seed.
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
