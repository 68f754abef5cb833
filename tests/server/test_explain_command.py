"""``paceline explain``: a request over a socket, and the output."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from paceline.protocol import messages as m
from paceline.scheduler.server.cli import main
from paceline.scheduler.server.cli.rpc_client import RpcError, call_scheduler
from paceline.scheduler.server.scheduler import Scheduler

from tests.support.fake_peers import client


async def ask_running(*arguments: str) -> str:
    """Run the command against a scheduler with a client that desires a key without a task."""
    async with Scheduler(host="127.0.0.1", dashboard=False, compile_in_threads=True) as scheduler:
        alice = await client(scheduler)
        alice.send([m.ClientDesiresKeys(keys=["x", 3, "4"], client="client-1")])
        while "x" not in scheduler.server.state.tasks:
            await asyncio.sleep(0.01)
        runner = CliRunner()
        command = ["explain", *arguments, "--address", scheduler.address]
        result = await asyncio.to_thread(runner.invoke, main.main, command)
        assert result.exit_code == 0, result.output
        return str(result.output)


async def test_a_task() -> None:
    text = await ask_running("x")
    assert text.startswith("x: released")
    assert "no graph with this key was submitted" in text
    assert "Wanted by client-1." in text


async def test_a_key_that_is_a_tuple() -> None:
    assert "does not know ('x', 0)" in await ask_running("('x', 0)")


async def test_a_key_that_is_a_number() -> None:
    found = [json.loads(await ask_running(key, "--json")) for key in ("3", "4", "5")]
    assert [(each["key"], each["state"]) for each in found] == [
        *((3, "released"), ("4", "released"), ("5", None)),
    ]


async def test_control_characters_of_a_key_are_escaped() -> None:
    assert r"does not know x\x1b[31m\n" in await ask_running("x\x1b[31m\n")


async def test_the_cluster() -> None:
    text = await ask_running()
    assert "Workers: 0 (none), 0 threads" in text
    assert "Tasks:   3 released" in text


async def test_explain_everything() -> None:
    found = json.loads(await ask_running("x", "--json"))
    assert found["state"] == "released"
    assert found["wanted_by"]["clients"] == ["client-1"]


def test_unreachable_scheduler() -> None:
    result = CliRunner().invoke(main.main, ["explain", "x", "--address", "tcp://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "Cannot connect to tcp://127.0.0.1:1" in result.output
    with pytest.raises(RpcError, match="tcp and tls only"):
        call_scheduler("ucx://127.0.0.1:1", m.Explain())


async def test_a_server_with_another_protocol() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RpcError, match=f"tcp://127.0.0.1:{port} is not a scheduler: "):
            await asyncio.to_thread(call_scheduler, f"tcp://127.0.0.1:{port}", m.Explain())


def test_control_characters_of_an_error_are_escaped() -> None:
    assert RpcError("refused\x1b[31m\nby \x07").message == "refused\\x1b[31m\nby \\x07"


def test_the_address_is_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text("{}")
    result = CliRunner().invoke(main.main, ["explain", "x", "--scheduler-file", str(file)])
    assert result.exit_code == 2
    assert "holds no address" in result.output
