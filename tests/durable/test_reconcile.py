"""After a recovery, differences between a stock worker and the scheduler are repaired."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Worker
from distributed.worker_state_machine import FreeKeysEvent, UpdateDataEvent

from tests.support.durable_processes import kill, stopped_keeper

from .conftest import StartDurable

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="a durable scheduler needs Linux"),
]

#: Time after which the workers change their state, and time for which the scheduler is dead.
FALSIFIED_SECONDS, DEAD_SECONDS = 1.0, 2.0


def slow(x: int) -> int:
    time.sleep(2.0)
    return x + 1


def later(dask_worker: Worker, lost: Any, added: Any, waiting: list[Any]) -> None:
    """Let the worker lose a result and a task, and get a replica, behind the scheduler's back."""

    def falsify() -> None:
        state = dask_worker.state
        if lost in dask_worker.data:
            del dask_worker.data[lost]
        else:
            dask_worker.handle_stimulus(UpdateDataEvent(data={added: 11}, stimulus_id="test"))
        ready = [key for key in waiting if key in state.tasks and state.tasks[key].state == "ready"]
        dask_worker.handle_stimulus(FreeKeysEvent(keys=ready[:1], stimulus_id="test"))

    asyncio.get_running_loop().call_later(FALSIFIED_SECONDS, falsify)


def test_falsified_state_is_repaired(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable()
    with Client(cluster.address, set_as_default=False) as client:
        one, _ = sorted(client.scheduler_info()["workers"])
        lost = client.submit(slow, 1, workers=[one], key=("lost", 1))
        added = client.submit(slow, 10, workers=[one], key=("added", 1))
        client.gather([lost, added])
        waiting = client.map(slow, range(12), key=[("waiting", i) for i in range(12)])
        time.sleep(0.5)
        keys = [future.key for future in waiting]
        with stopped_keeper(tmp_path):
            client.run(later, lost=lost.key, added=added.key, waiting=keys)
            kill(tmp_path)
            time.sleep(DEAD_SECONDS)
        assert client.gather(waiting) == [i + 1 for i in range(12)]
        assert client.submit(sum, [lost, added]).result(timeout=30) == 13
    log = cluster.processes[0].output()
    assert f"Worker {one} does not hold the result ('lost', 1); removing the replica" in log
    assert "also holds the result ('added', 1); adding the replica" in log
    assert log.count("does not run the task ('waiting', ") == 2
    repairs = log.partition("repairs since the start: ")[2].splitlines()[0].split(", ")
    assert sorted(repairs) == ["1 replica-added", "1 replica-removed", "2 rescheduled"]
