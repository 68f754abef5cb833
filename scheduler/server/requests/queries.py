"""Requests that only read the core's state."""

from __future__ import annotations

from typing import Any

from paceline.protocol import messages as r
from paceline.protocol.messages import extension_rpc as x
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.inspection.explain import explain, explain_all

from .api import Handler, PeerApi, ServerApi


def handle_get_metadata(server: ServerApi, request: r.GetMetadata, peer: PeerApi) -> Any:
    """Return the value stored at the path ``request.keys``."""
    default = queries.NO_DEFAULT if request.default == "__no_default__" else request.default
    return queries.get_metadata(server.state, request.keys, default)


def handle_explain(server: ServerApi, request: r.Explain, peer: PeerApi) -> dict[str, Any]:
    """Explain why a task does not run, or the state of the cluster. Stock has no such request."""
    if request.key is None:
        return explain_all(server.state, server.now())
    streams = server.driver.client_streams.values()
    compiling = sum(stream.n_graphs for stream in streams)
    return explain(server.state, request.key, server.now(), compiling)


HANDLERS: dict[type, Handler] = {
    r.Echo: lambda server, request, peer: request.data,
    r.Identity: lambda server, request, peer: server.scheduler.identity(request.n_workers),
    r.WhoHas: lambda server, request, peer: queries.who_has(server.state, request.keys),
    r.HasWhat: lambda server, request, peer: queries.has_what(server.state, request.workers),
    r.Ncores: lambda server, request, peer: queries.ncores(server.state, request.workers),
    r.NcoresRunning: lambda server, request, peer: queries.ncores_running(
        server.state, request.workers
    ),
    r.NbytesRequest: lambda server, request, peer: queries.nbytes(
        server.state, request.keys, request.summary
    ),
    r.Processing: lambda server, request, peer: queries.processing(server.state, request.workers),
    r.GetTaskStatus: lambda server, request, peer: queries.get_task_status(
        server.state, request.keys or ()
    ),
    r.GetTaskPrefixStates: lambda server, request, peer: queries.get_task_prefix_states(
        server.state
    ),
    r.GetStory: lambda server, request, peer: queries.get_story(
        server.state, request.keys_or_stimuli
    ),
    x.GetRunspec: lambda server, request, peer: queries.get_runspec(server.state, request.key),
    x.GetErrorCause: lambda server, request, peer: queries.get_error_cause(
        server.state, request.keys
    ),
    r.GetMetadata: handle_get_metadata,
    r.Explain: handle_explain,
}
