"""Futures held by queues, variables and datasets, which are pseudo clients of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.scheduler.core.handlers.clients import client_desires_keys, client_releases_keys

if TYPE_CHECKING:
    from paceline.protocol.keys import Key
    from paceline.scheduler.core.turn import Turn


def desire_keys(turn: Turn, keys: list[Key], holder: str) -> None:
    """Add `keys` to the desired keys of the pseudo client `holder`."""
    client_desires_keys(turn, keys, holder)


def desire_if_known(turn: Turn, key: Any, client: str) -> None:
    """Add `key` to the desired keys of `client`, which received a future of it.

    Do nothing if the task was forgotten or the client was removed in the meantime.
    """
    if key in turn.state.tasks and client in turn.state.clients:
        client_desires_keys(turn, [key], client)


def release_keys(turn: Turn, keys: list[Key], holder: str) -> None:
    """Release `keys` from the pseudo client `holder`; remove the client if it has no keys left."""
    if holder not in turn.state.clients:
        return
    client_releases_keys(turn, keys, holder)
    remove_idle_holder(turn, holder)


def remove_idle_holder(turn: Turn, holder: str) -> None:
    """Remove the pseudo client `holder` if it has no desired keys."""
    state = turn.state.clients.get(holder)
    if state is not None and not state.wants_what:
        del turn.state.clients[holder]


def future_status(turn: Turn, key: Key) -> dict[str, Any]:
    """Return the state of the task `key`, and its error if it failed, for a future of it."""
    ts = turn.state.tasks.get(key)
    if ts is None:
        return {"state": "lost"}
    status: dict[str, Any] = {"state": ts.state}
    if ts.state == "erred" and ts.exception_blame is not None:
        status["exception"] = ts.exception_blame.exception
        status["traceback"] = ts.exception_blame.traceback
    return status
