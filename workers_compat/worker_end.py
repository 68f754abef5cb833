"""``WorkerEnd``, a plugin for stock workers that reports when the worker ends.

Workers receive the source of this module with their registration, because paceline need not be
installed there. So it imports only the standard library, dask and distributed.
"""

from __future__ import annotations

import contextlib
import os
from time import time
from typing import Any

import dask.config
from distributed.diagnostics.plugin import WorkerPlugin


class WorkerEnd(WorkerPlugin):  # type: ignore[misc]  # distributed is not typed
    """Worker plugin that adds the metric ``ends_in``: seconds until the worker ends, or None.

    The end is the earliest of these:

    - the end of the worker's lifetime (``dask worker --lifetime``, with its stagger), counted from
      the registration;
    - the end of the Slurm job, ``SLURM_JOB_END_TIME`` in the environment;
    - the setting ``paceline.worker-end`` of the worker, in seconds since the epoch.
    """

    name = "paceline-worker-end"

    def setup(self, worker: Any) -> None:
        """Add the metric; called by the worker."""
        self._started = time()
        worker.metrics.setdefault("ends_in", self._seconds_left)
        if self._seconds_left(worker) is not None:
            worker.loop.add_callback(worker.heartbeat)

    def teardown(self, worker: Any) -> None:
        """Remove the metric; called by the worker."""
        if worker.metrics.get("ends_in") == self._seconds_left:
            del worker.metrics["ends_in"]

    def _seconds_left(self, worker: Any) -> float | None:
        ends = [
            os.environ.get("SLURM_JOB_END_TIME"),
            dask.config.get("paceline.worker-end", None),
            self._started + worker.lifetime if worker.lifetime else None,
        ]
        known = []
        for end in ends:
            with contextlib.suppress(TypeError, ValueError):
                known.append(float(end))  # type: ignore[arg-type]
        return min(known) - time() if known else None
