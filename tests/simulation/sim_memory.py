"""Memory pressure: heartbeats that report it, workers that spill and pause, the memory manager, retirement.

Draws from a separate generator, so that seeds without memory pressure keep their sequence of events.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from paceline.protocol import messages as m
from paceline.scheduler.core.stimuli import MoveReplicas, SetWorkerStatus

if TYPE_CHECKING:
    from tests.simulation.sim_world import World

#: Memory limit of a worker, bytes. Results take up to 100 MB each.
LIMITS_NBYTES = (150_000_000, 400_000_000, 2_000_000_000)
#: Shares of the limit above which data is spilled, and new tasks are paused; stock's defaults.
SPILL, PAUSE = 0.7, 0.8
#: Interval of the manager and of the workers' own checks, seconds.
LOOK_SECONDS = 1.0
#: Maximum number of rounds in which data of a retiring worker is moved; then retirement is cancelled.
ROUNDS_MAX = 6


class Pressure:
    """Memory pressure in one world.

    Args:
        heavy: whether memory runs short; workers report their memory in any case.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = rng = Random(f"{seed}-memory")
        self.heavy = world.hazards and rng.random() < 0.5
        self.limit = rng.choice(LIMITS_NBYTES)
        self._waste: dict[str, int] = {}

    def begin(self) -> None:
        """Enable the features that the seed selects."""
        if not self.heavy:
            return
        self.world.feed(m.AmmHandler(method="start"))
        self.world.later(LOOK_SECONDS, self._look)
        for _ in range(self.rng.choice([0, 1, 3])):
            self.world.later(self.rng.uniform(0, 25), self._retire)
        for _ in range(self.rng.choice([0, 5, 30])):
            self.world.later(self.rng.uniform(0, 25), self._copy)

    def end(self) -> None:
        """Stop all memory events."""
        if self.heavy:
            self.heavy = False
            self.world.feed(m.AmmHandler(method="stop"))

    def metrics(self, worker: Any) -> dict[str, Any]:
        """Return the memory fields of a heartbeat."""
        if not self.heavy:
            return {}
        managed = sum(worker.data.values())
        spilled = max(0, managed - int(SPILL * self.limit))
        waste = self._waste[worker.address] = self.rng.choice(
            [0, 10**6, self.limit // 3, self.limit]
        )
        return {
            "memory": managed - spilled + waste,
            "managed_bytes": managed,
            "spilled_bytes": {"memory": spilled, "disk": spilled // 2},
        }

    def report(self, worker: Any) -> None:
        """Let the nanny of `worker`, which dies, report that it used too much memory, or not."""
        if self.heavy and self.rng.random() < 0.5:
            event = {"worker": worker.address, "pid": 1, "rss": self.limit}
            message = m.LogEventRpc(topic="worker-restart-memory", msg=event)
            self.world.later(self.rng.uniform(0.0, 0.2), self.world.feed, message)

    def _look(self) -> None:
        """Pause and unpause workers according to the memory they last reported."""
        if not self.heavy:
            return
        for worker in list(self.world.workers.values()):
            used = min(sum(worker.data.values()), int(SPILL * self.limit))
            used += self._waste.get(worker.address, 0)
            if worker.status in ("running", "paused") and worker.alive:
                worker.set_status("paused" if used > PAUSE * self.limit else "running")
        self.world.later(LOOK_SECONDS, self._look)

    def _copy(self) -> None:
        """Replicate a random result."""
        state = self.world.state
        stored = [ts for ts in state.tasks.values() if ts.state == "memory"]
        if self.heavy and stored and state.workers:
            goal = self.rng.choice(list(state.workers))
            keys = [ts.key for ts in self.rng.sample(stored, min(len(stored), 3))]
            self.world.feed(MoveReplicas(acquire={goal: keys}))

    def _retire(self) -> None:
        if self.heavy and self.world.state.workers:
            address = self.rng.choice(list(self.world.state.workers))
            self.world.feed(SetWorkerStatus(address, "closing_gracefully"))
            self._move_away(address, ROUNDS_MAX)

    def _move_away(self, address: str, rounds: int) -> None:
        """Move data held only by a worker to others; then remove the worker, or cancel its retirement."""
        state = self.world.state
        ws = state.workers.get(address)
        worker = self.world.workers.get(address)
        if not self.heavy or ws is None or worker is None or not worker.alive:
            return
        alone = [ts.key for ts in ws.has_what if len(ts.who_has) == 1]
        others = [w.address for w in state.workers.values() if w.status == "running"]
        if not alone and not ws.processing:
            self.world.kill(worker, expected=True)
        elif not rounds or not others:
            self.world.feed(SetWorkerStatus(address, "running"))
        else:
            acquire: dict[str, list[Any]] = {}
            for key in alone:
                acquire.setdefault(self.rng.choice(others), []).append(key)
            self.world.feed(MoveReplicas(acquire=acquire))
            self.world.later(LOOK_SECONDS, self._move_away, address, rounds - 1)
