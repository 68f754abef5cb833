"""``paceline status``, ``paceline doctor``, and what a person is told to type next."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import distributed
import pytest
from click.testing import CliRunner
from paceline.scheduler import Scheduler
from paceline.scheduler.server.cli import main, what_next
from paceline.scheduler.server.operator import doctor, status


def test_a_bar_shows_each_state_that_has_tasks() -> None:
    parts = status.bar_parts({"memory": 998, "erred": 1, "waiting": 1}, width=10)
    assert "".join(text for text, _ in parts) == "█" * 10
    parts = status.bar_parts({"memory": 50, "processing": 1, "waiting": 49}, width=10)
    assert [text for text, _ in parts] == ["█████", "▓", "░░░░"]
    assert status.bar_parts({}) == []


def test_sizes() -> None:
    assert status.format_nbytes(0) == "0 B"
    assert status.format_nbytes(3 * 2**30) == "3.0 GiB"
    assert status.format_nbytes(2**60) == "1024.0 PiB"


def test_a_rate_is_said_where_it_is_known() -> None:
    before = status.Look(1.0, {}, {"x": {"memory": 10}})
    assert status.rate(status.Look(3.0, {}, {"x": {"memory": 20, "released": 10}}), before) == 10
    assert status.rate(status.Look(3.0, {}, {"x": {"memory": 5}}), before) is None
    assert status.rate(before, None) is None


async def test_status_and_doctor_of_a_cluster() -> None:
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Worker(scheduler.address, name="alice", dashboard_address=":0"),
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        futures = client.map(str, range(7))
        await distributed.wait(futures)
        look = await asyncio.to_thread(status.look, scheduler.address, 30)
        text = status.plain(look)
        assert "1 workers" in text and "7 / 7" in text and "alice" in text
        pytest.importorskip("rich")
        assert status.drawn(look, look) is not None
        found = await asyncio.to_thread(doctor.examine, scheduler.address, 30)
    words = doctor.text(found)
    assert "answers; it has 1 workers" in words
    assert "have the same versions" in words


def test_doctor_finds_what_hurts() -> None:
    values = {
        "distributed.scheduler.validate": True,
        "distributed.scheduler.worker-saturation": "inf",
        "distributed.scheduler.worker-ttl": "10 s",
        "distributed.comm.timeouts.connect": "thirty",
    }
    found = doctor.settings(values.get)
    assert [each.grade for each in found].count("problem") == 1
    text = doctor.text(found)
    for name in ("validate", "worker-saturation", "worker-ttl", "cannot be 'thirty'"):
        assert name in text


def test_doctor_finds_clocks_and_versions_that_differ() -> None:
    workers = {
        "tcp://a": {"metrics": {"time": 100.0}, "last_seen": 100.1},
        "tcp://b": {"metrics": {"time": 160.0}, "last_seen": 100.0},
    }
    (found,) = doctor.clocks(workers)
    assert found.grade == "problem" and "tcp://b by +60.0 s" in found.text
    assert doctor.clocks({"tcp://a": workers["tcp://a"]})[0].grade == "ok"
    assert doctor.mixed("dask", {"1": ["a"], "2": ["b", "c"]}).grade == "problem"
    assert doctor.mixed("numpy", {"1": ["a"], "None": ["b"]}).grade == "note"
    assert doctor.mixed("python", {"3.11.1": ["a"], "3.11.2": ["b"]}).grade == "note"
    assert doctor.mixed("python", {"3.11.1": ["a"], "3.12.2": ["b"]}).grade == "problem"


def test_a_variable_that_is_spelled_wrong() -> None:
    wrong = "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALNG"
    right = "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING"
    assert doctor.unknown_variables({wrong: "1", right: "1", "HOME": "/"}) == [wrong]


def test_where_nobody_answers_the_commands_say_so() -> None:
    for command in ("status", "doctor"):
        result = CliRunner().invoke(main, [command, "tcp://127.0.0.1:1", "--timeout", "2"])
        assert result.exit_code == 1
        assert "tcp://127.0.0.1:1" in result.output


def test_what_to_type_next() -> None:
    text = what_next("tcp://10.0.0.1:8786", {"dashboard": SimpleNamespace(port=8787)})
    assert "dask worker tcp://10.0.0.1:8786" in text
    assert "http://localhost:8787/status" in text
    assert "Scheduler at" not in text and "dashboard at" not in text
