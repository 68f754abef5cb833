"""Second copies limit the work that is done again when workers are lost."""

from __future__ import annotations

import pytest

from benchmarks import losses


@pytest.mark.parametrize("program", losses.PROGRAMS)
def test_little_work_is_done_again(program: losses.Program) -> None:
    _, again, network, _ = losses.run(program(), seed=0, second_copies=True)
    _, again_without, _, _ = losses.run(program(), seed=0, second_copies=False)
    assert again <= 0.03 < again_without / 4
    assert 0 < network <= 0.05
