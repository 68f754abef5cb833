"""Runs in each worker while a program is measured: what it receives from others, and how much it holds."""

from __future__ import annotations

import threading
import time
from typing import Any

#: How often it is looked what the worker holds, seconds.
LOOK_SECONDS = 0.002


class Meter:
    """Of one worker.

    Attributes:
        moved_nbytes: fetched from other workers, and received peer to peer.
        changes: (seconds since the epoch, bytes held from then on).
    """

    def __init__(self, worker: Any) -> None:
        from dask.sizeof import sizeof

        self.worker = worker
        self.moved_nbytes = 0
        self.changes: list[tuple[float, int]] = []
        self._over = threading.Event()
        self._log = worker._update_metrics_received_data
        self._receive = worker.handlers["shuffle_receive"]
        worker._update_metrics_received_data = self._fetched
        worker.handlers["shuffle_receive"] = self._received
        self._sizeof = sizeof
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _fetched(
        self, start: float, stop: float, data: dict[Any, Any], *rest: Any, **named: Any
    ) -> None:
        self.moved_nbytes += sum(self.worker.state.tasks[key].get_nbytes() for key in data)
        self._log(start, stop, data, *rest, **named)

    async def _received(self, shuffle_id: str, run_id: int, data: Any) -> Any:
        self.moved_nbytes += self._sizeof(data)
        return await self._receive(shuffle_id, run_id, data)

    def _watch(self) -> None:
        last = -1
        while not self._over.wait(LOOK_SECONDS):
            now = self.worker.state.nbytes
            if now != last:
                self.changes.append((time.time(), now))
                last = now

    def close(self) -> tuple[int, list[tuple[float, int]]]:
        self._over.set()
        self._thread.join()
        self.worker._update_metrics_received_data = self._log
        self.worker.handlers["shuffle_receive"] = self._receive
        return self.moved_nbytes, self.changes


def begin(dask_worker: Any) -> None:
    dask_worker.quality_meter = Meter(dask_worker)


def end(dask_worker: Any) -> tuple[int, list[tuple[float, int]]]:
    """(bytes received, changes of what it held)."""
    meter: Meter = dask_worker.quality_meter
    del dask_worker.quality_meter
    return meter.close()
