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
from paceline.workers_compat import cluster_dump, config, versions

from .broadcast import broadcast
from .ports import FlowServer

#: How long a worker may take to tell its state, seconds; ``paceline.scheduler.dump-timeout`` says otherwise.
DUMP_SECONDS = 10.0

logger = logging.getLogger("distributed.scheduler")


def own_state(server: FlowServer, exclude: Collection[str] = ()) -> dict[str, Any]:
    """This scheduler's state."""
    facts = {**server.scheduler.identity(), "status": server.scheduler.status.name}
    return dump_state(server.state, facts, exclude)


async def get_cluster_state(server: FlowServer, exclude: Collection[str] = ()) -> dict[str, Any]:
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
