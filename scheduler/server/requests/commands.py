"""Requests that change the core's state in one turn."""

from __future__ import annotations

from typing import Any

from paceline.protocol import messages as r
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.inspection import queries

from .api import Handler, PeerApi, ServerApi


def handle_retry(server: ServerApi, request: r.Retry, peer: PeerApi) -> Any:
    """Run erred tasks again. Return the keys of the tasks that were released for it."""
    return server.request(
        stimuli.RetryKeys(request.keys, request.client or ""), request.client or ""
    )


def handle_set_restrictions(server: ServerApi, request: r.SetRestrictions, peer: PeerApi) -> None:
    """Set the workers on which tasks may run."""
    server.send_stimulus(stimuli.RestrictionsSet(request.worker))


def handle_set_resources(server: ServerApi, request: r.SetResources, peer: PeerApi) -> str:
    """Set the resources of a worker."""
    server.send_stimulus(request, queries.coerce_address(server.state, request.worker))
    return "OK"


def handle_add_keys(server: ServerApi, request: r.AddKeysRpc, peer: PeerApi) -> str:
    """Record that a worker holds further replicas."""
    address = queries.coerce_address(server.state, request.worker)
    if address not in server.state.workers:
        return "not found"
    server.send_stimulus(stimuli.ReplicasAdded(address, request.keys), address, request.stimulus_id)
    return "OK"


def handle_set_metadata(server: ServerApi, request: r.SetMetadata, peer: PeerApi) -> None:
    """Store a value at ``request.keys``, a path of keys or one key."""
    keys = request.keys if isinstance(request.keys, list | tuple) else [request.keys]
    server.send_stimulus(stimuli.MetadataSet(list(keys), request.value))


HANDLERS: dict[type, Handler] = {
    r.Retry: handle_retry,
    r.SetRestrictions: handle_set_restrictions,
    r.SetResources: handle_set_resources,
    r.AddKeysRpc: handle_add_keys,
    r.SetMetadata: handle_set_metadata,
}
