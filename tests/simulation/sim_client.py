"""A model of the stock client: it holds futures and updates them from the scheduler's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.protocol import messages as m

if TYPE_CHECKING:
    from tests.simulation.sim_world import World


class ModelClient:
    """A client of the simulation.

    Attributes:
        futures: key -> "pending", "finished", "error", "lost" or "cancelled".
        alive: connected.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.futures: dict[Any, str] = {}
        self.alive = True

    # -- messages from the scheduler

    def receive(self, message: Any) -> None:
        kind = type(message)
        if kind is m.CancelledKeys:
            for key in message.keys:
                self._believe(key, "cancelled")
        elif kind is m.Restart:
            for key in self.futures:
                self.futures[key] = "cancelled"
        else:
            status = SAYS.get(kind)
            if status is not None:
                self._believe(message.key, status)

    def _believe(self, key: Any, status: str) -> None:
        if key in self.futures and self.futures[key] != "cancelled":
            self.futures[key] = status

    # -- actions

    def submit(self, graph: dict[Any, list[Any]], want: list[Any]) -> None:
        for key in want:
            self.futures[key] = "pending"
        self.world.submits(self, graph, want)

    def desire(self, keys: list[Any]) -> None:
        for key in keys:
            self.futures.setdefault(key, "pending")
        self.world.from_client(self, m.ClientDesiresKeys(keys=keys, client=self.name))

    def release(self, keys: list[Any]) -> None:
        for key in keys:
            self.futures.pop(key, None)
        if keys:
            self.world.from_client(self, m.ClientReleasesKeys(keys=keys, client=self.name))

    def fire_and_forget(self, keys: list[Any]) -> None:
        """Desire `keys` as the client ``fire-and-forget``, and release the futures of this client."""
        self.world.from_client(self, m.ClientDesiresKeys(keys=keys, client="fire-and-forget"))
        self.release(keys)

    def cancel(self, keys: list[Any], force: bool) -> None:
        self.world.from_client(
            self, m.CancelKeys(keys=keys, force=force, reason="cancelled", client=self.name)
        )
        # the futures are garbage-collected first and released later, as in stock
        self.release(keys)


#: State of a future after a message.
SAYS: dict[type[Any], str] = {
    m.KeyInMemory: "finished",
    m.TaskErredReport: "error",
    m.LostData: "lost",
    m.TaskRetried: "pending",
}
