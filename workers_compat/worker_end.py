"""``WorkerEnd``, a plugin for stock workers that reports when the worker ends.

Workers receive the source of this module with their registration, because paceline need not be
installed there. So it imports only the standard library, dask and distributed.
"""

from __future__ import annotations

import logging
import math
import os
from time import time
from typing import Any

import dask.config
from distributed.diagnostics.plugin import WorkerPlugin

logger = logging.getLogger("distributed.worker")


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
        self._ignored: set[tuple[str, str]] = set()
        worker.metrics.setdefault("ends_in", self._seconds_left)
        if self._seconds_left(worker) is not None:
            worker.loop.add_callback(worker.heartbeat)

    def teardown(self, worker: Any) -> None:
        """Remove the metric; called by the worker."""
        if worker.metrics.get("ends_in") == self._seconds_left:
            del worker.metrics["ends_in"]

    def _seconds_left(self, worker: Any) -> float | None:
        known = [self._started + worker.lifetime] if worker.lifetime else []
        for source, value in (
            ("SLURM_JOB_END_TIME", os.environ.get("SLURM_JOB_END_TIME")),
            ("paceline.worker-end", dask.config.get("paceline.worker-end", None)),
        ):
            if value is None or value == "":
                continue
            end = _as_seconds(value)
            if math.isfinite(end):
                known.append(end)
            else:
                self._warn(source, value)
        return min(known) - time() if known else None

    def _warn(self, source: str, value: Any) -> None:
        """Log that `value` is unusable, unless that was logged before."""
        if (source, repr(value)) not in self._ignored:
            self._ignored.add((source, repr(value)))
            logger.warning(
                "Ignoring %s: %r is not a time in seconds since the epoch", source, value
            )


def _as_seconds(value: Any) -> float:
    """Return `value` as a number; NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
