"""Requests that a nanny serves. Stock's table of handlers is in ``nanny.py``, ``Nanny.__init__``.

``run`` and ``get_logs`` are the classes of ``worker_rpc``.

Must not know: who asks, and why.
"""

from __future__ import annotations

from typing import Any

from .base import Request


class NannyInstantiate(Request, frozen=True, kw_only=True, tag="instantiate"):
    """Start the worker. Returns: its status."""


class NannyKill(Request, frozen=True, kw_only=True, tag="kill"):
    """Stop the worker. Returns: None.

    Attributes:
        timeout: seconds.
        reason: for logs.
    """

    timeout: float = 5
    reason: str = "nanny-kill"


class NannyRestart(Request, frozen=True, kw_only=True, tag="restart"):
    """Stop the worker and start it again. Returns: "OK", "timed out" or an error.

    Attributes:
        timeout: seconds.
        reason: for logs.
    """

    timeout: float = 30
    reason: str = "nanny-restart"


class NannyTerminate(Request, frozen=True, kw_only=True, tag="terminate"):
    """Close the nanny and its worker. Returns: "OK".

    Attributes:
        timeout: seconds.
        reason: for logs.
    """

    timeout: float = 5
    reason: str = "nanny-close"


class NannyCloseGracefully(Request, frozen=True, kw_only=True, tag="close_gracefully"):
    """Do not start the worker again when it goes. Returns: None.

    Attributes:
        reason: for logs.
    """

    reason: str = "nanny-close-gracefully"


class NannyPluginAdd(Request, frozen=True, kw_only=True, tag="plugin_add"):
    """Returns: {"status": "OK"} or an error.

    Attributes:
        plugin: a pickle.
        name: what to call it.
    """

    plugin: Any
    name: str | None = None


class NannyPluginRemove(Request, frozen=True, kw_only=True, tag="plugin_remove"):
    """Returns: {"status": "OK"} or an error.

    Attributes:
        name: which.
    """

    name: str


class NannyIdentity(Request, frozen=True, kw_only=True, tag="identity"):
    """Returns: {"type", "id"}."""


class NannyDumpState(Request, frozen=True, kw_only=True, tag="dump_state"):
    """Returns: the nanny's state, for debugging.

    Attributes:
        exclude: attributes to leave out.
    """

    exclude: list[str] = []


class NannyEcho(Request, frozen=True, kw_only=True, tag="echo"):
    """Returns: the same.

    Attributes:
        data: anything.
    """

    data: Any = None


class NannyConnectionStream(Request, frozen=True, kw_only=True, tag="connection_stream"):
    """Turns the connection into a stream.

    Attributes:
        extra: arguments added to each message.
    """

    extra: dict[str, Any] | None = None
