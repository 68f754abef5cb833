"""Dependencies that stand on neighbours' shelves are there before their task is heard of.

Stock's worker fetches what a task needs when it hears of the task: for each dependency four transitions, and for each worker that is
asked a coroutine, a question and an answer. A value that stands on a shelf needs none of these: it is put into the worker's memory as
scattered data are, and then stock hears of the task. The scheduler is told of copies as it is told of fetched ones.

Must not know: how a value comes to stand on a shelf.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Mapping
from itertools import islice
from time import time
from typing import Any

from distributed.worker_state_machine import AddKeysMsg, TaskState, UpdateDataEvent

from .exchange import Exchange

logger = logging.getLogger("distributed.worker.transfer")

OP = "compute-task"
"""The message in which the scheduler tells a worker of a task."""
STIMULUS = "transfer-shelf"
TAKEN_MAX = 256
"""Of one task's dependencies: the worker's loop does nothing else meanwhile. Stock fetches the others."""
TELL_SECONDS = 0.05
"""After this at the latest the scheduler hears of copies. A message of their own for those of each task costs more than taking them."""

Key = Hashable


class Ahead:
    """One worker's part: stands before its handler of ``compute-task`` until it is closed.

    Args:
        exchange: the worker's.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._worker = exchange.worker
        self._stock: Callable[..., None] = self._worker.stream_handlers[OP]
        self._worker.stream_handlers[OP] = self.compute_task
        self._untold: dict[Key, None] = {}  # copies that the scheduler has not heard of

    def close(self) -> None:
        """Stock's handler is back, unless somebody else stands there by now."""
        if self._worker.stream_handlers.get(OP) == self.compute_task:
            self._worker.stream_handlers[OP] = self._stock

    def compute_task(self, **message: Any) -> None:
        """See ``distributed.worker_state_machine.ComputeTaskEvent``."""
        who_has = message.get("who_has")
        if who_has and self._exchange.neighbours:
            try:
                self._take(who_has, message["nbytes"])
            except Exception:  # stock fetches what is not there
                logger.exception("what %r needs is fetched Dask's own way", message.get("key"))
        self._stock(**message)

    def _take(self, who_has: Mapping[Key, Collection[str]], nbytes: Mapping[Key, int]) -> None:
        """Put into memory what of a task's dependencies stands on shelves."""
        worker, exchange = self._worker, self._exchange
        if not worker.state.running:  # a paused worker fetches nothing
            return
        tasks = worker.state.tasks
        values: dict[Key, Any] = {}
        for key, holders in islice(who_has.items(), TAKEN_MAX):
            ts = tasks.get(key)
            if (ts is None or ts.state == "released") and worker.address not in holders:
                there, value = exchange.neighbours.first(key, holders)
                if there:
                    values[key] = value
        if not values:
            return
        for key in values:
            if key not in tasks:  # as for what is fetched, the size is the one that the scheduler knows
                tasks[key] = ts = TaskState(key)
                ts.nbytes = nbytes[key]
                worker.state.task_counter.new_task(ts)
        worker.state.transfer_incoming_count_total += 1
        with exchange.copying(values):
            event = UpdateDataEvent(data=values, stimulus_id=f"{STIMULUS}-{time()}")
            worker.handle_stimulus(event)
        if not self._untold:
            asyncio.get_running_loop().call_later(TELL_SECONDS, self.tell)
        self._untold.update((key, None) for key in values if tasks[key].state == "memory")

    def tell(self) -> None:
        """Tell the scheduler of the copies, as of fetched ones: at once before a task's end, or after a moment."""
        if self._untold:
            keys, self._untold = list(self._untold), {}
            told = AddKeysMsg(stimulus_id=f"{STIMULUS}-{time()}", keys=keys)
            self._worker.batched_send(told.to_dict())

    def let_go(self, key: Key) -> None:
        """A value left memory: who has not heard of it need not."""
        self._untold.pop(key, None)
