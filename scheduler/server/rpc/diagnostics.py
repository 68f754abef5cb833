"""Requests that look into the cluster: logs, call stacks, profiles, versions, hardware.

Must not know: how (``flows/``).
"""

from __future__ import annotations

from typing import Any

from paceline.protocol.messages import scheduler_rpc as r
from paceline.protocol.messages import worker_rpc
from paceline.workers_compat import versions

from ..flows import broadcast, diagnostics, dump, performance_report
from ..flows.ports import FlowHandler, FlowServer
from .base import PeerPort


async def handle_call_stack(server: FlowServer, request: r.CallStack, peer: PeerPort) -> Any:
    """What worker threads execute now."""
    return await diagnostics.call_stack(server, request.keys)


def handle_logs(server: FlowServer, request: Any, peer: PeerPort) -> list[tuple[Any, ...]]:
    """The last lines of this scheduler's log."""
    return server.flows.log.lines(request.start, request.n, request.timestamps)


async def handle_worker_logs(server: FlowServer, request: r.WorkerLogs, peer: PeerPort) -> Any:
    """The last lines of the workers' or nannies' logs."""
    return await broadcast.broadcast(
        server,
        worker_rpc.WorkerGetLogs(n=request.n),
        workers=request.workers,
        nanny=request.nanny,
    )


def handle_versions(server: FlowServer, request: r.Versions, peer: PeerPort) -> Any:
    """Versions of packages in this process."""
    return versions.get_versions(request.packages)


async def handle_benchmark_hardware(
    server: FlowServer, request: r.BenchmarkHardware, peer: PeerPort
) -> Any:
    """Bandwidths of workers."""
    return await diagnostics.benchmark_hardware(server)


async def handle_profile(server: FlowServer, request: r.Profile, peer: PeerPort) -> Any:
    """Statistical profiles of workers."""
    return await diagnostics.profile(
        server,
        request.workers,
        scheduler=request.scheduler,
        server_threads=request.server,
        merge_workers=request.merge_workers,
        start=request.start,
        stop=request.stop,
        key=request.key,
    )


async def handle_performance_report(
    server: FlowServer, request: r.PerformanceReport, peer: PeerPort
) -> str:
    """A page about what was computed since a time."""
    return await performance_report.performance_report(
        server, request.start, request.last_count, request.code, request.mode
    )


async def handle_get_cluster_state(
    server: FlowServer, request: r.GetClusterState, peer: PeerPort
) -> Any:
    """Everything, as plain values."""
    return await dump.get_cluster_state(server, request.exclude)


def handle_dump_state(server: FlowServer, request: r.DumpState, peer: PeerPort) -> Any:
    """This scheduler's state, as plain values."""
    return dump.own_state(server, request.exclude)


async def handle_dump_cluster_state_to_url(
    server: FlowServer, request: r.DumpClusterStateToUrl, peer: PeerPort
) -> None:
    """The same, to a file."""
    await dump.dump_cluster_state_to_url(
        server, request.url, request.exclude, request.format, **request.storage_options
    )


HANDLERS: dict[type, FlowHandler] = {
    r.CallStack: handle_call_stack,
    r.GetLogs: handle_logs,
    r.Logs: handle_logs,
    r.WorkerLogs: handle_worker_logs,
    r.Versions: handle_versions,
    r.BenchmarkHardware: handle_benchmark_hardware,
    r.Profile: handle_profile,
    r.PerformanceReport: handle_performance_report,
    r.GetClusterState: handle_get_cluster_state,
    r.DumpState: handle_dump_state,
    r.DumpClusterStateToUrl: handle_dump_cluster_state_to_url,
}
