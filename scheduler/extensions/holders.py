"""Futures held by queues, variables and datasets, which are pseudo clients of the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.protocol.keys import Key
from paceline.scheduler.core.handlers.clients import client_desires_keys, client_releases_keys
from paceline.scheduler.core.turn import Turn

from .names import as_key


@dataclass(slots=True, frozen=True)
class Item:
    """An element of a queue, or the content of a variable.

    Attributes:
        is_future: whether ``value`` is the key of a future.
        value: the key, or the value.
    """

    is_future: bool
    value: Any

    @classmethod
    def of(cls, key: Any, data: Any) -> Item:
        """Return the future of `key`, or the value `data` if it is None."""
        return cls(False, data) if key is None else cls(True, as_key(key))

    def is_unknown(self, turn: Turn) -> bool:
        """Return whether this is a future of a task that the scheduler does not know."""
        return self.is_future and self.value not in turn.state.tasks

    def record(self, turn: Turn) -> dict[str, Any]:
        """Return the item in the form of a reply; a future with the state of its task."""
        if not self.is_future:
            return {"type": "msgpack", "value": self.value}
        record = {"type": "Future", "value": self.value, "state": "lost"}
        ts = turn.state.tasks.get(self.value)
        if ts is not None:
            record["state"] = ts.state
            if ts.state == "erred" and ts.exception_blame is not None:
                record["exception"] = ts.exception_blame.exception
                record["traceback"] = ts.exception_blame.traceback
        return record


def desire_if_known(turn: Turn, key: Any, client: str) -> None:
    """Add `key` to the desired keys of `client`, which received a future of it.

    Do nothing if the task was forgotten or the client was removed in the meantime.
    """
    if key in turn.state.tasks and client in turn.state.clients:
        client_desires_keys(turn, [key], client)


def release_keys(turn: Turn, keys: list[Key], holder: str) -> None:
    """Release `keys` from the pseudo client `holder`; remove the client if it has no keys left."""
    client_releases_keys(turn, keys, holder)
    remove_idle_holder(turn, holder)


def remove_idle_holder(turn: Turn, holder: str) -> None:
    """Remove the pseudo client `holder` if it has no desired keys."""
    state = turn.state.clients.get(holder)
    if state is not None and not state.wants_what:
        del turn.state.clients[holder]
