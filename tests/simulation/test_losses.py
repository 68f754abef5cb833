"""Second copies limit the work that is done again when workers are lost."""

from __future__ import annotations

from statistics import mean

import pytest

from benchmarks import losses


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("program", "n_runs"),
    [
        (losses.long_chains, 3),
        (losses.tree, 5),
        pytest.param(losses.kept_results, 3, marks=pytest.mark.slow),
        # the first loss, before which no copies are made, may be costly
        pytest.param(losses.rounds, 20, marks=pytest.mark.slow),
    ],
)
def test_little_work_is_done_again(program: losses.Program, n_runs: int) -> None:
    runs = [losses.run(program(), seed, second_copies=True) for seed in range(n_runs)]
    without = [losses.run(program(), seed, second_copies=False) for seed in range(3)]
    again, network = mean(run[1] for run in runs), mean(run[2] for run in runs)
    assert again <= 0.03 < mean(run[1] for run in without) / 4
    assert 0 < network <= 0.05
