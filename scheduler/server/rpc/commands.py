"""Requests that change the state of the cluster in one turn of the core.

Requests that an extension machine takes as they are need no handler here: ``Server`` asks the core itself.

Must not know: what the core makes of them.
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.messages import scheduler_rpc as r
from paceline.scheduler.core import queries, stimuli

from .base import Handler, PeerPort, ServerPort


def handle_retry(server: ServerPort, request: r.Retry, peer: PeerPort) -> Any:
    """Erred tasks run again. The keys that were touched."""
    return server.ask(stimuli.RetryKeys(request.keys, request.client or ""), request.client or "")


def handle_set_restrictions(
    server: ServerPort, request: r.SetRestrictions, peer: PeerPort
) -> None:
    """Where tasks may run from now on."""
    server.tell(stimuli.SetRestrictions(request.worker))


def handle_set_resources(server: ServerPort, request: r.SetResources, peer: PeerPort) -> str:
    """What a worker has to offer."""
    server.tell(request, queries.coerce_address(server.state, request.worker))
    return "OK"


def handle_add_keys(server: ServerPort, request: r.AddKeysRpc, peer: PeerPort) -> str:
    """A worker holds further copies."""
    address = queries.coerce_address(server.state, request.worker)
    if address not in server.state.workers:
        return "not found"
    server.tell(stimuli.ReplicasAdded(address, request.keys), address, request.stimulus_id)
    return "OK"


def handle_get_metadata(server: ServerPort, request: r.GetMetadata, peer: PeerPort) -> Any:
    """What is stored under a path of keys."""
    default = queries.NO_DEFAULT if request.default == "__no_default__" else request.default
    return queries.get_metadata(server.state, request.keys, default)


def handle_set_metadata(server: ServerPort, request: r.SetMetadata, peer: PeerPort) -> None:
    """Store something under a path of keys, or under one."""
    keys = request.keys if isinstance(request.keys, list | tuple) else [request.keys]
    server.tell(stimuli.SetMetadata(list(keys), request.value))


def handle_echo(server: ServerPort, request: r.Echo, peer: PeerPort) -> Any:
    """The same again."""
    return request.data


HANDLERS: dict[type, Handler] = {
    r.Retry: handle_retry,
    r.SetRestrictions: handle_set_restrictions,
    r.SetResources: handle_set_resources,
    r.AddKeysRpc: handle_add_keys,
    r.GetMetadata: handle_get_metadata,
    r.SetMetadata: handle_set_metadata,
    r.Echo: handle_echo,
}
