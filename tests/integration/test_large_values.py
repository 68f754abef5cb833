"""A large value that many tasks use is held in the scheduler once."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.integration.programs.large import N_TASKS, Model, lookup, table
from tests.support.real_cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

VALUE_NBYTES = 8_000_000
# one copy in the scheduler, one on arrival, and some overhead: 50 copies would be 400 MB
GROWTH_MAX_NBYTES = 5 * VALUE_NBYTES
RELEASE_TIMEOUT_SECONDS = 20


def resident_nbytes(pid: int) -> int:
    """Return the resident memory of a process and all its children."""
    total = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            total = int(line.split()[1]) * 1024
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return total + sum(map(resident_nbytes, map(int, children)))


def in_a_partial() -> Callable[[int], float]:
    return partial(lookup, table())


def in_an_object() -> Callable[[int], float]:
    return Model(table()).predict


def in_a_closure() -> Callable[[int], float]:
    values = table()
    return lambda i: lookup(values, i)


@pytest.mark.parametrize("make", [in_a_partial, in_an_object, in_a_closure])
def test_memory_grows_by_one_copy_of_the_value(
    make: Callable[[], Callable[[int], float]], paceline: Cluster
) -> None:
    scheduler = paceline.processes[0].pid
    with paceline.client() as client:
        # the first large graph also allocates what remains: imports, pools
        client.gather(client.map(make(), range(N_TASKS), pure=False))
        before = resident_nbytes(scheduler)
        futures = client.map(make(), range(N_TASKS), pure=False)
        client.gather(futures)
        growth = resident_nbytes(scheduler) - before
        assert growth < GROWTH_MAX_NBYTES, f"{growth / 1e6:.0f} MB for one array of 8 MB"


def test_results_are_not_kept(paceline: Cluster) -> None:
    """Gathering 200 MB through the scheduler leaves none of it in memory."""
    scheduler = paceline.processes[0].pid
    with paceline.client() as client:
        futures = client.map(
            lambda i: np.full(1_000_000, i, dtype="float64"), range(25), pure=False
        )
        client.gather(futures[:5], direct=False)
        before = resident_nbytes(scheduler)
        total = sum(float(x[0]) for x in client.gather(futures, direct=False))
        assert total == sum(range(25))
        deadline = time.monotonic() + RELEASE_TIMEOUT_SECONDS
        while resident_nbytes(scheduler) - before > 10 * VALUE_NBYTES:
            assert time.monotonic() < deadline, "the scheduler keeps results that it forwarded"
            time.sleep(0.2)
        assert client.submit(operator.add, 1, 1).result() == 2
