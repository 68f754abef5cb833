"""Requests that only read: the cluster, tasks, workers, events, metadata.

Must not know: how an answer is found (``scheduler/core/queries.py``).
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.messages import extension_rpc as x
from paceline.protocol.messages import scheduler_rpc as r
from paceline.scheduler.core import queries

from .base import Handler, PeerPort, ServerPort


def handle_identity(server: ServerPort, request: r.Identity, peer: PeerPort) -> Any:
    """Who we are, and our workers."""
    return server.scheduler.identity(request.n_workers)


def handle_who_has(server: ServerPort, request: r.WhoHas, peer: PeerPort) -> Any:
    """Key -> addresses."""
    return queries.who_has(server.state, request.keys)


def handle_has_what(server: ServerPort, request: r.HasWhat, peer: PeerPort) -> Any:
    """Address -> keys."""
    return queries.has_what(server.state, request.workers)


def handle_ncores(server: ServerPort, request: r.Ncores, peer: PeerPort) -> Any:
    """Address -> threads."""
    return queries.ncores(server.state, request.workers)


def handle_ncores_running(server: ServerPort, request: r.NcoresRunning, peer: PeerPort) -> Any:
    """Address -> threads of workers that take tasks."""
    return queries.ncores_running(server.state, request.workers)


def handle_nbytes(server: ServerPort, request: r.Nbytes, peer: PeerPort) -> Any:
    """Key or prefix -> bytes."""
    return queries.nbytes(server.state, request.keys, request.summary)


def handle_processing(server: ServerPort, request: r.Processing, peer: PeerPort) -> Any:
    """Address -> keys that the worker is at."""
    return queries.processing(server.state, request.workers)


def handle_get_task_status(server: ServerPort, request: r.GetTaskStatus, peer: PeerPort) -> Any:
    """Key -> state."""
    return queries.get_task_status(server.state, request.keys or ())


def handle_get_task_prefix_states(
    server: ServerPort, request: r.GetTaskPrefixStates, peer: PeerPort
) -> Any:
    """Prefix -> state -> count."""
    return queries.get_task_prefix_states(server.state)


def handle_get_story(server: ServerPort, request: r.GetStory, peer: PeerPort) -> Any:
    """Logged transitions of keys and stimuli."""
    return queries.get_story(server.state, request.keys_or_stimuli)


def handle_get_runspec(server: ServerPort, request: x.GetRunspec, peer: PeerPort) -> Any:
    """A task's specification, closed, and its dependencies, to run it elsewhere."""
    return queries.get_runspec(server.state, request.key)


def handle_get_error_cause(server: ServerPort, request: x.GetErrorCause, peer: PeerPort) -> Any:
    """The task whose failure made one of these fail."""
    return queries.get_error_cause(server.state, request.keys)


HANDLERS: dict[type, Handler] = {
    r.Identity: handle_identity,
    r.WhoHas: handle_who_has,
    r.HasWhat: handle_has_what,
    r.Ncores: handle_ncores,
    r.NcoresRunning: handle_ncores_running,
    r.Nbytes: handle_nbytes,
    r.Processing: handle_processing,
    r.GetTaskStatus: handle_get_task_status,
    r.GetTaskPrefixStates: handle_get_task_prefix_states,
    r.GetStory: handle_get_story,
    x.GetRunspec: handle_get_runspec,
    x.GetErrorCause: handle_get_error_cause,
}
