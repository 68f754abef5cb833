"""After a recovery: compare the state of each worker with the scheduler's.

The core compares and repairs (``scheduler/core/handlers/reconciliation.py``). This module requests
the reports of the workers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from paceline.protocol.keys import Key, normalize_key, normalize_keys
from paceline.protocol.messages import DumpState, worker_rpc
from paceline.scheduler.core.stimuli import EndComparison, ReportedTask, SettleWorker, WorkerReport
from paceline.scheduler.server.requests.retire import give_up_lost_retirements
from paceline.scheduler.server.server_api import RemoteError

if TYPE_CHECKING:
    from paceline.scheduler.server.server_api import ServerApi

logger = logging.getLogger("distributed.scheduler")

#: Workers that are compared at a time.
CONCURRENT_MAX = 20
#: Time for one worker, seconds.
WORKER_SECONDS = 60.0
#: What a worker leaves out of its dump, so that it takes 30 µs per task.
EXCLUDED = (
    *("config", "log", "logs", "stimulus_log", "transfer_incoming_log", "transfer_outgoing_log"),
    *("data", "data_needed", "has_what", "ready", "constrained", "executing", "long_running"),
    *("in_flight_tasks", "in_flight_workers", "missing_dep_flight", "busy_workers"),
    *("task_counts", "task_cumulative_elapsed", "prefix", "run_spec", "dependencies", "dependents"),
    *("waiting_for_data", "waiters", "previous", "priority", "who_has", "coming_from"),
    *("resource_restrictions", "exception", "traceback", "exception_text", "traceback_text"),
    *("type", "suspicious_count", "startstops", "start_time", "stop_time", "metadata", "nbytes"),
    *("annotations", "span_id", "done"),
)


async def reconcile(server: ServerApi) -> None:
    """Compare the state of all workers with the scheduler's, and repair differences."""
    limit = asyncio.Semaphore(CONCURRENT_MAX)

    async def compare(address: str) -> None:
        async with limit:
            try:
                await asyncio.wait_for(_compare(server, address), WORKER_SECONDS)
            except (OSError, RemoteError, TimeoutError, LookupError, TypeError) as error:
                logger.info("Worker %s did not report its state: %r", address, error)
                server.send_stimulus(EndComparison(address))

    await asyncio.gather(*map(compare, list(server.state.workers)))
    give_up_lost_retirements(server)
    counts = server.state.comparisons.repair_counts
    logger.info(
        "Compared the state of the workers with the scheduler's; repairs since the start: %s",
        ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none",
    )


async def _compare(server: ServerApi, address: str) -> None:
    """Compare the state of one worker.

    Raises:
        OSError, RemoteError: it did not answer.
        LookupError, TypeError: its answer has another form.
    """
    await server.request(SettleWorker(address))
    keys = await server.rpc_call(address, worker_rpc.Keys())
    dump = await server.rpc_call(address, DumpState(exclude=list(EXCLUDED)))
    tasks = dict(map(_reported_task, dump["tasks"].values()))
    await server.request(WorkerReport(address, tasks, normalize_keys(list(keys))))


def _reported_task(task: dict[str, Any]) -> tuple[Key, ReportedTask]:
    """Return the key and the state of a task in a dump."""
    state = (task["state"], task.get("next"), int(task.get("run_id", 0)))
    return normalize_key(task["key"]), state
