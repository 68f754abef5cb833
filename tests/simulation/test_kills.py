"""Simulations in which the scheduler process dies in every turn, and is continued from a standby and the log.

A death is simulated by what it leaves: the standby, which is read from a snapshot, and the records of the log since then.
What the core sends must be the same as without deaths. `pytest -m slow tests/simulation` lets it die in every turn of
`LONG_SEEDS` seeds.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from paceline.protocol.connection import Connection
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.stimuli import Stimulus
from paceline.scheduler.core.turn import Outbox
from paceline.scheduler.server.durable.channel.progress import Progress
from paceline.scheduler.server.durable.log import segments as log_module
from paceline.scheduler.server.durable.log.recorder import LogRecorder
from paceline.scheduler.server.durable.log.segments import Log, Position, remove_segments
from paceline.scheduler.server.durable.recovery.replay import RecordedState, Replay, RunStart
from paceline.scheduler.server.durable.standby import snapshot

from tests.simulation.sim_world import World

#: Seeds, and the number of turns between standbys.
SHORT = ((0, 1), (1, 9), (19, 100))
#: The long run of `-m slow`: number of seeds, and the timeout of a block of them (seconds).
LONG_SEEDS, BLOCK, BLOCK_SECONDS = 300, 20, 1_800
#: Size of a segment of the log, so that there are several.
SEGMENT_NBYTES = 64 * 2**10


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "SEGMENT_NBYTES", SEGMENT_NBYTES)


class MortalCore:
    """The core of a scheduler process that dies in each turn.

    In every other turn it dies before the turn is in the log, so that the successor handles the stimulus again. In the
    others it dies before the output is sent, so that the successor sends it.

    Args:
        world: the simulation.
        folder: contains the log.
        every: number of turns between standbys.

    Attributes:
        deaths: how often the process died.
    """

    def __init__(self, world: World, folder: Path, every: int) -> None:
        self.core: SchedulerCore = world.core
        self.deaths = 0
        self._world = world
        self._folder = folder
        self._every = every
        self._turns = 0
        self._progress = Progress()
        self._start = RunStart("1", self.core.state.config, "id", 0.0)
        self._open(Log(folder))
        self._recorder.stimulus(Stimulus("", None, ""), 0.0)  # begins the first segment
        self._recorder.commit()
        self._fork_standby(0.0)

    def _open(self, log: Log) -> None:
        self._log = log
        self._recorder = LogRecorder(log, self._progress)

    def _fork_standby(self, now: float) -> None:
        file = io.BytesIO()
        snapshot.write(file, RecordedState(self._start, self.core, now=now), {})
        self._standby = file
        self._position: Position = self._log.position
        remove_segments(self._folder, self._position.segment)
        self._log.forget_old()

    def _die(self) -> Outbox:
        """Let a successor continue. Return the output that is not sent."""
        self.deaths += 1
        recorded, _ = snapshot.read(self._standby)
        recorded.core.register_handlers()
        recorded.core.state.plugins = None
        log = Log(self._folder, self._position)
        replay = Replay({}, lambda: Connection("listener"), recorded)
        for record in log:
            replay.record(record)
        assert recorded.n_errors == 0
        self._open(log)
        self.core = recorded.core
        self._world.state = self.core.state
        return recorded.outbox

    def handle(self, stimulus: Stimulus, now: float) -> Outbox:
        """Handle one stimulus in a process that dies. Return the output, which its successor sends."""
        self._turns += 1
        outbox = self.core.handle(stimulus, now)
        dies_early = self._turns % 2
        if dies_early:
            self._die()
            outbox = self.core.handle(stimulus, now)
        self._recorder.stimulus(stimulus, now)
        self._recorder.commit()
        if not dies_early:
            outbox = self._die()
        self._recorder.flushed()
        self._recorder.commit()
        if self._turns % self._every == 0:
            self._fork_standby(now)
        return outbox


def run(seed: int, folder: Path, every: int) -> tuple[str, str]:
    """Run a simulation with and without deaths. Return the digests of what the core sent."""
    folder.mkdir()
    mortal, immortal = World(seed), World(seed)
    core: Any = MortalCore(mortal, folder, every)
    mortal.core = core
    digests = mortal.run(), immortal.run()
    assert core.deaths == immortal.turns == mortal.turns
    return digests


@pytest.mark.parametrize(("seed", "every"), SHORT)
def test_core_goes_on_after_deaths(seed: int, every: int, tmp_path: Path) -> None:
    with_deaths, without = run(seed, tmp_path / "log", every)
    assert with_deaths == without


@pytest.mark.slow
@pytest.mark.timeout(BLOCK_SECONDS)
@pytest.mark.parametrize("first", range(0, LONG_SEEDS, BLOCK))
def test_death_in_every_turn(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + BLOCK):
        with_deaths, without = run(seed, tmp_path / str(seed), every=1 + seed % 16)
        assert with_deaths == without, seed
