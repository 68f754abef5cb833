"""Read small dependencies from the shared-memory caches of peers before a task starts.

A stock worker fetches the dependencies of a task after ``compute-task``: four transitions for each
dependency, and a request for each peer. A value in a peer's cache needs neither. It is added to the
worker's memory as scattered data is, before the stock handler runs. The scheduler is notified of
the replicas as it is of fetched ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Mapping
from itertools import islice
from time import time
from typing import Any

from distributed.worker_state_machine import AddKeysMsg, TaskState, UpdateDataEvent

from .worker_transfer import WorkerTransfer

logger = logging.getLogger("distributed.worker.transfer")

#: The message whose handler is wrapped.
OP = "compute-task"
STIMULUS = "transfer-prefetch"
#: Dependencies of one task that are read from caches, because the event loop is blocked
#: meanwhile. The stock worker fetches the others.
PREFETCH_MAX = 256
#: Delay until replicas are reported. One message per task would cost more than reading them.
REPORT_SECONDS = 0.05

Key = Hashable


class Prefetcher:
    """Wraps the worker's ``compute-task`` handler until it is closed."""

    def __init__(self, transfer: WorkerTransfer) -> None:
        self._transfer = transfer
        self._worker = transfer.worker
        self._stock: Callable[..., None] = self._worker.stream_handlers[OP]
        self._worker.stream_handlers[OP] = self.compute_task
        self._unreported: dict[Key, None] = {}  # replicas that were not reported yet

    def close(self) -> None:
        """Restore the stock handler, unless it was replaced by another one."""
        if self._worker.stream_handlers.get(OP) == self.compute_task:
            self._worker.stream_handlers[OP] = self._stock

    def compute_task(self, **message: Any) -> None:
        """Read dependencies from caches, then call the stock handler."""
        who_has = message.get("who_has")
        if who_has and self._transfer.peer_caches:
            try:
                self._prefetch(who_has, message["nbytes"])
            except Exception:  # stock fetches what is not there
                logger.exception(
                    "Failed to prefetch dependencies of %r; the worker fetches them",
                    message.get("key"),
                )
        self._stock(**message)

    def _prefetch(self, who_has: Mapping[Key, Collection[str]], nbytes: Mapping[Key, int]) -> None:
        """Add to memory the dependencies that are in the caches of peers."""
        worker, transfer = self._worker, self._transfer
        if not worker.state.running:  # a paused worker fetches nothing
            return
        tasks = worker.state.tasks
        values: dict[Key, Any] = {}
        for key, holders in islice(who_has.items(), PREFETCH_MAX):
            ts = tasks.get(key)
            if (ts is None or ts.state == "released") and worker.address not in holders:
                found, value = transfer.peer_caches.first(key, holders)
                if found:
                    values[key] = value
        if not values:
            return
        for key in values:
            if key not in tasks:
                # as for what is fetched, the size is the one that the scheduler knows
                tasks[key] = ts = TaskState(key)
                ts.nbytes = nbytes[key]
                worker.state.task_counter.new_task(ts)
        worker.state.transfer_incoming_count_total += 1
        with transfer.copying(values):
            event = UpdateDataEvent(data=values, stimulus_id=f"{STIMULUS}-{time()}")
            worker.handle_stimulus(event)
        if not self._unreported:
            asyncio.get_running_loop().call_later(REPORT_SECONDS, self.report)
        self._unreported.update((key, None) for key in values if tasks[key].state == "memory")

    def report(self) -> None:
        if self._unreported:
            keys, self._unreported = list(self._unreported), {}
            message = AddKeysMsg(stimulus_id=f"{STIMULUS}-{time()}", keys=keys)
            self._worker.batched_send(message.to_dict())

    def on_key_released(self, key: Key) -> None:
        self._unreported.pop(key, None)
