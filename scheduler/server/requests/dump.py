"""A dump of the cluster: this scheduler's state and every worker's, for people and their tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from paceline.protocol import messages as r
from paceline.protocol.messages import worker_rpc
from paceline.scheduler.core.inspection.dump import dump_state
from paceline.workers_compat.config import config, versions
from paceline.workers_compat.facade import cluster_dump

from .api import Handler, ServerApi
from .broadcast import broadcast

#: How long a worker may take to tell its state, seconds; ``paceline.scheduler.dump-timeout`` says otherwise.
DUMP_SECONDS = 10.0

logger = logging.getLogger("distributed.scheduler")


def own_state(server: ServerApi, exclude: Collection[str] = ()) -> dict[str, Any]:
    """This scheduler's state."""
    facts = {**server.scheduler.identity(), "status": server.scheduler.status.name}
    return dump_state(server.state, facts, exclude)


async def get_cluster_state(server: ServerApi, exclude: Collection[str] = ()) -> dict[str, Any]:
    """``{"scheduler": ..., "workers": {address: ...}, "versions": ...}``.

    A worker that does not answer in time, or not at all, has its error as text in place of its state, and no versions:
    a dump is most wanted of a cluster that is sick.
    """
    seconds = config.seconds(config.get("paceline.scheduler.dump-timeout")) or DUMP_SECONDS
    asked = worker_rpc.WorkerDumpState(exclude=list(exclude))
    workers = asyncio.gather(
        broadcast(server, asked, on_error="return_text", timeout=seconds),
        broadcast(server, worker_rpc.WorkerVersions(), on_error="ignore", timeout=seconds),
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


async def dump_cluster_state_to_url(
    server: ServerApi,
    url: str,
    exclude: Collection[str] = (),
    format: str = "msgpack",
    **storage_options: Any,
) -> None:
    """Write the dump where fsspec can write.

    Raises:
        ValueError: no such format. OSError, ImportError: the place cannot be written to.
    """
    await cluster_dump.write_state(
        lambda: get_cluster_state(server, exclude), url, format, storage_options
    )


HANDLERS: dict[type, Handler] = {
    r.GetClusterState: lambda server, request, peer: get_cluster_state(server, request.exclude),
    r.DumpState: lambda server, request, peer: own_state(server, request.exclude),
    r.DumpClusterStateToUrl: lambda server, request, peer: dump_cluster_state_to_url(
        server, request.url, request.exclude, request.format, **request.storage_options
    ),
}
