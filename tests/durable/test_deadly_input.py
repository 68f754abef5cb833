"""Input that ends several scheduler processes in a row is set aside, and the cluster goes on."""

from __future__ import annotations

import asyncio
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Worker
from distributed.diagnostics.plugin import SchedulerPlugin
from paceline.scheduler import Scheduler
from paceline.scheduler.core.stimuli import GraphDropped
from paceline.scheduler.server.comm.sockets import PeerFacts
from paceline.scheduler.server.durable.channel.deaths import Death, Deaths
from paceline.scheduler.server.durable.recovery.recorded_connection import (
    NOT_KEPT,
    RecordedConnection,
)
from paceline.scheduler.server.peers.connection_factory import ConnectionFactory

from tests.support.deadly_plugin import DiesOf
from tests.support.fake_peers import client

from .conftest import StartDurable
from .test_kills import wait_for_text
from .test_replay import scheduler

__all__ = ["scheduler"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a durable scheduler needs Linux")


class NotesConnections(SchedulerPlugin):
    """Notes the connection whose input leads to each transition."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.noted: dict[tuple[str, str], set[int]] = {}

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.noted.setdefault((start, finish), set()).add(self.progress.connection)


async def test_connection_is_noted_also_in_later_turns(scheduler: Scheduler) -> None:
    async with (
        Worker(scheduler.address, nthreads=1),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        server = scheduler.server
        plugin = NotesConnections(server.recorder._progress)  # type: ignore[attr-defined]
        scheduler.add_plugin(plugin)
        futures = client.map(abs, range(6_000))  # more than the transitions of a turn
        await asyncio.wait([asyncio.ensure_future(each._state.wait()) for each in futures[:1]])
        (of_client,) = [each.number for each in server.driver.client_streams.values()]
        (of_worker,) = [each.number for each in server.driver.worker_streams.values()]
        assert plugin.noted["released", "waiting"] == {of_client}
        assert plugin.noted["processing", "memory"] == {of_worker}
        assert server.recorder._progress.connection == 0  # type: ignore[attr-defined]
        assert server.recorder._progress.stimulus == 0  # type: ignore[attr-defined]


async def test_connection_is_noted_again_after_a_nested_reply(scheduler: Scheduler) -> None:
    """A graph compiler may reply at once, while input of the client is handled."""
    peer = await client(scheduler)
    server = scheduler.server
    stream: Any = server.driver.client_streams["client-1"]
    number = stream.number
    server.recorder.handling(number)
    stream._compiled(GraphDropped(0))
    stream.peer.comm.buffer_updated(0)
    assert server.recorder.handling(0) == number
    peer.writer.close()


@pytest.mark.parametrize(
    ("deaths", "connection", "stimulus"),
    [
        ([(1, 0), (1, 5), (1, 6)], 1, 0),
        ([(2, 5), (1, 5), (1, 5)], 0, 0),
        ([(0, 5), (0, 5), (0, 5)], 0, 5),
        ([(0, 5), (0, 6), (0, 5)], 0, 0),
        ([(0, 0), (0, 0), (0, 0)], 0, 0),
        ([(1, 5), (0, 5), (0, 5)], 0, 0),
        ([(0, 5), (0, 5)], 0, 0),
        ([(3, 0), (0, 5), (0, 5), (0, 5)], 0, 5),
    ],
)
def test_cause_of_three_deaths(
    deaths: list[tuple[int, int]], connection: int, stimulus: int
) -> None:
    found = Deaths()
    for each in deaths:
        found.add(Death(1, 0.0, *each))
    assert (found.poisonous_connection, found.poisonous_stimulus) == (connection, stimulus)


@pytest.mark.parametrize(("seconds", "connection"), [(350.0, 1), (370.0, 0)])
def test_deaths_that_are_far_apart_have_other_causes(seconds: float, connection: int) -> None:
    deaths = Deaths()
    for time_of_death in (0.0, 1.0, 1.0 + seconds):
        deaths.add(Death(1, time_of_death, 1))
    assert deaths.poisonous_connection == connection


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (3, "ended with 3"),
        (-9, "was killed by SIGKILL"),
        (-35, "was killed by signal 35"),
    ],
)
def test_how_a_process_ended(code: int, how: str) -> None:
    assert Death(code, 0.0).how == how


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_deadly_commit_closes_the_connection(start_durable: StartDurable, tmp_path: Path) -> None:
    """The last of many tasks is deadly, in a turn that continues the commit of its graph."""
    cluster = start_durable()
    with Client(cluster.address, set_as_default=False) as client:
        client.register_plugin(DiesOf("waiting"))
        kept = client.submit(abs, -1)
        assert kept.result(timeout=60) == 1
        with Client(cluster.address, set_as_default=False) as other:
            keys = [*(f"many-{i}" for i in range(6_000)), "poison"]
            deadly = other.map(abs, range(len(keys)), key=keys, priority=-1)
            wait_for_text(cluster, "its messages ended the scheduler repeatedly")
            del deadly
        assert client.submit(abs, kept).result(timeout=60) == 1
        assert client.scheduler_info()["restarts"] == 3
    assert len(list((tmp_path / "log").glob("set-aside-*.pickle"))) == 1


async def test_files_of_earlier_incidents_are_kept(
    scheduler: Scheduler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    durability = scheduler.server.durability
    assert durability is not None
    connection = RecordedConnection(
        1, PeerFacts("", "", False), NOT_KEPT, ConnectionFactory(None).accepted()
    )
    for name in ("tick", "connection"):
        (tmp_path / f"set-aside-{name}-1.pickle").write_bytes(b"earlier")
    durability._set_aside(connection)
    for _ in range(2):
        durability._set_aside_stimulus("tick", b"this")
    assert caplog.text.count(f"it is now in {tmp_path}/set-aside-tick-2.pickle") == 1
    assert connection.fault.endswith(f"now in {tmp_path}/set-aside-connection-2.pickle")
    for name in ("tick", "connection"):
        assert (tmp_path / f"set-aside-{name}-1.pickle").read_bytes() == b"earlier"
    assert len(list(tmp_path.glob("set-aside-*"))) == 4


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_deadly_tick_is_set_aside(start_durable: StartDurable, tmp_path: Path) -> None:
    """The check of timeouts is deadly: no connection can be closed for it."""
    cluster = start_durable(DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT="1s")
    with Client(cluster.address, set_as_default=False) as client:
        client.register_plugin(DiesOf("erred"))
        kept = client.submit(abs, -1)
        assert kept.result(timeout=60) == 1
        deadly = client.submit(abs, 1, key="poison", resources={"missing": 1})
        wait_for_text(cluster, "The stimulus tick ended the scheduler repeatedly; it is now in")
        assert client.submit(abs, kept).result(timeout=60) == 1
        time.sleep(1)
        assert client.scheduler_info()["restarts"] == 3
        assert deadly.status == "pending"
    assert (tmp_path / "log" / "set-aside-tick-1.pickle").read_bytes()


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_connection_whose_input_is_deadly_is_closed(
    start_durable: StartDurable, tmp_path: Path
) -> None:
    cluster = start_durable()
    with Client(cluster.address, set_as_default=False) as client:
        client.register_plugin(DiesOf("waiting"))
        kept = client.submit(abs, -1)
        assert kept.result(timeout=60) == 1
        with Client(cluster.address, set_as_default=False) as other:
            other.scatter([1], direct=True)
            deadly = other.submit(abs, 1, key="poison")
            wait_for_text(cluster, "its messages ended the scheduler repeatedly")
            del deadly
        assert kept.status == "finished"
        assert client.submit(abs, kept).result(timeout=60) == 1
    (path,) = (tmp_path / "log").glob("set-aside-*.pickle")
    requests, messages = pickle.loads(path.read_bytes())
    assert requests or messages
