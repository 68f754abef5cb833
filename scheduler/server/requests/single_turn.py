"""Requests that the core answers in a single turn. Most only read its state."""

from __future__ import annotations

from typing import Any

from paceline.protocol import messages as r
from paceline.protocol.messages import extension_rpc as x
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.inspection.explain import explain, explain_all
from paceline.scheduler.core.inspection.share_report import share_report
from paceline.scheduler.server.peers.peer import Peer

from .api import Handler, ServerApi, reads


def handle_identity(server: ServerApi, request: r.Identity, peer: Peer) -> dict[str, Any]:
    """Describe the scheduler and ``request.n_workers`` of its workers."""
    return server.scheduler.identity(-1 if request.n_workers is None else request.n_workers)


def handle_set_metadata(server: ServerApi, request: r.SetMetadata, peer: Peer) -> None:
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


def handle_explain(server: ServerApi, request: r.Explain, peer: Peer) -> dict[str, Any]:
    """Explain why a task does not run, or the state of the cluster. Stock has no such request."""
    if request.key is None:
        return explain_all(server.state, server.now())
    compiling = sum(stream.n_graphs for stream in server.driver.client_streams.values())
    return explain(server.state, request.key, server.now(), compiling)


def handle_shares(server: ServerApi, request: r.SharesRequest, peer: Peer) -> dict[str, Any]:
    """Change settings of a share group, if any are given, and report all groups.

    Raises:
        ValueError: a setting is unknown or out of range, or share groups are disabled.
    """
    if request.group is not None and request.settings:
        server.state.shares.check_change(request.group, request.settings)
        server.send_stimulus(stimuli.SetShare(request.group, request.settings))
    return share_report(server.state)


def handle_retry(server: ServerApi, request: r.Retry, peer: Peer) -> Any:
    """Run erred tasks again. Return the keys of the tasks that were released for it."""
    client = request.client or ""
    return server.request(stimuli.RetryKeys(request.keys, client), client)


def handle_set_resources(server: ServerApi, request: r.SetResources, peer: Peer) -> str:
    """Set the resources of a worker."""
    server.send_stimulus(request, queries.coerce_address(server.state, request.worker))
    return "OK"


def handle_add_keys(server: ServerApi, request: r.AddKeysRpc, peer: Peer) -> str:
    """Record that a worker holds further replicas."""
    address = queries.coerce_address(server.state, request.worker)
    if address not in server.state.workers:
        return "not found"
    server.send_stimulus(stimuli.ReplicasAdded(address, request.keys), address, request.stimulus_id)
    return "OK"


HANDLERS: dict[type, Handler] = {
    r.Echo: lambda server, request, peer: request.data,
    r.Identity: handle_identity,
    r.WhoHas: reads(queries.who_has),
    r.HasWhat: reads(queries.has_what),
    r.Ncores: reads(queries.ncores),
    r.NcoresRunning: reads(queries.ncores_running),
    r.NbytesRequest: reads(queries.nbytes),
    r.Processing: reads(queries.processing),
    r.GetTaskStatus: lambda server, request, peer: queries.get_task_status(
        server.state, request.keys or ()
    ),
    r.GetTaskPrefixStates: reads(queries.get_task_prefix_states),
    r.GetStory: lambda server, request, peer: queries.story(server.state, *request.keys_or_stimuli),
    x.GetRunspec: lambda server, request, peer: queries.get_runspec(server.state, request.key),
    x.GetErrorCause: lambda server, request, peer: queries.get_error_cause(
        server.state, request.keys
    ),
    r.GetMetadata: reads(queries.get_metadata),
    r.SetMetadata: handle_set_metadata,
    r.Explain: handle_explain,
    r.SharesRequest: handle_shares,
    r.Retry: handle_retry,
    r.SetRestrictions: lambda server, request, peer: server.send_stimulus(
        stimuli.RestrictionsSet(request.worker)
    ),
    r.SetResources: handle_set_resources,
    r.AddKeysRpc: handle_add_keys,
}
