"""Requests that change the state of the core with one stimulus."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.inspection.share_report import share_report
from paceline.scheduler.core.state.addresses import coerce_address
from paceline.scheduler.server.peers.peer import Peer
from paceline.scheduler.server.server_api import Handler, ServerApi
from paceline.workers_compat import errors


def handle_set_metadata(server: ServerApi, request: m.SetMetadata, peer: Peer) -> None:
    """Store a value at ``request.keys``, a path of keys or one key.

    Raises:
        IndexError: the path is empty.
        TypeError: a part of it is not hashable.
    """
    keys = request.keys if isinstance(request.keys, list | tuple) else [request.keys]
    if not keys:
        raise IndexError("set_metadata needs at least one key")
    hash(tuple(keys))
    server.send_stimulus(stimuli.MetadataSet(list(keys), request.value))


def handle_shares(server: ServerApi, request: m.SharesRequest, peer: Peer) -> dict[str, Any]:
    """Change settings of a share group, if any are given, and report all groups.

    Return a ValueError if a setting is unknown or out of range, or share groups are disabled. It is
    expected, so it is not raised and logged.
    """
    if request.group is not None and request.settings:
        try:
            server.state.shares.check_change(request.group, request.settings)
        except ValueError as error:
            return errors.error_message(error, "uncaught-error")
        server.send_stimulus(stimuli.SetShare(request.group, request.settings))
    return share_report(server.state)


def handle_retry(server: ServerApi, request: m.Retry, peer: Peer) -> Any:
    """Run erred tasks again. Return the keys of the tasks that were released for it.

    Raise KeyError for an unknown task. The client sets their futures to pending when it reads the
    reply. If it read a new result before, its future would stay pending, so its stream is paused.
    """
    _check_known(request.keys, server.state.tasks)
    client = request.client or ""
    reply = server.request(stimuli.RetryKeys(request.keys, client), client)
    stream = server.driver.client_streams.get(client)
    if stream is not None:
        stream.pause_until_read(reply)
    return reply


def handle_set_resources(server: ServerApi, request: m.SetResources, peer: Peer) -> str:
    """Set the resources of a worker. Raise KeyError if it is unknown."""
    _check_known([request.worker], server.state.workers)
    server.send_stimulus(request, request.worker)
    return "OK"


def handle_set_restrictions(server: ServerApi, request: m.SetRestrictions, peer: Peer) -> None:
    """Restrict tasks to workers. Raise KeyError for an unknown task."""
    _check_known(request.worker, server.state.tasks)
    server.send_stimulus(stimuli.RestrictionsSet(request.worker))


def _check_known(names: Iterable[Any], known: Container[Any]) -> None:
    """Raise KeyError if one of `names` is not in `known`."""
    for name in names:
        if name not in known:
            raise KeyError(name)


def handle_add_keys(server: ServerApi, request: m.AddKeysRpc, peer: Peer) -> str:
    """Record that a worker holds further replicas."""
    address = coerce_address(server.state, request.worker)
    if address not in server.state.workers:
        return "not found"
    server.send_stimulus(stimuli.ReplicasAdded(address, request.keys), address, request.stimulus_id)
    return "OK"


HANDLERS: dict[type, Handler] = {
    m.SetMetadata: handle_set_metadata,
    m.SharesRequest: handle_shares,
    m.Retry: handle_retry,
    m.SetRestrictions: handle_set_restrictions,
    m.SetResources: handle_set_resources,
    m.AddKeysRpc: handle_add_keys,
}
