"""Requests that read the state of the core: its tasks, workers and metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.inspection import queries
from paceline.scheduler.core.inspection.explain import explain, explain_all
from paceline.scheduler.server.peers.peer import Peer
from paceline.scheduler.server.server_api import Handler, ServerApi

from .handler_parts import reads, worker_address


def handle_identity(server: ServerApi, request: m.Identity, peer: Peer) -> dict[str, Any]:
    """Describe the scheduler and ``request.n_workers`` of its workers."""
    return server.scheduler.identity(-1 if request.n_workers is None else request.n_workers)


def handle_explain(server: ServerApi, request: m.Explain, peer: Peer) -> dict[str, Any]:
    """Explain why a task does not run, or the state of the cluster. Stock has no such request."""
    if request.prefixes_only:
        return {"prefixes": queries.prefix_states(server.state)}
    if request.key is None:
        return explain_all(server.state, server.now())
    return explain(server.state, request.key, server.now(), server.driver.n_compiling)


def _reads_workers(query: Callable[..., Any]) -> Handler:
    """Return a handler that calls ``query(server.state, addresses)``; host names are resolved."""

    def handle(server: ServerApi, request: Any, peer: Peer) -> Any:
        workers = request.workers
        if workers is not None:
            workers = [worker_address(server, worker) for worker in workers]
        return query(server.state, workers)

    return handle


HANDLERS: dict[type, Handler] = {
    m.Echo: lambda server, request, peer: request.data,
    m.Identity: handle_identity,
    m.WhoHas: reads(queries.who_has),
    m.HasWhat: _reads_workers(queries.has_what),
    m.Ncores: _reads_workers(queries.ncores),
    m.NcoresRunning: _reads_workers(queries.ncores_running),
    m.NbytesRequest: reads(queries.nbytes),
    m.Processing: _reads_workers(queries.processing),
    m.GetTaskStatus: lambda server, request, peer: queries.get_task_status(
        server.state, request.keys or ()
    ),
    m.GetTaskPrefixStates: reads(queries.get_task_prefix_states),
    m.GetStory: lambda server, request, peer: queries.story(server.state, *request.keys_or_stimuli),
    m.GetRunspec: lambda server, request, peer: queries.get_runspec(server.state, request.key),
    m.GetErrorCause: lambda server, request, peer: queries.get_error_cause(
        server.state, request.keys
    ),
    m.GetMetadata: reads(queries.get_metadata),
    m.Explain: handle_explain,
}
