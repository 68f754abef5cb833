"""The figures that `benchmarks.memory` reads from the log of workers."""

from __future__ import annotations

from benchmarks.memory import pauses

LOG = """\
2026-11-24 09:52:50,100 - distributed.worker.memory - WARNING - Worker is at 81% memory usage. Pausing worker.  Process memory: 1
2026-11-24 09:52:50,600 - distributed.worker.memory - WARNING - Worker is at 70% memory usage. Resuming worker. Process memory: 1
2026-11-24 09:52:51,000 - distributed.worker.memory - WARNING - Worker is at 83% memory usage. Pausing worker.  Process memory: 1
2026-11-24 09:52:51,100 - distributed.worker.memory - WARNING - Worker is at 83% memory usage. Pausing worker.  Process memory: 1
2026-11-24 09:52:52,100 - distributed.worker.memory - WARNING - Worker is at 60% memory usage. Resuming worker. Process memory: 1
"""


def test_pauses() -> None:
    n, seconds = pauses(LOG)
    assert n == 3
    assert round(seconds, 3) == 1.5


def test_no_pauses() -> None:
    assert pauses("2026-11-24 09:52:50,100 - distributed.worker - INFO - Start worker\n") == (0, 0)
