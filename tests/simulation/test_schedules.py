"""The judge of schedules: recordings, model runs and random list schedules."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import schedules


def tree(client: Any) -> None:
    """Add 64 arrays of 80 kB in pairs."""
    import operator

    import numpy as np
    from dask import delayed

    level = [delayed(np.ones)(10_000) for _ in range(64)]
    while len(level) > 1:
        level = [delayed(operator.add)(a, b) for a, b in zip(level[::2], level[1::2])]
    assert level[0].sum().compute() == 640_000


def mean(client: Any) -> None:
    """Average an array, with tasks that dask fuses and tasks that are not needed."""
    import dask.array as da

    x = da.random.default_rng(0).random((400, 400), chunks=(100, 100))
    assert 0.4 < x[200:].mean().compute() < 0.6


def test_recording() -> None:
    [recording] = schedules.record(tree)
    assert len(recording.graph) == 128 and len(recording.want) == 1
    assert sorted(recording.order) == sorted(recording.graph)
    assert sum(recording.nbytes.values()) > 127 * 80_000
    assert min(recording.seconds.values()) >= schedules.TASK_SECONDS
    [recording] = schedules.record(mean, measured=True)
    assert set(recording.seconds) == set(recording.graph)
    assert all(d in recording.graph for needs in recording.graph.values() for d in needs)


@pytest.mark.parametrize("program", [tree, mean])
def test_schedules_are_complete(program: Any) -> None:
    [recording] = schedules.record(program)
    shortest = sum(recording.seconds.values()) / (schedules.N_WORKERS * schedules.NTHREADS)
    largest = max(recording.nbytes.values())
    for judgement in schedules.judge([recording], n_random=5).values():
        assert judgement.seconds >= shortest
        assert judgement.peak_nbytes >= largest


def test_siblings_on_one_worker_move_less() -> None:
    [recording] = schedules.record(tree)
    apart = schedules.simulate(recording, {"coassigned_tasks": 0})
    together = schedules.simulate(recording, {})
    assert together.moved_nbytes < apart.moved_nbytes / 2
    assert together.peak_nbytes <= apart.peak_nbytes
    assert schedules.simulate(recording, {}) == together


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    schedules.main(["--only", "distinct_values", "--random", "2"])
    out = capsys.readouterr().out
    assert "distinct_values:" in out
    assert "paceline: geometric means: time " in out and "random: geometric means" in out
