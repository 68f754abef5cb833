"""Simulations in which the core is replaced by what a snapshot of it leads to, as after a death of its process.

The core then sends the same as without snapshots. `pytest -m slow tests/simulation` replaces it after every turn of
`LONG_SEEDS` seeds.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
from paceline.scheduler.server.durable import snapshot

from tests.simulation.sim_world import World

#: Seeds, and the number of turns between snapshots.
SHORT = [(seed, 1) for seed in (0, 1, 19)] + [(seed, 29) for seed in range(20, 30)]
#: The long run of `-m slow`: number of seeds, and the timeout of a block of them (seconds).
LONG_SEEDS, BLOCK, BLOCK_SECONDS = 300, 20, 1_800


def continued(root: Any) -> Any:
    """Return an object as it is after a snapshot was written and read."""
    file = io.BytesIO()
    snapshot.write(file, root, {})
    return snapshot.read(file)[0]


class SnapshotWorld(World):
    """A world whose core is replaced every few turns.

    Args:
        every: number of turns between snapshots.
    """

    def __init__(self, seed: int, every: int) -> None:
        super().__init__(seed)
        self._every = every

    def feed(self, message: Any, source: str = "") -> None:
        super().feed(message, source)
        if self.turns % self._every == 0:
            self.core = continued(self.core)
            self.core.register_handlers()
            self.core.state.plugins = None
            self.state = self.core.state


@pytest.mark.parametrize(("seed", "every"), SHORT)
def test_core_goes_on_after_snapshots(seed: int, every: int) -> None:
    assert SnapshotWorld(seed, every).run() == World(seed).run()


@pytest.mark.slow
@pytest.mark.timeout(BLOCK_SECONDS)
@pytest.mark.parametrize("first", range(0, LONG_SEEDS, BLOCK))
def test_snapshot_after_every_turn(first: int) -> None:
    for seed in range(first, first + BLOCK):
        assert SnapshotWorld(seed, 1).run() == World(seed).run(), seed
