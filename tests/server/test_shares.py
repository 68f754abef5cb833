"""Share groups over sockets: requests, commands, pages and metrics, and stock clients that take turns."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import dask.config
import pytest
from click.testing import CliRunner
from distributed import Client, Worker
from paceline.scheduler.server.cli import main, shares
from paceline.scheduler.server.journal.replay import replay
from paceline.scheduler.server.scheduler import Scheduler


async def invoke(scheduler: Scheduler, *command: str) -> str:
    """Run a command against the scheduler and return its output."""
    arguments = [*command, "--address", scheduler.address]
    result = await asyncio.to_thread(CliRunner().invoke, main.main, arguments)
    assert result.exit_code == 0, result.output
    return str(result.output)


def scheduler(**options: Any) -> Scheduler:
    return Scheduler(host="127.0.0.1", dashboard=False, compile_in_threads=True, **options)


async def test_settings_change_and_are_in_the_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    async with scheduler(journal=str(journal)) as running:
        options = ("--weight", "4", "--class", "1", "--threads", "8", "--memory", "10 GiB")
        shown = await invoke(running, "shares", "batch", *options)
        assert "threads 8, memory 10.00 GiB" in shown and "on workers" in shown
        await invoke(running, "shares", "batch", "--threads", "none")
        found = json.loads(await invoke(running, "shares", "batch", "--json"))
        expected = {"weight": 4, "class": 1, "threads": None, "tasks": None, "memory": 10 * 2**30}
        assert [each["settings"] for each in found["groups"]] == [expected]
        assert isinstance(found["groups"][0]["settings"]["memory"], int)
        command = ["shares", "nobody", "--address", running.address]
        result = await asyncio.to_thread(CliRunner().invoke, main.main, command)
        assert result.exit_code == 1 and "no share group 'nobody'" in result.output
        for address in (running.address, running.address.removeprefix("tcp://")):
            result = await asyncio.to_thread(CliRunner().invoke, main.main, ["shares", address])
            assert result.exit_code == 0 and "batch" in result.output
        async with Client(running.address, asynchronous=True) as client:
            with pytest.raises(ValueError, match="weight of share group 'batch' must be from"):
                await client.scheduler.shares(group="batch", settings={"weight": 0.0})
    assert replay(journal).differs_after is None


async def test_settings_do_not_change_if_shares_are_disabled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with dask.config.set({"paceline.shares.enabled": False}):
        running = scheduler()
    async with running:
        command = ["shares", "(all)", "--tasks", "0", "--address", running.address]
        result = await asyncio.to_thread(CliRunner().invoke, main.main, command)
    assert result.exit_code == 1
    assert result.output == (
        f"Error: {running.address} replied with an error: cannot change share group '(all)': share "
        "groups are disabled; set `paceline.shares.enabled` to true and restart the scheduler\n"
    )
    assert "Exception while handling" not in caplog.text


def test_names_and_sums_in_tables() -> None:
    caps = {"threads": None, "tasks": 3, "memory": None}
    sums = {"finished": 1, "thread_seconds": 2.0, "nbytes": 0, "moved_nbytes": 0}
    group = {
        **{"name": "g" * 200, "settings": {"weight": 1.0, "class": 0, **caps}, "usage": 0.0},
        **{"processing": 0, "extra_runs": 0, "queued": 0, "waits_for": "", "clients": []},
        **{"byte_seconds": 1536.5, **sums},
    }
    found = {"enabled": True, "groups": [group]}
    for lines in (shares.share_lines(found), shares.usage_lines(found)):
        assert lines[1].startswith("g" * 49 + "…  ") and len(lines[1]) < 120
    assert "  1.50 kiB s  " in shares.usage_lines(found)[1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--weight", "2"], "Name the GROUP"),
        (["", "--weight", "2"], "must have 1 to 200 characters"),
        (["a\x9b", "--weight", "2"], r"none of them control characters; got 'a\x9b'"),
        (["batch", "--class", "99999999999999999999"], "must be an integer from -1000000 to"),
        (["batch", "--weight", "0"], "must be from 1e-06 to 1e+06"),
        (["batch", "--weight", "inf"], "must be from 1e-06 to 1e+06"),
        (["batch", "--threads", "few"], "--threads takes a whole number or \"none\", not 'few'"),
        (["batch", "--memory", "much"], '--memory takes a size, as "10 GiB", or "none"'),
        (["batch", "--memory", "1e400"], '--memory takes a size, as "10 GiB", or "none"'),
    ],
)
def test_invalid_options(options: list[str], error: str) -> None:
    result = CliRunner().invoke(main.main, ["shares", *options, "--address", "tcp://127.0.0.1:1"])
    assert result.exit_code == 2
    assert error in result.output


async def test_page_and_metrics() -> None:
    async with Scheduler(
        host="127.0.0.1", dashboard_address=":0", compile_in_threads=True
    ) as running:
        await invoke(running, "shares", "batch", "--tasks", "3")
        port = running.http_server.port
        found = json.loads(
            await asyncio.to_thread(read, f"http://127.0.0.1:{port}/json/shares.json")
        )
        assert [each["settings"]["tasks"] for each in found["groups"]] == [3]
        text = await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")
        assert 'dask_paceline_share_thread_seconds_total{group="batch"} 0.0' in text
        assert 'dask_paceline_share_tasks{group="batch",state="queued"} 0.0' in text


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as page:
        return str(page.read().decode())


@pytest.mark.integration
async def test_stock_clients_take_turns() -> None:
    """A client with a short job does not wait for the long job of another one."""
    with dask.config.set({"paceline.shares.clients": {"night-*": "batch"}}):
        running = scheduler()
    async with (
        running,
        Worker(running.address, nthreads=1, dashboard_address=":0"),
        Client(running.address, name="night-run", asynchronous=True) as batch,
        Client(running.address, name="alice", asynchronous=True) as alice,
    ):
        long = batch.map(slow, range(60), pure=False)
        while not any(ws.processing for ws in running.server.state.workers.values()):
            await asyncio.sleep(0.01)
        short = alice.map(slow, range(3), pure=False)
        await alice.gather(short)
        assert sum(future.done() for future in long) < 30
        assert await batch.gather(long) == list(range(60))
        text = await invoke(running, "usage")
        assert "batch" in text and "alice" in text
        found = json.loads(await invoke(running, "usage", "--json"))
        finished = {each["name"]: each["finished"] for each in found["groups"]}
        assert (finished["batch"], finished["alice"]) == (60, 3)


def slow(x: int) -> int:
    time.sleep(0.05)
    return x
