"""A dump of the cluster: this scheduler's state and every worker's, for people and their tools.

Must not know: what is in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

from paceline.protocol.messages import worker_rpc
from paceline.scheduler.core.dump import dump_state
from paceline.workers_compat import cluster_dump, versions

from .broadcast import broadcast
from .ports import FlowServer

logger = logging.getLogger("distributed.scheduler")


def own_state(server: FlowServer, exclude: Collection[str] = ()) -> dict[str, Any]:
    """This scheduler's state."""
    facts = {**server.scheduler.identity(), "status": server.scheduler.status.name}
    return dump_state(server.state, facts, exclude)


async def get_cluster_state(server: FlowServer, exclude: Collection[str] = ()) -> dict[str, Any]:
    """``{"scheduler": ..., "workers": {address: ...}, "versions": ...}``."""
    workers = asyncio.gather(
        broadcast(
            server, worker_rpc.WorkerDumpState(exclude=list(exclude)), on_error="return_text"
        ),
        broadcast(server, worker_rpc.WorkerVersions(), on_error="ignore"),
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
    server: FlowServer,
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
