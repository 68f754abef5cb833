"""Adaptive scaling with stock's ``AdaptiveCore`` in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.autoscaling import N_WORKERS_MAX, TRACES, long_tail, run, short_steps


@pytest.mark.parametrize("trace", TRACES)
def test_workers_are_used_and_results_kept(trace: Callable[[], Any]) -> None:
    found = run(trace, is_stock=False)
    assert found.unused == 0, "workers were closed before their first task"
    assert found.repeated == 0, "results were lost by scaling down"
    limit = 1.25 if trace is long_tail else 1.2  # oracle: two long tasks to a worker
    assert found.worker_seconds <= limit * found.oracle_seconds


def test_short_steps_start_each_worker_once() -> None:
    assert run(short_steps, is_stock=False).starts == N_WORKERS_MAX
    assert run(short_steps, is_stock=True).unused > 0, "the trace shows what stock does"
