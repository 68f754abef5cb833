"""Messages between stock peers and either scheduler, captured by taps, conform to the catalogue.

There are no unknown ops, no unknown fields and no fields of another type. Each op of the catalogue is sent, or listed in
``UNPROVOKED`` with the reason why not.
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

#: Timeout of a run, which starts processes on possibly busy machines.
SECONDS = 600

#: (direction, op) -> why it is not sent.
UNPROVOKED: dict[tuple[str, str], str] = {
    ("scheduler_to_worker", "cancel-compute"): "workers read it, no scheduler sends it",
    ("scheduler_to_client", "close"): "clients read it, no scheduler sends it",
    ("scheduler_to_client", "close-stream"): "the scheduler sends stream-closed instead",
    ("scheduler_to_client", "stream-closed"): "the connection is closed before it can be sent",
    ("scheduler_to_client", "error"): "clients read it, no scheduler sends it",
}
#: Additional entries, by scheduler.
UNPROVOKED_BY: dict[str, dict[tuple[str, str], str]] = {
    "stock": {("scheduler_rpc", op): "an op of paceline's" for op in ("explain", "shares")},
    "paceline": {},
}


async def run(kind: str, steps: Any) -> Record:
    record = Record()
    async with asyncio.timeout(SECONDS), tapped_cluster(SCHEDULERS[kind], record) as cluster:
        for step in steps:
            await step(cluster)
    return record


@pytest.mark.parametrize("kind", SCHEDULERS)
async def test_ordinary_messages_conform(kind: str) -> None:
    """Run the short subset of features."""
    record = await run(kind, (tasks, coordination))
    assert record.violations == []
    assert sum(record.ops.values()) > 200


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("kind", SCHEDULERS)
async def test_every_feature_conforms_and_every_op_is_sent(kind: str) -> None:
    record = await run(kind, STEPS)
    assert record.violations == []
    excused = {**UNPROVOKED, **UNPROVOKED_BY[kind]}
    unseen = {
        (direction, op)
        for direction, table in TABLES.items()
        for op in table
        if not record.has(direction, op)
    }
    assert unseen - set(excused) == set(), "ops that were not sent and have no entry in UNPROVOKED"
    assert set(excused) - unseen == set(), "entries of UNPROVOKED that were sent"
