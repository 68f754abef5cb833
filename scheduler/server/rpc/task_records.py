"""Requests for records of finished tasks.

Must not know: how they are kept.
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.messages import scheduler_rpc as r
from paceline.workers_compat import task_records

from ..flows.ports import FlowHandler, FlowServer
from .base import PeerPort


def handle_get_task_stream(
    server: FlowServer, request: r.GetTaskStream, peer: PeerPort
) -> list[Any]:
    """Records of finished tasks, since somebody first asked."""
    stream = task_records.task_stream(server.plugins)
    found = stream.collect(
        start=request.start,
        stop=request.stop,
        count=request.count,
        start_index=request.start_index,
    )
    return list(found)


def handle_get_task_stream_index(
    server: FlowServer, request: r.GetTaskStreamIndex, peer: PeerPort
) -> int:
    """How many records there were so far."""
    return int(task_records.task_stream(server.plugins).index)


def handle_start_task_metadata(
    server: FlowServer, request: r.StartTaskMetadata, peer: PeerPort
) -> None:
    """Gather metadata of tasks that are asked for from now on."""
    task_records.start_task_metadata(server.plugins, request.name)


def handle_stop_task_metadata(
    server: FlowServer, request: r.StopTaskMetadata, peer: PeerPort
) -> dict[str, Any]:
    """What was gathered."""
    return task_records.stop_task_metadata(server.plugins, request.name)


HANDLERS: dict[type, FlowHandler] = {
    r.GetTaskStream: handle_get_task_stream,
    r.GetTaskStreamIndex: handle_get_task_stream_index,
    r.StartTaskMetadata: handle_start_task_metadata,
    r.StopTaskMetadata: handle_stop_task_metadata,
}
