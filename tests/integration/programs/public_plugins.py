"""Programs that use every public plugin of distributed: ``diagnostics.plugin``, and the scheduler plugins of ``diagnostics``.

They do not depend on the scheduler that serves them. Each returns a comparable result. Those that restart workers use nannies.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import operator
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from distributed import Client, PipInstall, wait
from distributed.diagnostics.eventstream import EventStream
from distributed.diagnostics.graph_layout import GraphLayout
from distributed.diagnostics.plugin import (
    CondaInstall,
    Environ,
    ForwardOutput,
    InstallPlugin,
    SchedulerUploadFile,
    UploadDirectory,
    UploadFile,
)
from distributed.diagnostics.progress import AllProgress, GroupTiming, Progress
from distributed.diagnostics.task_stream import TaskStreamPlugin
from distributed.diagnostics.websocket import WebsocketPlugin

from .coordination import LONG_SECONDS, outcome, unique, until

#: Programs that restart workers.
NANNIES = (
    "directories_are_uploaded",
    "the_environment_of_workers",
    "functions_install_software",
    "directories_that_cannot_be_unpacked",
    "output_is_forwarded",
)
#: Programs that take longer than a few seconds.
SLOW = ("directories_are_uploaded", "packages_are_installed", "the_environment_of_workers")


def imported_value(module: str) -> int:
    return int(importlib.import_module(module).VALUE)


def variable(name: str) -> str | None:
    return os.environ.get(name)


def wait_for_restarted(of: Client) -> None:
    """Wait until both workers that nannies restarted answer."""
    until(lambda: len(of.run(os.getpid)) == 2)


@contextlib.contextmanager
def module_file(value: int) -> Any:
    """Write a module that no process has imported; yield its name and path."""
    name = unique("module").replace("-", "_")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name / f"{name}.py"
        path.parent.mkdir()
        path.write_text(f"VALUE = {value}\n")
        yield name, path


def directories_are_uploaded(client: Client) -> object:
    steps: list[object] = []
    with module_file(5) as (name, path):
        plugin = UploadDirectory(str(path.parent), restart_workers=True, update_path=True)
        steps.append(outcome(lambda: client.register_plugin(plugin)))
        wait_for_restarted(client)
        steps.append(list(client.run(imported_value, name).values()))
        plugin = UploadDirectory(str(path.parent), mode="all")
        steps.append(outcome(lambda: client.register_plugin(plugin)))
        steps.append(client.run_on_scheduler(imported_value, name))
        steps.append(outcome(lambda: UploadDirectory(str(path.parent), mode="some"))[0])
        steps.append(client.submit(imported_value, name, pure=False).result(LONG_SECONDS))
    return steps


def directories_that_cannot_be_unpacked(client: Client) -> object:
    """The client receives the error of a nanny plugin that a scheduler plugin registers."""
    with module_file(5) as (_, path):
        plugin = UploadDirectory(str(path.parent))
    plugin.data = b"no archive"
    return outcome(lambda: client.register_plugin(plugin))


def files_are_uploaded(client: Client) -> object:
    steps: list[object] = []
    with module_file(6) as (name, path):
        steps.append(sorted(map(repr, client.register_plugin(UploadFile(str(path))).values())))
        steps.append(list(client.run(imported_value, name).values()))
    with module_file(7) as (name, path):
        steps.append(client.register_plugin(SchedulerUploadFile(str(path))))
        steps.append(client.run_on_scheduler(imported_value, name))
    with module_file(8) as (name, path):
        client.upload_file(str(path))
        steps.append(list(client.run(imported_value, name).values()))
        steps.append(client.run_on_scheduler(imported_value, name))
        path.write_text("def no python")
        steps.append(outcome(lambda: client.register_plugin(SchedulerUploadFile(str(path)))))
    return steps


def the_environment_of_workers(client: Client) -> object:
    name = unique("VARIABLE")
    steps: list[object] = [client.run(variable, name, nanny=True) == {}]
    replies = client.register_plugin(Environ({name: 7}))
    steps.append(sorted(value["status"] for value in replies.values()))
    client.restart(timeout=LONG_SECONDS)
    steps.append(list(client.run(variable, name).values()))
    return steps


class Install:
    """Install by setting a variable of the process, or fail on workers."""

    def __init__(self, name: str, fail: bool = False) -> None:
        self.name, self.fail = name, fail

    def __call__(self) -> None:
        is_scheduler = "scheduler" in " ".join(sys.argv) or "paceline" in sys.argv[0]
        if self.fail and not is_scheduler:
            raise ValueError("not on workers")
        os.environ[self.name] = "installed"


def functions_install_software(client: Client) -> object:
    """Install on workers; on nannies, which restart their workers; and with a failure."""
    steps: list[object] = []
    for restart in (False, True):
        name = unique("INSTALLED")
        steps.append(outcome(lambda: client.register_plugin(InstallPlugin(Install(name), restart))))  # noqa: B023
        wait_for_restarted(client)
        steps.append(list(client.run(variable, name).values()))
        steps.append(client.run_on_scheduler(variable, name))
        fails = InstallPlugin(Install(name, fail=True), restart)
        steps.append(outcome(lambda: client.register_plugin(fails)))  # noqa: B023
        # workers that start later do not have it
        remove = client.unregister_worker_plugin(fails.name, nanny=restart)
        steps.append(sorted(value["status"] for value in remove.values()))
    steps.append(client.submit(operator.add, 1, 2, pure=False).result(LONG_SECONDS))
    return steps


def packages_are_installed(client: Client) -> object:
    """Install a package with pip that is already there, and one that cannot be installed."""
    there = PipInstall(["pip"], pip_options=["--no-index"])
    steps: list[object] = [outcome(lambda: client.register_plugin(there))]
    missing = PipInstall(["no-such-package-of-paceline"], pip_options=["--no-index"])
    steps.append(outcome(lambda: client.register_plugin(missing))[0])
    steps.append(outcome(lambda: client.register_plugin(CondaInstall(["dask"])))[0])
    return steps


def log_something(text: str) -> None:
    logging.getLogger("forwarded").warning(text)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logs_are_forwarded(client: Client) -> object:
    text, lines = unique("text"), Lines()
    local = logging.getLogger("forwarded")
    local.addHandler(lines)
    try:
        client.forward_logging("forwarded", level=logging.INFO)
        # the client's subscription may arrive after the first lines, which are lost in that case
        until(lambda: client.run(log_something, text) and len(lines.lines) > 1)
        client.unforward_logging("forwarded")
        client.run(log_something, "not " + text)
    finally:
        local.removeHandler(lines)
    return {line.replace(text, "text") for line in lines.lines}


def print_text(text: str) -> None:
    print(text, flush=True)


def output_is_forwarded(client: Client) -> object:
    client.restart()  # clients inside workers print what is forwarded, and it is forwarded again
    text, output = unique("text"), io.StringIO()
    plugin = ForwardOutput()
    plugin.name = unique("forward-output")
    client.register_plugin(plugin)
    with contextlib.redirect_stdout(output):
        client.run(print_text, text)
        until(lambda: output.getvalue().count(text) == 2)
    client.unregister_worker_plugin(plugin.name)
    return output.getvalue().replace(text, "text")


class Socket:
    """Collect the messages of a ``WebsocketPlugin``."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def send(self, op: str, data: Any) -> None:
        self.sent.append((op, data))


def watch(mark: str, dask_scheduler: Any = None) -> None:
    socket = Socket()
    dask_scheduler.watching = {
        "layout": GraphLayout(dask_scheduler),
        "events": EventStream(dask_scheduler),
        "timing": GroupTiming(dask_scheduler),
        "stream": TaskStreamPlugin(dask_scheduler),
        "websocket": WebsocketPlugin(socket, dask_scheduler),
        "progress": AllProgress(dask_scheduler),
    }
    for name in ("layout", "timing", "stream", "websocket"):
        dask_scheduler.add_plugin(dask_scheduler.watching[name], name=f"{name}-{mark}")


async def follow(key: str, dask_scheduler: Any = None) -> object:
    progress = Progress([key], dask_scheduler)
    await progress.setup()
    known = progress.name in dask_scheduler.plugins  # one that is finished removes itself
    return len(progress.all_keys), len(progress.keys), progress.status, known


def seen(mark: str, dask_scheduler: Any = None) -> object:
    """Return the records of the plugins about tasks with the mark."""

    def mine(key: Any) -> bool:
        return mark in str(key)

    watching = dask_scheduler.watching
    layout, progress = watching["layout"], watching["progress"]
    websocket = watching["websocket"].socket.sent
    transitions = [data for op, data in websocket if op == "transition" and mine(data["key"])]
    records = [each for each in watching["stream"].collect() if mine(each["key"])]
    return {
        "places": sorted(x for key, x in layout.x.items() if mine(key)),
        "edges": sum(mine(edge[1]) for edge in layout.index_edge),
        "events": sorted(
            len(e["startstops"]) > 0 for e in watching["events"].buffer if mine(e["key"])
        ),
        # not their times, which are 0 if a worker's clock is a little behind the scheduler's
        "groups": sum(mine(name) for name in watching["timing"].compute),
        "stream": [
            sorted(set(record) & {"key", "nbytes", "startstops", "thread", "worker"})
            for record in records
        ],
        "websocket": sorted(
            {
                (data["action"], type(data["color"]).__name__)
                for data in transitions
                if data["action"] == "compute"
            }
        ),
        "all": sorted(len(keys) for name, keys in progress.all.items() if mine(name)),
        "states": sorted(
            state
            for state, names in progress.state.items()
            if any(mine(n) and names[n] for n in names)
        ),
    }


def watch_no_more(mark: str, dask_scheduler: Any = None) -> list[str]:
    for name in ("layout", "timing", "stream", "websocket"):
        dask_scheduler.remove_plugin(f"{name}-{mark}")
    for name in ("events", "progress"):
        dask_scheduler.remove_plugin(dask_scheduler.watching[name].name)
    del dask_scheduler.watching
    return sorted(name for name in dask_scheduler.plugins if mark in name)


def diagnostics_in_the_scheduler(client: Client) -> object:
    """Return layout of the graph, events, timing, task stream, websocket and progress of a chain of tasks."""
    mark = "mark" + "".join(chr(ord("g") + int(digit, 16)) for digit in unique("")[1:])
    client.run_on_scheduler(watch, mark)
    first = client.submit(operator.add, 1, 2, key=f"firstof{mark}")
    second = client.submit(operator.add, first, 2, key=f"secondof{mark}")
    erred = client.submit(operator.truediv, second, 0, key=f"thirdof{mark}")
    wait([second, erred])
    steps: list[object] = [client.run_on_scheduler(seen, mark)]
    steps.append(client.run_on_scheduler(follow, second.key))
    del first, second, erred
    until(lambda: client.run_on_scheduler(seen, mark)["all"] == [])  # type: ignore[index]
    steps.append(client.run_on_scheduler(seen, mark))
    steps.append(client.run_on_scheduler(watch_no_more, mark))
    return steps
