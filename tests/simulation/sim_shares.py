"""Share groups in a simulation: random weights, priority classes and caps, and checks of what the core sends."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from paceline.protocol import messages as m
from paceline.scheduler.core.state.model import TaskState
from paceline.scheduler.core.stealing.priorities import is_restricted, steal_rank
from paceline.scheduler.core.stimuli import RecallTask, SetShare
from paceline.scheduler.core.turn import Outbox

if TYPE_CHECKING:
    from tests.simulation.sim_world import World

#: Caps that a seed may set; -1 removes a cap.
CAPS: dict[str, list[float]] = {
    "threads": [0, 1, 2, 4],
    "tasks": [0, 1, 3],
    "memory": [0, 1000, 10**8],
}


class ShareSettings:
    """Settings of the share groups of a seed, and their changes. Its own random numbers keep those of the world.

    Attributes:
        clients: client -> group, for the configuration.
        groups: group -> settings, for the configuration.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = Random(f"shares {seed}")
        self.clients: dict[str, str] = {}
        self.groups: dict[str, dict[str, float]] = {}
        kind = self.rng.random()
        if kind < 0.2:
            self.clients["*"] = "all"
        elif kind < 0.4:
            self.clients["c[02]"] = "even"
        if self.rng.random() < 0.5:
            self.groups = {name: self._draw() for name in ("all", "even", "c0", "c1")}

    def _draw(self) -> dict[str, float]:
        rng = self.rng
        settings: dict[str, float] = {
            "weight": rng.choice([0.1, 1, 4]),
            "class": rng.choice([0, 0, 1]),
        }
        if rng.random() < 0.4:
            cap = rng.choice(list(CAPS))
            settings[cap] = rng.choice(CAPS[cap])
        return settings

    def begin(self) -> None:
        """Schedule changes at run time."""
        for _ in range(self.rng.choice([0, 0, 4])):
            self.world.later(self.rng.uniform(0, 25), self._change)

    def _change(self) -> None:
        if self.world.faults:
            name = self.rng.choice([*self.world.state.shares.groups, "all"])
            self.world.feed(SetShare(name, self._draw()))

    def end(self) -> None:
        """Remove all caps, so that all tasks can run."""
        for name in list(self.world.state.shares.groups):
            self.world.feed(SetShare(name, dict.fromkeys(CAPS, -1.0)))

    def check(self, cause: Any, outbox: Outbox) -> None:
        """Check what a turn sent: no cap is exceeded, and no task is stolen before one of a higher priority."""
        state = self.world.state
        for share in state.shares.groups.values():
            if share.max_tasks >= 0:
                assert share.n_processing <= max(share.max_tasks, share.tasks_over), share
            if share.max_threads >= 0:
                assert share.n_threads <= max(share.max_threads, share.threads_over), share
        for messages in outbox.workers.values():
            for message in messages:
                ts = state.tasks.get(message.key) if hasattr(message, "key") else None
                if ts is None or ts.state != "processing":
                    continue
                if type(message) is m.ComputeTask:
                    share = ts.account.share
                    is_full = 0 <= share.max_nbytes <= share.nbytes
                    assert not is_full or share.n_processing <= 1, (
                        f"{share} is at its cap of memory"
                    )
                    self._check_order(ts)
                elif type(message) is m.StealRequest and type(cause) is not RecallTask:
                    self._check_steal(ts)

    def _check_order(self, ts: TaskState) -> None:
        share = ts.account.share
        queued = self.world.state.queued
        if not share.n_queued or share.is_capped or self.world.state.admission.is_short:
            return  # tasks that there is no memory for are passed over
        queue = queued.queues[share]
        first = min(steal_rank(other) for other in queue)
        now = self.world.state.transition_log[-1][4]
        ready = [e[0] for e in self.world.state.transition_log if e[4] == now and e[2] == "queued"]
        waiting = [
            other
            for other in queue
            if steal_rank(other) == first
            and not isinstance(queued.place(other), tuple)  # restricted to some workers
            and other.key not in ready
        ]
        assert not waiting or first >= steal_rank(ts), f"{ts} was sent before {waiting[0]}"

    def _check_steal(self, ts: TaskState) -> None:
        steal = self.world.state.stealing.live(ts)
        if steal is None or steal.thief is None:
            return
        ws = steal.victim
        for other in ws.processing:
            begun = other in ws.executing or other in ws.long_running
            kept = (
                not begun
                and not is_restricted(other)
                and other not in self.world.state.stealing.in_flight
            )
            if not kept:
                continue
            (rank, priority), (other_rank, other_priority) = steal_rank(ts), steal_rank(other)
            same_group = other.account.share is ts.account.share
            assert other_rank >= rank, f"{ts} is stolen and {other}, of a higher class, is not"
            assert not same_group or other_priority >= priority, f"{ts} is stolen before {other}"
