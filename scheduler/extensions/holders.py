"""Futures that shared things hold: a queue, a variable or a dataset is a client with wishes of its own.

Must not know: which machine asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.scheduler.core.handlers.clients import client_desires_keys, client_releases_keys

if TYPE_CHECKING:
    from paceline.protocol.keys import Key
    from paceline.scheduler.core.turn import Turn


def hold(turn: Turn, keys: list[Key], holder: str) -> None:
    """The holder wants these keys."""
    client_desires_keys(turn, keys, holder)


def hold_if_known(turn: Turn, key: Any, client: str) -> None:
    """A client that got a future wants its key. A key that was forgotten meanwhile stays forgotten, and so
    does a client that left."""
    if key in turn.state.tasks and client in turn.state.clients:
        client_desires_keys(turn, [key], client)


def let_go(turn: Turn, keys: list[Key], holder: str) -> None:
    """The holder no longer wants these keys; a holder that wants nothing is no longer a client."""
    if holder not in turn.state.clients:
        return
    client_releases_keys(turn, keys, holder)
    drop_idle(turn, holder)


def drop_idle(turn: Turn, holder: str) -> None:
    """A holder that wants nothing is no client."""
    state = turn.state.clients.get(holder)
    if state is not None and not state.wants_what:
        del turn.state.clients[holder]


def future_status(turn: Turn, key: Key) -> dict[str, Any]:
    """What a peer needs to know to make a future of this key: its task's state, and the error of an erred one."""
    ts = turn.state.tasks.get(key)
    if ts is None:
        return {"state": "lost"}
    status: dict[str, Any] = {"state": ts.state}
    if ts.state == "erred" and ts.exception_blame is not None:
        status["exception"] = ts.exception_blame.exception
        status["traceback"] = ts.exception_blame.traceback
    return status
