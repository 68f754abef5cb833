"""``TaskPeaks``, a plugin for stock workers that measures what running tasks take in memory.

Workers receive the source of this module with their registration, because paceline need not be
installed there. So it imports only the standard library, dask and distributed.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin
from distributed.utils import key_split_group

#: In ``/proc/self/status``: the largest memory since the last reset, and that of now, in KiB.
_MEMORY = re.compile(rb"VmHWM:\s*(\d+) kB\s*VmRSS:\s*(\d+) kB")
#: States of tasks that run, or that run although they were cancelled.
_RUNNING = {"executing", "long-running", "cancelled", "resumed"}


class TaskPeaks(WorkerPlugin):  # type: ignore[misc]  # distributed is not typed
    """Worker plugin that adds the metric ``task_peaks``: group -> bytes that a running task took.

    Linux keeps the largest memory of a process until it is reset. The plugin reads and resets it
    whenever the tasks that run change. What exceeds results and the idle process is what these
    tasks took. It is divided by their number, so it is exact for a task that runs alone. The metric
    contains the maxima since the last heartbeat. On other systems there is no metric.
    """

    name = "paceline-task-peaks"

    def setup(self, worker: Any) -> None:
        """Add the metric; called by the worker."""
        self._worker = worker
        self._peaks: dict[str, int] = {}
        self._running: list[str] = []
        self._idle_nbytes = self._results_nbytes = 0
        self._files = contextlib.ExitStack()
        self._is_measuring = False
        with contextlib.suppress(OSError), contextlib.ExitStack() as files:
            self._status: Any = files.enter_context(open("/proc/self/status", "rb", buffering=0))
            self._clear: Any = files.enter_context(open("/proc/self/clear_refs", "wb", buffering=0))
            self._reset()
            self._files = files.pop_all()
            worker.metrics.setdefault("task_peaks", self._reported)
            self._is_measuring = True

    def teardown(self, worker: Any) -> None:
        """Remove the metric; called by the worker."""
        if worker.metrics.get("task_peaks") == self._reported:
            del worker.metrics["task_peaks"]
        self._is_measuring = False
        self._files.close()

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Measure what ran until now; called by the worker."""
        if not self._is_measuring or not {start, finish} & _RUNNING:
            return
        state = self._worker.state
        ts = state.tasks.get(key)
        has_result = finish == "memory" and ts is not None
        process = self._measure(new_nbytes=ts.nbytes or 0 if has_result else 0)
        self._reset()
        self._results_nbytes = self._results()
        if not self._running:
            self._idle_nbytes = max(0, process - self._results_nbytes)
        self._running = [
            str(key_split_group(ts.key)) for ts in (*state.executing, *state.long_running)
        ]

    def _measure(self, new_nbytes: int = 0) -> int:
        """Update the peaks of the tasks that run. Return the memory of the process in bytes.

        ``new_nbytes`` is the size of the result of one of them, if it is in memory already.
        """
        self._status.seek(0)
        found = _MEMORY.search(self._status.read())
        assert found is not None
        peak, process = (int(each) * 1024 for each in found.groups())
        if self._running:
            results = max(self._results_nbytes, self._results() - new_nbytes)
            each = max(0, peak - results - self._idle_nbytes) // len(self._running)
            for group in self._running:
                self._peaks[group] = max(each, self._peaks.get(group, 0))
        return process

    def _results(self) -> int:
        """Return the size of the results in memory, and of those that are being received."""
        state = self._worker.state
        spilled = getattr(self._worker.data, "spilled_total", (0, 0))[0]
        return int(state.nbytes - spilled + state.transfer_incoming_bytes)

    def _reset(self) -> None:
        """Let the kernel measure from now on."""
        self._clear.write(b"5")

    def _reported(self, worker: Any) -> dict[str, int] | None:
        self._measure()
        peaks, self._peaks = self._peaks, {}
        return peaks or None
