"""Dumps of the cluster: the state of the scheduler and of every worker."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from paceline.protocol import messages as m
from paceline.scheduler.core.inspection.dump import dump_state
from paceline.scheduler.server.server_api import Handler, ServerApi
from paceline.workers_compat.config import config, versions
from paceline.workers_compat.facade import cluster_dump

from .broadcast import broadcast
from .handler_parts import calls

#: Default of ``paceline.scheduler.dump-timeout``: time limit for a worker's state, seconds.
DUMP_SECONDS = 10.0


def own_state(server: ServerApi, exclude: Collection[str] = ()) -> dict[str, Any]:
    """Return the scheduler's state without the attributes named in `exclude`."""
    facts = {**server.scheduler.identity(), "status": server.scheduler.status.name}
    return dump_state(server.state, facts, exclude)


async def get_cluster_state(server: ServerApi, exclude: Collection[str] = ()) -> dict[str, Any]:
    """Return ``{"scheduler": ..., "workers": {address: ...}, "versions": ...}``.

    The state of a worker that does not answer in time, or at all, is its error as text.
    """
    seconds = config.seconds(config.get("paceline.scheduler.dump-timeout")) or DUMP_SECONDS
    request = m.DumpState(exclude=list(exclude))
    workers = asyncio.gather(
        broadcast(server, request, on_error="return_text", timeout=seconds),
        broadcast(server, m.WorkerVersions(), on_error="ignore", timeout=seconds),
    )
    try:
        own = own_state(server, exclude)
        states, worker_versions = await workers
    finally:
        workers.cancel()
    return {
        "scheduler": own,
        "workers": states,
        "versions": {"scheduler": versions.get_versions(), "workers": worker_versions},
    }


async def dump_to_url(
    server: ServerApi,
    url: str,
    exclude: Collection[str],
    format: str,
    storage_options: dict[str, Any],
) -> None:
    """Write the cluster state with fsspec.

    Raises:
        ValueError: the format is unknown.
        OSError, ImportError: `url` cannot be written to.
    """
    await cluster_dump.write_state(
        lambda: get_cluster_state(server, exclude), url, format, **storage_options
    )


HANDLERS: dict[type, Handler] = {
    m.GetClusterState: calls(get_cluster_state),
    m.DumpState: calls(own_state),
    m.DumpClusterStateToUrl: calls(dump_to_url),
}
