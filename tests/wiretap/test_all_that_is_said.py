"""Stock workers, nannies and clients behind taps, with the stock scheduler and with paceline: what passes is what the catalogue says.

Zero unknown ops, zero unknown fields, zero fields of another type; and each op of the catalogue passes, or is in ``UNPROVOKED``
with the reason why not.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Scheduler as StockScheduler
from paceline.protocol.catalogue import TABLES
from paceline.scheduler.server.scheduler import Scheduler

from tests.wiretap.features import STEPS, coordination, tasks
from tests.wiretap.tapped_cluster import Record, tapped_cluster

SCHEDULERS = {"stock": StockScheduler, "paceline": Scheduler}

#: So long a run may take: it starts processes, and machines are busy.
SECONDS = 600

#: (direction, op) -> why it does not pass.
UNPROVOKED: dict[tuple[str, str], str] = {
    ("scheduler_to_worker", "cancel-compute"): "workers read it, no scheduler sends it",
    ("scheduler_to_client", "close"): "clients read it, no scheduler sends it",
    ("scheduler_to_client", "close-stream"): "clients are told stream-closed instead",
    ("scheduler_to_client", "stream-closed"): "the connection is closed before it could be said",
    ("scheduler_to_client", "error"): "clients read it, no scheduler sends it",
}
#: Further ones, by scheduler.
UNPROVOKED_BY: dict[str, dict[tuple[str, str], str]] = {
    "stock": {("scheduler_rpc", "explain"): "an op of paceline's"},
    "paceline": {},
}


async def run(kind: str, steps: Any) -> Record:
    record = Record()
    async with asyncio.timeout(SECONDS), tapped_cluster(SCHEDULERS[kind], record) as cluster:
        for step in steps:
            await step(cluster)
    return record


@pytest.mark.parametrize("kind", SCHEDULERS)
async def test_ordinary_work(kind: str) -> None:
    """The short one, for every day."""
    record = await run(kind, (tasks, coordination))
    assert record.violations == []
    assert sum(record.ops.values()) > 200


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("kind", SCHEDULERS)
async def test_every_feature(kind: str) -> None:
    record = await run(kind, STEPS)
    assert record.violations == []
    excused = {**UNPROVOKED, **UNPROVOKED_BY[kind]}
    unseen = {
        (direction, op)
        for direction, table in TABLES.items()
        for op in table
        if not record.has(direction, op)
    }
    assert unseen - set(excused) == set(), "nobody says these, and nobody knows why"
    assert set(excused) - unseen == set(), "these pass after all"
