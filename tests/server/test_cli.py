"""The command: options, log lines that other programs parse, signals, exit codes."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from distributed import Client
from paceline.scheduler.server.cli import main, run_scheduler
from paceline.scheduler.server.cli.options import read_key, read_number_or_bytes
from paceline.scheduler.server.durable.keeper.upgrade import KEEPER, VARIABLE
from paceline.scheduler.server.runtime.build import COMPILED

COMMAND = [sys.executable, "-m", "paceline.scheduler.server.cli.main"]


def start(
    tmp_path: Path, *options: str, before: Sequence[str] = ()
) -> tuple[subprocess.Popen[str], Path]:
    file = tmp_path / "scheduler.json"
    base = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*before, *COMMAND, *base, "--scheduler-file", str(file), *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    deadline = time.monotonic() + 30
    while not file.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return process, file


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_scheduler_starts_and_stops(tmp_path: Path, number: signal.Signals) -> None:
    pid_file = tmp_path / "pid"
    process, file = start(tmp_path, "--pid-file", str(pid_file))
    facts = json.loads(file.read_text())
    assert facts["type"] == "Scheduler"
    assert pid_file.read_text() == str(process.pid)
    url = f"http://127.0.0.1:{facts['services']['dashboard']}/health"
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"ok"
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(number)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert not file.exists()
    assert not pid_file.exists()
    assert f"distributed.scheduler - INFO -   Scheduler at:     {facts['address']}" in log
    assert "dashboard at:  http://127.0.0.1:" in log
    assert f"Received signal {number.name} ({number.value})" in log
    assert f"Closing scheduler. Reason: signal-{number.value}" in log
    assert f"Stopped scheduler at '{facts['address']}'" in log
    assert log.rstrip().endswith("End scheduler")
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


def test_a_forked_process_does_not_remove_the_pid_file(tmp_path: Path) -> None:
    program = """
import os
from paceline.scheduler.server.cli.run_scheduler import write_pid_file
write_pid_file("pid")
child = os.fork()
if child:
    os.waitpid(child, 0)
    assert os.path.exists("pid")
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
    assert not (tmp_path / "pid").exists()


def test_upgraded_keeper_needs_no_access_to_its_pid_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upgrade keeps its process id, which is in the file."""
    monkeypatch.setenv(VARIABLE, f"{KEEPER}:3")
    run_scheduler.write_pid_file(str(tmp_path / "folder" / "pid"))


def test_a_killed_scheduler_leaves_no_compilers(tmp_path: Path) -> None:
    process, file = start(tmp_path)
    with Client(json.loads(file.read_text())["address"], set_as_default=False) as client:
        future = client.submit(sum, [1, 2])
        while not client.story(future.key):
            time.sleep(0.05)
        children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert len(children) == 1, "the template, which has become a graph compiler"
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{c}") for c in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{c}") for c in children)


def test_preloads_get_their_options(tmp_path: Path) -> None:
    (tmp_path / "pre.py").write_text(
        "import click\n"
        "@click.command()\n"
        "@click.option('--dg-x')\n"
        "async def dask_setup(scheduler, dg_x):\n"
        "    print('setup', dg_x, scheduler.address, flush=True)\n"
        "def dask_teardown(scheduler):\n"
        "    print('teardown', flush=True)\n"
    )
    process, file = start(tmp_path, "--preload", "pre.py", "--idle-timeout", "1s", "--dg-x", "5")
    address = json.loads(file.read_text())["address"]
    out, log = process.communicate(timeout=30)
    assert process.returncode == 0, log
    assert out.split("\n")[:2] == [f"setup 5 {address}", "teardown"]
    assert "Reason: idle-timeout-exceeded" in log


def test_error_of_a_start_that_receives_a_signal_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pre.py").write_text(
        "import os, signal\n"
        "class Plugin:\n"
        "    def start(self, scheduler):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        raise ValueError('the plugin is broken')\n"
        "def dask_setup(scheduler):\n"
        "    scheduler.add_plugin(Plugin())\n"
    )
    process, _ = start(tmp_path, "--preload", "pre.py")
    _, log = process.communicate(timeout=30)
    assert process.returncode == 1 and "Error: the plugin is broken" in log


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-"])
def test_scheduler_starts_with_closed_streams(tmp_path: Path, closed: str) -> None:
    """Programs that start daemons close these streams."""
    program = tmp_path / "closed.sh"
    program.write_text(f'exec "$@" {closed}\n')
    process, file = start(tmp_path, before=["sh", str(program)])
    assert file.exists()
    with Client(json.loads(file.read_text())["address"]) as client:
        future = client.submit(int, key="x")  # its graph is compiled in a child process
        client.run_on_scheduler(lambda: print("to nothing", flush=True))
        while not client.run_on_scheduler(lambda dask_scheduler: "x" in dask_scheduler.tasks):
            time.sleep(0.02)
        del future
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_log_with_a_configuration_for_dictconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a configuration disables loggers that precede the import of distributed."""
    (tmp_path / "logging.yaml").write_text(
        "logging:\n"
        "  version: 1\n"
        "  handlers: {console: {class: logging.StreamHandler}}\n"
        "  root: {handlers: [console], level: INFO}\n"
    )
    monkeypatch.setenv("DASK_CONFIG", str(tmp_path))
    process, _ = start(tmp_path)
    process.terminate()
    _, log = process.communicate(timeout=20)
    assert "  Scheduler at: " in log
    assert "End scheduler" in log


def test_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    first, file = start(tmp_path)
    port = json.loads(file.read_text())["address"].rpartition(":")[2]
    done = subprocess.run(
        [*COMMAND, "--host", "127.0.0.1", "--port", port, "--no-dashboard"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    first.terminate()
    first.communicate()
    assert done.returncode == 1
    assert "Error:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nonsense", "3"], "No such option"),
        (["extra"], "list --preload before them"),
        (["--port", "1,2", "--protocol", "tcp"], "lists of equal length"),
        (["--port", "65536"], "--port must be a number"),
        (["replay", "--until", "-1", __file__], "-1 is not in the range x>=0"),
        (["decode", "--check", "nope", os.devnull], "'nope' is not one of 'worker_to_scheduler'"),
    ],
)
def test_invalid_options_are_refused(arguments: list[str], words: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(main, "run_scheduler", lambda **options: None)
    result = CliRunner().invoke(main.main, arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_options_reach_the_scheduler(monkeypatch: Any) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(main, "run_scheduler", lambda **options: seen.update(options))
    monkeypatch.setattr(main, "set_process_title", lambda title: None)
    result = CliRunner().invoke(
        main.main, ["--no-show", "--use-xheaders", "true", "--idle-timeout", "10 minutes"]
    )
    assert result.exit_code == 0, result.output
    assert seen["port"] == 8786
    assert seen["idle_timeout"] == "10 minutes"
    assert main.listen_options("tcp://h:1", None, None, None)["port"] is None
    assert main.listen_options("", "", None, None)["port"] == 0
    lists = main.listen_options("", "1,2", None, "tcp,tls")
    assert (lists["port"], lists["protocol"]) == ([1, 2], ["tcp", "tls"])
    version = CliRunner().invoke(main.main, ["--version"]).output
    assert version.startswith("paceline, version ")
    assert version.endswith(f" ({'compiled' if COMPILED else 'pure Python'})\n")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e300", "soon"])
@pytest.mark.parametrize("option", ["--timeout", "--interval"])
def test_times_of_commands_are_checked(option: str, seconds: str) -> None:
    arguments = ["status", option, seconds, "tcp://127.0.0.1:1"]
    result = CliRunner().invoke(main.main, arguments)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.output


def test_keys_are_parsed_from_the_command_line() -> None:
    assert read_key("('x', 0)") == ("x", 0)
    assert read_key("x-1") == "x-1"
    assert read_key("(oops") == "(oops"
    assert read_key("({}, 1)") == "({}, 1)"
    assert read_key(None) is None
    assert [read_number_or_bytes(text) for text in ("-3", "2.5", "b'x'")] == [-3, 2.5, b"x"]
    assert {read_number_or_bytes(text) for text in ("x-1", "True", "('x', 0)", "'x'", "")} == {None}


@pytest.mark.parametrize(
    "options, said",
    [
        (("--port", "abc"), "--port must be a number"),
        (("--idle-timeout", "soon"), "is not a duration"),
        (("--preload", "no_such_module_anywhere"), "Is it installed in this environment"),
        (
            ("--pid-file", "/no/such/folder/pid"),
            "'/no/such/folder/pid'. The folder of a given file",
        ),
        (
            ("wiretap", "--listen", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:1"),
            "port must be 0-65535",
        ),
    ],
)
def test_errors_include_advice(options: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main.main, options)
    assert done.exit_code != 0
    assert said in done.output
    assert "Traceback" not in done.output


def test_system_errors_include_advice() -> None:
    taken = OSError(errno.EADDRINUSE, "Address already in use")
    assert "--port 0" in run_scheduler.advice(taken, {"port": 8786, "host": ""})
    assert "(--port 8786)" in run_scheduler.advice(taken, {"port": 8786, "host": ""})
    foreign = OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
    assert "Omit --host" in run_scheduler.advice(foreign, {"host": "192.0.2.77"})
    assert run_scheduler.advice(ValueError("as it is"), {}) == "as it is"
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    said = run_scheduler.advice(unknown, {"host": "no.such.host", "dashboard_address": ":8787"})
    assert "(--host no.such.host, --dashboard-address :8787). Is one of" in said
    no_certificate = ssl.SSLError(errno.EADDRINUSE, "no certificate found")
    files = {"tls_ca_file": "/a.pem", "tls_scheduler_cert": "/b.pem"}
    said = run_scheduler.advice(no_certificate, {"port": 8786, "security": files})
    assert "(--tls-ca-file /a.pem, --tls-cert /b.pem). These files must be in PEM" in said


@pytest.mark.parametrize("arguments", [[], ["replay"], ["status"]])
def test_short_option_of_help(arguments: list[str]) -> None:
    result = CliRunner().invoke(main.main, [*arguments, "-h"])
    assert result.exit_code == 0, result.output
    assert "-h, --help" in result.output
    assert CliRunner().invoke(main.scheduler, ["-h"]).exit_code == 0
