"""``paceline status``, ``paceline doctor``, and the commands shown after the start."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import dask
import distributed
import pytest
from click.testing import CliRunner
from paceline.scheduler import Scheduler
from paceline.scheduler.server.cli import doctor, explain, status
from paceline.scheduler.server.cli.main import main
from paceline.scheduler.server.cli.run_scheduler import what_next
from paceline.scheduler.server.runtime import build
from paceline.scheduler.server.wiretap import command as wiretap

from tests.support.real_cluster import PACELINE, Cluster, scheduler_command


def test_bar_shows_each_state_that_has_tasks() -> None:
    parts = status.bar_parts({"memory": 998, "erred": 1, "waiting": 1}, width=10)
    assert "".join(text for text, _ in parts) == "█" * 10
    parts = status.bar_parts({"memory": 50, "processing": 1, "waiting": 49}, width=10)
    assert [text for text, _ in parts] == ["█████", "▓", "░░░░"]
    assert status.bar_parts({}) == []


def test_sizes() -> None:
    assert status.format_nbytes(0) == "0 B"
    assert status.format_nbytes(3 * 2**30) == "3.00 GiB"
    assert status.format_nbytes(2**60) == "1024.00 PiB"


def test_rate_is_none_if_unknown() -> None:
    before = status.Snapshot(1.0, {}, {"x": {"memory": 10}})
    assert (
        status.rate(status.Snapshot(3.0, {}, {"x": {"memory": 20, "released": 10}}), before) == 10
    )
    assert status.rate(status.Snapshot(3.0, {}, {"x": {"memory": 5}}), before) is None
    assert status.rate(before, None) is None


async def test_status_and_doctor_of_a_cluster() -> None:
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Worker(scheduler.address, name="alice", dashboard_address=":0") as worker,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        for command in (["status", "--once"], ["doctor"]):
            run = await asyncio.to_thread(CliRunner().invoke, main, [*command, worker.address])
            assert run.exit_code == 1 and f"{worker.address} is not a scheduler\n" in run.output
        futures = client.map(str, range(7))
        await distributed.wait(futures)
        snapshot = await asyncio.to_thread(status.fetch, scheduler.address, 30)
        text = status.format_text(snapshot)
        assert f"paceline {build.description()}" in text
        assert "1 worker, " in text and "7 / 7" in text and "alice" in text
        found = await asyncio.to_thread(doctor.examine, scheduler.address, 30)
    words = doctor.text(found)
    assert "replies. It has 1 worker." in words
    assert "have the same versions" in words
    assert "1 workers" not in text + words and "1 threads" not in text + words
    colored = status.format_text(snapshot, snapshot, color=True)
    assert click.unstyle(colored) == status.format_text(snapshot, snapshot) != colored


async def test_status_counts_tasks_in_all_states() -> None:
    async with (
        Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0", dashboard=False) as scheduler,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        futures = client.map(str, range(7), key=[f"queued-{i}" for i in range(7)])
        futures += client.map(str, range(2), key=["few-1", "few-2"], resources={"GPU": 1})
        while len(scheduler.server.state.tasks) < len(futures):
            await asyncio.sleep(0.01)
        snapshot = await asyncio.to_thread(status.fetch, scheduler.address, 30)
    text = status.format_text(snapshot)
    assert "7 queued, 2 no-worker" in text
    assert "0 / 7" in text and "0 / 2" in text
    assert [name for name, _ in status.busiest(snapshot.prefixes)] == ["queued", "few"]
    assert status.busiest({"a": {"memory": 9}, "b": {"no-worker": 1}})[0][0] == "b"


async def test_status_without_the_request_that_counts_all_states() -> None:
    with dask.config.set({"distributed.scheduler.blocked-handlers": ["explain"]}):
        async with Scheduler(host="127.0.0.1", dashboard=False) as scheduler:
            snapshot = await asyncio.to_thread(status.fetch, scheduler.address, 30)
    assert snapshot.identity["build"] and snapshot.prefixes == {}


def test_control_characters_of_names_are_escaped() -> None:
    name = "a\x1b[31m\n\ud800"
    identity = {"address": "tcp://x", "workers": {name: {"name": name}}}
    lines = status.format_text(status.Snapshot(1.0, identity, {name: {"memory": 1}})).split("\n")
    assert len(lines) == 7 and all(map(str.isprintable, lines))
    assert r"a\x1b[31m\n\ud800" in lines[3] and r"a\x1b[31m\n\ud800" in lines[6]
    assert doctor.text([doctor.Finding("note", name)]).startswith(r"! a\x1b[31m\n\ud800")


def test_runs_that_were_given_up_are_shown() -> None:
    identity = {"address": "tcp://x", "workers": {"tcp://w": {}}, "given_up_runs": {"tcp://w": 2}}
    assert "0, 2 given up" in status.format_text(status.Snapshot(1.0, identity))
    (found,) = doctor.given_up_runs(identity)
    assert found.text.endswith(
        "occupy 2 threads of 1 worker: tcp://w. Restart this worker if they do not end."
    )
    assert doctor.text([found]).endswith("\n\nNo problems found, but 1 note.")
    assert doctor.text([]).endswith("No problems found.")
    assert doctor.given_up_runs({}) == []
    cluster = {"workers": 1, "statuses": {}, "threads": 2, "graphs": 0, "silent": []}
    cluster |= {"backpressured": [], "given_up": {"tcp://w": ["x", ("y", 1)]}}
    cluster |= {"ends": [{"worker": "tcp://w", "seconds": 90.0}], "n_ends": 3}
    cluster["ends"].append({"worker": "tcp://v", "seconds": 0.0})
    lines = explain.cluster_lines({"cluster": cluster, "states": {}, "suspects": []})
    assert "tcp://w still executes 2 runs that the scheduler has given up: x, ('y', 1)." in lines
    assert lines[-1] == "No other task is running, and no task is held up."
    ends = lines.index("tcp://w ends in 90.0 s.")
    assert lines[ends + 1 : ends + 3] == [
        "The end of tcp://v has passed.",
        "1 further worker reported an end.",
    ]


def test_status_shows_when_workers_end() -> None:
    workers: dict[str, Any] = {"tcp://v": {}}
    identity = {"address": "tcp://x", "workers": workers}
    assert "ends in" not in status.format_text(status.Snapshot(1.0, identity))
    workers["tcp://w"] = {"metrics": {"ends_in": 90.0}}
    workers["tcp://u"] = {"metrics": {"ends_in": -5.0}}
    lines = status.format_text(status.Snapshot(1.0, identity)).splitlines()[-4:]
    shown = [line.rsplit("  ", 1)[-1].strip() for line in lines]
    assert shown == ["ends in", "0", "90.0 s", "past"]


def test_doctor_reports_harmful_settings() -> None:
    values = {
        "distributed.scheduler.validate": True,
        "distributed.scheduler.work-stealing": " off ",
        "distributed.scheduler.worker-saturation": "inf",
        "distributed.scheduler.worker-ttl": "10 s",
        "distributed.scheduler.allowed-failures": 0,
    }
    with dask.config.set(values):
        found = doctor.settings()
    assert [each.grade for each in found] == ["note"] * len(values)
    text = doctor.text(found)
    for name, value in values.items():
        assert f"`{name}: {value}` " in text
    harmless = {
        "distributed.scheduler.validate": "no",
        "distributed.scheduler.allowed-failures": float("inf"),
        "distributed.worker.memory.terminate": "0.95",
        "distributed.comm.timeouts.tcp": "5 s",
    }
    with dask.config.set(harmless):
        assert [each.grade for each in doctor.settings()] == ["ok"]


def test_doctor_reports_what_prevents_the_start_and_unknown_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {
        "paceline.scheduler.standby-turns": "x",
        "distributed.comm.timeouts.connect": [1],
        "distributed.scheduler.worker-saturation": float("nan"),
    }
    with dask.config.set(values):
        found = doctor.settings()
    assert [each.grade for each in found] == ["problem"] * len(values)
    for name, value in values.items():
        assert f"`{name}` cannot be {value!r}" in doctor.text(found)
    with dask.config.set({"distributed.worker.memory.terminate": "often"}):  # read by the core
        assert [each.grade for each in doctor.settings()] == ["problem"]
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__TERMINAT", "1")
    with dask.config.set({"paceline.scheduler.durabel": "/x"}):
        found = doctor.settings()
    assert [each.grade for each in found] == ["note", "note"]
    assert "did you mean `paceline.scheduler.durable`?" in found[0].text
    assert "DASK_DISTRIBUTED__WORKER__TERMINAT" in found[1].text


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


def test_misspelt_variable() -> None:
    wrong, right = "DASK_DISTRIBUTED__WORKER__DEMON", "DASK_DISTRIBUTED__WORKER__DAEMON"
    checked = "DASK_DISTRIBUTED__SCHEDULER__WORK_STEALNG"  # by config.check
    found = doctor.unknown_variables({wrong: "1", right: "1", checked: "1", "HOME": "/"})
    assert found == [wrong]


def test_commands_report_an_unreachable_scheduler() -> None:
    for command in ("status", "doctor"):
        result = CliRunner().invoke(main, [command, "tcp://127.0.0.1:1", "--timeout", "2"])
        assert result.exit_code == 1
        assert "tcp://127.0.0.1:1" in result.output


def test_suggested_commands() -> None:
    text = what_next("tcp://10.0.0.1:8786", {"dashboard": SimpleNamespace(port=8787)})
    assert "dask worker tcp://10.0.0.1:8786" in text
    assert "http://localhost:8787/status" in text
    assert "Scheduler at" not in text and "dashboard at" not in text


@pytest.fixture(scope="module")
def real_scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with closing(Cluster(scheduler_command("paceline"), tmp_path_factory.mktemp("c"))) as cluster:
        cluster.start_scheduler()
        yield cluster


@pytest.mark.parametrize(
    "command", [["status", "--once"], ["doctor"], ["explain"], ["explain", "x"]], ids=" ".join
)
def test_each_command_takes_the_address_in_the_same_ways(
    command: list[str], real_scheduler: Cluster, tmp_path: Path
) -> None:
    address, file = real_scheduler.address, str(real_scheduler.scheduler_file)
    (tmp_path / "dask.yaml").write_text(f"scheduler-address: {address}")
    reply = {
        "status": f"{address}   0 workers",
        "doctor": f"The scheduler at {address} replies",
        "explain": "x" if "x" in command else "Workers: 0",
    }
    for arguments, variables in [
        ([address], {}),
        (["--address", address], {}),
        (["--scheduler-file", file], {}),
        ([], {"DASK_SCHEDULER_ADDRESS": address}),
        ([], {"DASK_CONFIG": str(tmp_path)}),
        (["--address", address], {"DASK_SCHEDULER_ADDRESS": "tcp://127.0.0.1:1"}),
    ]:
        run = subprocess.run(
            [*PACELINE, *command, *arguments],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert reply[command[0]] in run.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_reported(
    real_scheduler: Cluster, unbuffered: str
) -> None:
    command = [*PACELINE, "status", "--once", real_scheduler.address]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=environment, text=True, timeout=60
        )
    assert run.returncode == 1
    assert run.stderr == "Error: Cannot write: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("command", ["status", "doctor", "explain", "wiretap"])
def test_each_command_reports_a_missing_or_contradictory_address(
    command: str, tmp_path: Path
) -> None:
    address, file = "tcp://127.0.0.1:1", tmp_path / "scheduler.json"
    file.write_text("[]")
    from_file = ("--scheduler-file", str(file))
    cases: list[tuple[tuple[str, ...], str]] = [
        ((address, "--address", address), "More than one scheduler address"),
        (("--address", address, *from_file), "More than one scheduler address"),
        ((address, *from_file), "More than one scheduler address"),
        (from_file, "holds no address"),
        (("--scheduler-file", str(tmp_path / "none")), "does not exist"),
        (("--address", "127.0.0.1"), "'127.0.0.1' is not a scheduler address"),
        (("--address", ""), "'' is not a scheduler address"),
    ]
    if command != "doctor":  # without an address it checks this machine
        cases.append(((), "No scheduler address. Pass the argument ADDRESS, --address or"))
    for arguments, words in cases:
        result = CliRunner().invoke(main, [command, *arguments])
        assert (result.exit_code, words in result.output) == (2, True), result.output
    with dask.config.set({"scheduler-address": 8786}):
        result = CliRunner().invoke(main, [command])
    assert result.exit_code == 2 and "'8786' is not a scheduler address" in result.output


def test_wiretap_forwards_to_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, file = "tcp://127.0.0.1:1", tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": address}))
    forwarded = []
    monkeypatch.setattr(
        wiretap, "run", lambda listen, forward, **options: forwarded.append(forward)
    )
    for arguments in [
        (address,),
        ("--address", address),
        ("--forward", address),
        ("--scheduler-file", str(file)),
    ]:
        assert CliRunner().invoke(main, ["wiretap", *arguments]).exit_code == 0
    with dask.config.set({"scheduler-address": address}):
        assert CliRunner().invoke(main, ["wiretap", "--key", "tcp://x"]).exit_code == 0
    assert forwarded == [address] * 5


def test_explain_takes_the_address_after_the_key() -> None:
    for arguments in (["x", "tcp://127.0.0.1:1"], ["x", "--address", "tcp://127.0.0.1:1"]):
        result = CliRunner().invoke(main, ["explain", *arguments, "--timeout", "2"])
        assert result.exit_code == 1 and "Cannot connect to tcp://127.0.0.1:1" in result.output
