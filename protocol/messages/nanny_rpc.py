"""Requests to a nanny. Stock's handlers are listed in ``Nanny.__init__``.

A nanny also handles ``run`` and ``get_logs``, whose classes are in ``worker_rpc``.
"""

from typing import Any

from .base import Request


class NannyInstantiate(Request, frozen=True, kw_only=True, tag="instantiate"):
    """Start the worker process. Returns: its status."""


class NannyKill(Request, frozen=True, kw_only=True, tag="kill"):
    """Stop the worker process. Returns: None."""

    timeout: float = 5
    reason: str = "nanny-kill"


class NannyRestart(Request, frozen=True, kw_only=True, tag="restart"):
    """Stop the worker process and start it again. Returns: "OK", "timed out" or an error."""

    timeout: float = 30
    reason: str = "nanny-restart"


class NannyTerminate(Request, frozen=True, kw_only=True, tag="terminate"):
    """Close the nanny and its worker. Returns: "OK"."""

    timeout: float = 5
    reason: str = "nanny-close"


class NannyCloseGracefully(Request, frozen=True, kw_only=True, tag="close_gracefully"):
    """Keep the nanny from restarting the worker when it closes. Returns: None."""

    reason: str = "nanny-close-gracefully"


class NannyPluginAdd(Request, frozen=True, kw_only=True, tag="plugin_add"):
    """Register a plugin on the nanny. Returns: {"status": "OK"} or an error."""

    plugin: Any
    name: str | None = None


class NannyPluginRemove(Request, frozen=True, kw_only=True, tag="plugin_remove"):
    """Remove a plugin from the nanny. Returns: {"status": "OK"} or an error."""

    name: str


class NannyIdentity(Request, frozen=True, kw_only=True, tag="identity"):
    """Get the type and ID of the nanny. Returns: {"type", "id"}."""
