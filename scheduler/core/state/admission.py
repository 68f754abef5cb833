"""The expected memory use of tasks, and whether any worker may run short of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Stands for the bytes of a worker that has no limit.
UNLIMITED_NBYTES = 2**60
#: Number of results after which older ones count less in the mean.
RESULTS_MAX: Final = 16
#: A result differs from the mean of its prefix if one is more than this many times the other, and
#: has at least this many bytes.
DIFFERENCE_FACTOR, DIFFERENCE_NBYTES_MIN = 2.0, 1_000_000
#: Part of the difference by which the peak decreases with each smaller report.
PEAK_DECAY = 0.05
#: A worker that is expected to use more than this part of what it may is watched.
WATCHED: Final = 0.7
#: The memory in a heartbeat is not that of a task which has executed for less than this time,
#: seconds. Stock workers measure the memory of their process every 0.5 s, so the last measurement
#: may precede the task.
MEASURED_SECONDS = 0.75


@dataclass(slots=True, eq=False)
class TaskMemory:
    """The expected memory use of a task of a prefix, or of a group that differs from its prefix.

    Attributes:
        n_results: number of results in the mean, up to RESULTS_MAX.
        result_nbytes: mean size of the results in bytes.
        peak_nbytes: largest amount that a running task took besides results, decaying, in bytes.
        task_nbytes: the larger of both; a result under construction is part of the peak.
        groups_differ: for a prefix, whether any of its groups has a TaskMemory of its own.
    """

    n_results: int = 0
    result_nbytes: float = 0.0
    peak_nbytes: float = 0.0
    task_nbytes: int = 0
    groups_differ: bool = False

    @property
    def is_known(self) -> bool:
        """Return whether a task has finished, or was seen to take memory."""
        return self.n_results > 0 or self.task_nbytes > 0

    def is_similar(self, nbytes: int) -> bool:
        """Return whether a result of `nbytes` bytes does not differ much from the mean."""
        size, mean = float(nbytes), self.result_nbytes
        larger = max(size, mean)
        return larger < DIFFERENCE_NBYTES_MIN or larger <= DIFFERENCE_FACTOR * min(size, mean)

    def add_result(self, nbytes: int) -> None:
        """Add a result of `nbytes` bytes to the mean."""
        if self.n_results < RESULTS_MAX:
            self.n_results += 1
        self.result_nbytes += (float(nbytes) - self.result_nbytes) / float(self.n_results)
        self.task_nbytes = int(max(self.result_nbytes, self.peak_nbytes))

    def add_peak(self, nbytes: float) -> None:
        """Add the report that a running task took `nbytes` bytes besides results."""
        if nbytes < self.peak_nbytes:
            nbytes = self.peak_nbytes + (nbytes - self.peak_nbytes) * PEAK_DECAY
        self.peak_nbytes = nbytes
        self.task_nbytes = int(max(self.result_nbytes, nbytes))


@dataclass(slots=True, eq=False)
class Admission:
    """The state of admission by memory, which limits the tasks that workers are sent.

    Attributes:
        share: part of their memory limit that workers may be expected to use; 0 if there is no
            such limit.
        is_short: whether any worker may soon reach it, or a task that has yet to end may take more
            than ``unchecked_nbytes``. If not, nothing is checked. Set as soon as an estimate shows
            it, reset by a tick.
        smallest_nbytes, largest_nbytes: the least and the most that tasks and results may use on a
            worker; not updated at once if a worker leaves or changes.
        recalled: number of tasks ever recalled because their worker would run short.
    """

    share: float = 0.0
    is_short: bool = False
    smallest_nbytes: float = float(UNLIMITED_NBYTES)
    largest_nbytes: float = 0.0
    recalled: int = 0

    @property
    def unchecked_nbytes(self) -> float:
        """Bytes that a task may take which fits on every worker that is not watched."""
        return (1.0 - WATCHED) * self.smallest_nbytes
