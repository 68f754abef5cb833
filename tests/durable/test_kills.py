"""A durable scheduler whose process dies, with stock workers and clients."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from distributed import Client, Event, get_task_metadata, get_task_stream, get_worker
from distributed.diagnostics import MemorySampler
from distributed.diagnostics.progressbar import TextProgressBar
from paceline.scheduler.server.durable.keeper.preconditions import DurableError, make_folder
from paceline.scheduler.server.durable.keeper.upgrade import PREDECESSORS_MAX

from benchmarks.chaos.workloads import WORKLOADS
from tests.support.durable_processes import kill, pid, stopped_keeper
from tests.support.real_cluster import PACELINE, Cluster

from .conftest import StartDurable

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="a durable scheduler needs Linux"),
]


def wait_for_text(cluster: Cluster, text: str) -> None:
    """Wait until the scheduler's log contains a text."""
    deadline = time.monotonic() + 60
    while text not in cluster.processes[0].output():
        assert time.monotonic() < deadline, f"{text!r} is not logged"
        time.sleep(0.05)


def wait_for_assignment(client: Client, address: str) -> None:
    """Wait until a task is assigned to a worker."""
    deadline = time.monotonic() + 30
    while not client.processing([address])[address]:
        assert time.monotonic() < deadline, f"no task is assigned to {address}"
        time.sleep(0.01)


def inc(x: int) -> int:
    return x + 1


def get_address() -> str:
    return get_worker().address


@pytest.mark.parametrize(
    "name", ["futures", "shuffle", "queues", "locks", "coordination", "requests"]
)
def test_work_goes_on(name: str, start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable(nanny=name == "futures")
    ended = threading.Event()
    problems: list[str] = []
    with Client(cluster.address, set_as_default=False) as client:
        before = sorted(client.scheduler_info()["workers"])

        def work() -> None:
            while not ended.is_set():
                problems.extend(WORKLOADS[name](client, tmp_path, random.Random(1)))

        thread = threading.Thread(target=work)
        thread.start()
        for seconds in (0.5, 0.9, 1.3):
            time.sleep(seconds)
            kill(tmp_path)
        ended.set()
        thread.join(60)
        assert not thread.is_alive()
        assert problems == []
        assert sorted(client.scheduler_info()["workers"]) == before
        assert client.submit(inc, 1).result(timeout=30) == 2
        assert client.status == "running"


def wait_for_event(name: str) -> None:
    Event(name).wait()


def test_progress_bars_go_on(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable()
    with Client(cluster.address, set_as_default=False) as client:
        future = client.submit(wait_for_event, "end")
        timers = [
            threading.Timer(0.5, kill, [tmp_path]),
            threading.Timer(2, Event("end", client=client).set),
        ]
        for timer in timers:
            timer.start()
        bar = TextProgressBar([future], scheduler=cluster.address, interval="20ms")
        assert (bar.status, client.scheduler_info()["restarts"]) == ("finished", 1)


def backpressured_workers(dask_scheduler: object) -> list[str]:
    workers = dask_scheduler.server.state.workers
    return [address for address, ws in workers.items() if ws.backpressured]


def test_worker_that_reads_again_gets_tasks(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable(DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION="inf")
    with Client(cluster.address, set_as_default=False) as client:
        address = client.submit(get_address).result(timeout=30)
        process = client.run(os.getpid, workers=[address])[address]
        futures = []
        os.kill(process, signal.SIGSTOP)
        try:
            while not client.run_on_scheduler(backpressured_workers):
                assert len(futures) < 100
                futures.append(client.submit(len, os.urandom(900_000), workers=[address]))
            with stopped_keeper(tmp_path):
                kill(tmp_path)
                os.kill(process, signal.SIGCONT)
                time.sleep(1)  # it reads what the process has written, so that the rest fits
        finally:
            os.kill(process, signal.SIGCONT)
        assert client.gather(futures) == [900_000] * len(futures)
        assert client.submit(inc, 1, workers=[address]).result(timeout=30) == 2


def test_standby_continues(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable(DASK_PACELINE__SCHEDULER__STANDBY_TURNS="100")
    with Client(cluster.address, set_as_default=False) as client:
        for number in range(4):
            problems = WORKLOADS["futures"](client, tmp_path, random.Random(number))
            problems += WORKLOADS["coordination"](client, tmp_path, random.Random(number))
            assert problems == []
            time.sleep(2)
            killed = pid(tmp_path)
            kill(tmp_path)
        while pid(tmp_path) == killed:
            time.sleep(0.01)
        kill(tmp_path)  # the one that the last standby left behind must continue
        assert client.submit(inc, 1).result(timeout=30) == 2
        assert client.scheduler_info()["restarts"] == 5
        assert len(client.scheduler_info()["workers"]) == 2


def test_process_that_is_a_copy_of_several_is_renewed(
    start_durable: StartDurable, tmp_path: Path
) -> None:
    cluster = start_durable()
    with Client(cluster.address, set_as_default=False) as client:
        kept = client.submit(inc, 1)
        for _ in range(PREDECESSORS_MAX):
            assert client.submit(inc, kept, pure=False).result(timeout=30) == 3
            kill(tmp_path)
        assert client.submit(inc, kept, pure=False).result(timeout=30) == 3
        copy = psutil.Process(pid(tmp_path))
        wait_for_text(cluster, "Renewed the scheduler process")
        assert not copy.is_running()
        identity = client.scheduler_info()
        assert (identity["restarts"], identity["upgrades"]) == (PREDECESSORS_MAX, 0)
        kill(tmp_path)
        assert client.submit(inc, kept, pure=False).result(timeout=30) == 3
        assert len(client.scheduler_info()["workers"]) == 2


def test_dead_standby_is_replaced(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable(DASK_PACELINE__SCHEDULER__STANDBY_TURNS="50")
    with Client(cluster.address, set_as_default=False) as client:
        assert WORKLOADS["futures"](client, tmp_path, random.Random(1)) == []
        scheduler = psutil.Process(pid(tmp_path))
        deadline = time.monotonic() + 60
        while not (standbys := scheduler.children()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        standbys[-1].kill()
        wait_for_text(cluster, "forking another one")
        time.sleep(3)
        kill(tmp_path)
        assert client.submit(inc, 1).result(timeout=30) == 2


def wait_for_standby(folder: Path) -> int:
    """Wait until the scheduler has a standby that is ready. Return the process id of that."""
    deadline = time.monotonic() + 60
    while True:
        for process in reversed(psutil.Process(pid(folder)).children()):
            with contextlib.suppress(psutil.NoSuchProcess):  # ended, or about to
                if process.cmdline()[0] == "paceline standby":
                    return process.pid
        assert time.monotonic() < deadline, "there is no standby"
        time.sleep(0.1)


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP], ids=lambda each: each.name)
def test_standby_that_does_not_answer_is_replaced(
    stop: signal.Signals, start_durable: StartDurable, tmp_path: Path
) -> None:
    cluster = start_durable(DASK_PACELINE__SCHEDULER__STANDBY_TURNS="50")
    with Client(cluster.address, set_as_default=False) as client:
        kept = client.map(inc, range(100))
        client.gather(kept)
        standby = wait_for_standby(tmp_path)
        with stopped_keeper(tmp_path):
            os.kill(standby, stop)
            kill(tmp_path)
        assert client.submit(inc, kept[-1]).result(timeout=30) == 101
        assert client.scheduler_info()["restarts"] == 1
    assert f"The standby process {standby} " in cluster.processes[0].output()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{standby}").exists():
        assert time.monotonic() < deadline, "the standby is not reaped"
        time.sleep(0.05)


def test_end_without_standby_and_without_the_start_of_the_log(
    start_durable: StartDurable, tmp_path: Path
) -> None:
    cluster = start_durable(DASK_PACELINE__SCHEDULER__STANDBY_TURNS="50")
    with Client(cluster.address, set_as_default=False) as client:
        data = [client.scatter(bytes(40_000_000), hash=False) for _ in range(2)]
        deadline = time.monotonic() + 60
        while (tmp_path / "log" / "segment-00000001.log").exists():
            assert time.monotonic() < deadline, "the log is not trimmed"
            time.sleep(0.1)
        with stopped_keeper(tmp_path):
            os.kill(wait_for_standby(tmp_path), signal.SIGKILL)
            kill(tmp_path)
        scheduler = cluster.processes[0]
        assert scheduler.popen.wait(30) == 1
        assert "No standby answers, and the log does not go back to the start" in scheduler.output()
        assert "Traceback" not in scheduler.output()
        del data


def test_requests_under_way_are_answered_or_fail_at_once(
    start_durable: StartDurable, tmp_path: Path
) -> None:
    cluster = start_durable()
    with Client(cluster.address) as client:
        errors: list[BaseException] = []

        def run_for_long() -> None:
            try:
                client.run_on_scheduler(time.sleep, 100)
            except OSError as error:
                errors.append(error)

        running = threading.Thread(target=run_for_long)
        event = Event("event")
        waiting = client.submit(Event.wait, event, 60)
        time.sleep(0.5)
        running.start()
        time.sleep(0.5)
        kill(tmp_path)
        running.join(30)
        assert len(errors) == 1
        event.set()
        assert waiting.result(timeout=30) is True


def test_interrupted_process_closes_no_connection(start_durable: StartDurable) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    cluster = start_durable()
    with Client(cluster.address) as client, ThreadPoolExecutor(1) as executor:
        event = Event("event")
        address = client.submit(get_address, pure=False).result(timeout=30)
        running = client.submit(Event.wait, event, 60, workers=[address])
        wait_for_assignment(client, address)
        retired = executor.submit(client.retire_workers, [address])
        wait_for_text(cluster, "1 tasks run there")
        with pytest.raises(OSError):
            client.run_on_scheduler(interrupt)
        event.set()
        assert running.result(timeout=30) is True
        assert list(retired.result(30)) == [address]
    assert "The scheduler process ends: KeyboardInterrupt()" in cluster.processes[0].output()


def test_only_a_shutdown_ends_the_cluster(start_durable: StartDurable) -> None:
    cluster = start_durable()
    scheduler = cluster.processes[0]
    with Client(cluster.address) as client:
        with pytest.raises(OSError):
            client.run_on_scheduler(os._exit, 0)
        assert client.submit(inc, 1).result(timeout=30) == 2
        assert "ended with 0; starting another one" in scheduler.output()
        client.shutdown()
        assert scheduler.popen.wait(30) == 0
    assert scheduler.output().count("starting another one") == 1


def test_collections_for_a_client_go_on(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable()
    with Client(cluster.address) as client:
        sampler = MemorySampler()
        with (
            get_task_metadata() as metadata,
            get_task_stream(client=client) as stream,
            sampler.sample("label", interval=0.05),
        ):
            for _ in range(2):
                killed = pid(tmp_path)
                kill(tmp_path)
                while pid(tmp_path) == killed:
                    time.sleep(0.01)
                client.submit(inc, 1, key="key", pure=False).result(timeout=30)
        assert metadata.state == {"key": "memory"}
        assert {record["key"] for record in stream.data} == {"key"}
        assert sampler.samples["label"]


def test_hang_is_ended(start_durable: StartDurable) -> None:
    cluster = start_durable(DASK_PACELINE__SCHEDULER__HANG_TIMEOUT="2s")
    with Client(cluster.address) as client:
        future = client.submit(inc, 1)
        assert future.result(timeout=30) == 2
        with pytest.raises(OSError):
            client.run_on_scheduler(time.sleep, 100)
        assert client.submit(inc, future).result(timeout=30) == 3
    assert "has not run for" in cluster.processes[0].output()


def test_cluster_ends_with_the_keeper(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable()
    scheduler = pid(tmp_path)
    kill(tmp_path, "keeper")
    wait_for_text(cluster, "The keeper process has ended")
    deadline = time.monotonic() + 30
    while Path(f"/proc/{scheduler}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for worker in cluster.processes[1:]:
        worker.popen.wait(60)
    assert "Traceback" not in cluster.processes[0].output()
    cluster.close()
    cluster = start_durable()
    wait_for_text(cluster, "whose keeper has ended: its peers are gone")
    with Client(cluster.address, set_as_default=False) as client:
        assert client.submit(inc, 1).result(timeout=30) == 2
        assert client.scheduler_info()["restarts"] == 0


def test_folder_has_one_keeper(start_durable: StartDurable, tmp_path: Path) -> None:
    start_durable()
    second = subprocess.run(
        [*PACELINE, "--port", "0", "--durable", str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 1
    assert "another scheduler uses" in second.stderr


def test_folder_that_cannot_be_created(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path / "nothing")
    for path, kind in ((file, "not a folder"), (link, "a link to a folder that does not exist")):
        with pytest.raises(DurableError, match=f"{path} is {kind}"):
            make_folder(path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--protocol", "tls"], "only tcp:// connections can be kept"),
        (["--host", "ws://127.0.0.1"], "only tcp:// connections can be kept"),
        (["--journal", "run.journal"], "cannot be combined with --journal"),
        (["--durable", ""], "the path of the folder is empty"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(
    options: list[str], reason: str, tmp_path: Path
) -> None:
    command = [*PACELINE, "--port", "0", "--durable", str(tmp_path / "log"), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert reason in ended.stderr
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("paceline.scheduler.durable", "true", "it takes text"),
        ("paceline.scheduler.hang-timeout", "soon", "it takes a duration of at least 1 s"),
        ("paceline.scheduler.hang-timeout", "0", "it takes a duration of at least 1 s"),
        ("distributed.comm.default-scheme", "tls", "only tcp:// connections can be kept"),
        ("distributed.comm.require-encryption", "yes", "only tcp:// connections can be kept"),
    ],
)
def test_configuration_is_checked_before_the_start(
    key: str, value: str, reason: str, tmp_path: Path
) -> None:
    folder = tmp_path / "log"
    config = {"DASK_PACELINE__SCHEDULER__DURABLE": str(folder), f"DASK_{_variable(key)}": value}
    ended = subprocess.run(
        [*PACELINE, "--port", "0"],
        env={**os.environ, **config},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert reason in ended.stderr and "Traceback" not in ended.stderr
    assert not folder.exists()


def _variable(key: str) -> str:
    return key.upper().replace(".", "__").replace("-", "_")


def test_restarts_are_shown(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable()
    with Client(cluster.address) as client:
        page = f"http://127.0.0.1:{client.scheduler_info()['services']['dashboard']}/metrics"
        kill(tmp_path)
        assert client.scheduler_info()["restarts"] == 1
    with urllib.request.urlopen(page, timeout=30) as reply:
        lines = dict(line.split(" ", 1) for line in reply.read().decode().splitlines())
    assert lines["dask_paceline_restarts_total"] == "1.0"
    assert lines["dask_paceline_durable"] == "1.0"
    assert 0 < float(lines["dask_paceline_restart_seconds"]) < 60
    shown = subprocess.run(
        [*PACELINE, "status", cluster.address, "--once"], capture_output=True, text=True, timeout=60
    )
    assert "1 restart" in shown.stdout, shown.stderr


def test_end_leaves_no_log(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable()
    kill(tmp_path)
    with Client(cluster.address) as client:
        assert client.submit(inc, 1).result(timeout=30) == 2
    cluster.close()
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["lock"]
    assert cluster.processes[0].popen.returncode == 0


#: Runs the command, and sends a signal before the keeper has started a scheduler process.
SIGNALLED_EARLY = """
import os, signal, sys
from paceline.scheduler.server.cli.main import main
from paceline.scheduler.server.runtime.template import Template

number, start_template = int(sys.argv.pop(1)), Template.start
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup

def start(*args, **options):
    os.kill(os.getpid(), number)
    return start_template(*args, **options)

Template.start = start
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
def test_signal_before_the_first_process_ends_the_scheduler(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", SIGNALLED_EARLY, str(int(number)), "--port", "0"]
    command += ["--no-dashboard", "--durable", str(tmp_path)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, start_new_session=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "Reason: signal-15" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_repeated_signals_end_the_scheduler(start_durable: StartDurable, tmp_path: Path) -> None:
    """A signal that arrives when the scheduler does not handle it any more is no death."""
    cluster = start_durable()
    process = cluster.processes[0]
    while process.running:
        process.terminate()
        time.sleep(0.005)
    assert "starting another one" not in process.output()
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["lock"]


def test_retirement_that_fails_is_reverted(start_durable: StartDurable, tmp_path: Path) -> None:
    cluster = start_durable()
    with Client(cluster.address) as client:
        event = Event("event")
        other = client.submit(get_address, pure=False).result(timeout=30)
        (address,) = set(client.scheduler_info()["workers"]) - {other}
        process = cluster.processes[1 + (client.run(os.getpid)[other] != cluster.processes[1].pid)]
        running = client.submit(Event.wait, event, 60, workers=[address])
        wait_for_assignment(client, address)
        retired: list[object] = []
        retiring = threading.Thread(target=lambda: retired.append(client.retire_workers([address])))
        retiring.start()
        wait_for_text(cluster, "1 tasks run there")
        kill(tmp_path)
        assert client.submit(get_address, pure=False).result(timeout=30) == other
        process.kill()  # no worker is left to receive the result
        event.set()
        retiring.join(60)
        assert retired == [{}]
        assert running.result(timeout=30) is True
        assert client.submit(get_address, pure=False).result(timeout=30) == address


def test_retirement_without_its_client_is_given_up(
    start_durable: StartDurable, tmp_path: Path
) -> None:
    cluster = start_durable()
    with Client(cluster.address) as client:
        event = Event("event")
        address = client.submit(get_address, pure=False).result(timeout=30)
        running = client.submit(Event.wait, event, 60, workers=[address])
        wait_for_assignment(client, address)
        code = (
            "import sys, distributed; distributed.Client(sys.argv[1]).retire_workers(sys.argv[2:])"
        )
        command = [sys.executable, "-c", code, cluster.address, address]
        with subprocess.Popen(command) as other_client:
            wait_for_text(cluster, "1 tasks run there")
            other_client.kill()
        wait_for_text(cluster, "Remove client")
        client.ncores()  # after this, the request has ended too
        kill(tmp_path)
        wait_for_text(cluster, "its status is running again")
        event.set()
        assert running.result(timeout=30) is True
        assert client.submit(get_address, workers=[address]).result(timeout=30) == address
