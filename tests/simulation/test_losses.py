"""Second copies limit the work that is done again when workers are lost."""

from __future__ import annotations

from statistics import mean

import pytest

from benchmarks import losses

#: The first loss of a run, before which no copies are made, may come at a costly time. So the mean of
#: many runs counts.
SEEDS, SEEDS_WITHOUT_COPIES = range(20), range(3)


@pytest.mark.parametrize("program", losses.PROGRAMS)
def test_little_work_is_done_again(program: losses.Program) -> None:
    runs = [losses.run(program(), seed, second_copies=True) for seed in SEEDS]
    without = [losses.run(program(), seed, second_copies=False) for seed in SEEDS_WITHOUT_COPIES]
    again, network = mean(run[1] for run in runs), mean(run[2] for run in runs)
    assert again <= 0.03 < mean(run[1] for run in without) / 4
    assert 0 < network <= 0.05
