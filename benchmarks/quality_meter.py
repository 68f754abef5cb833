"""Measurements inside a worker while a program runs: data received from others, and data held."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

#: The size of the held data is read at this interval.
INTERVAL_SECONDS = 0.002


class Meter:
    """Measures one worker from its creation to `close`."""

    def __init__(self, worker: Any) -> None:
        from dask.sizeof import sizeof

        self.worker = worker
        self._sizeof = sizeof
        self._shuffle_nbytes = 0
        #: (seconds since the epoch, bytes held from then on)
        self._changes: list[tuple[float, int]] = []
        self._receive = worker.handlers["shuffle_receive"]
        worker.handlers["shuffle_receive"] = self._shuffle_receive
        # without the limit of the worker's own log
        worker.transfer_incoming_log = deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    async def _shuffle_receive(self, shuffle_id: str, run_id: int, data: Any) -> Any:
        self._shuffle_nbytes += self._sizeof(data)
        return await self._receive(shuffle_id, run_id, data)

    def _sample(self) -> None:
        last = -1
        while not self._stopped.wait(INTERVAL_SECONDS):
            now = self.worker.state.nbytes
            if now != last:
                self._changes.append((time.time(), now))
                last = now

    def close(self) -> tuple[int, list[tuple[float, int]]]:
        """Return the bytes received, fetched or in P2P shuffles, and the changes of held bytes."""
        self._stopped.set()
        self._thread.join()
        self.worker.handlers["shuffle_receive"] = self._receive
        fetched = sum(entry["total"] for entry in self.worker.transfer_incoming_log)
        return fetched + self._shuffle_nbytes, self._changes


def begin(dask_worker: Any) -> None:
    """Start measuring."""
    dask_worker.quality_meter = Meter(dask_worker)


def end(dask_worker: Any) -> tuple[int, list[tuple[float, int]]]:
    """Stop measuring and return the results of `Meter.close`."""
    meter: Meter = dask_worker.quality_meter
    del dask_worker.quality_meter
    return meter.close()
