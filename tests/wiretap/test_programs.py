"""All programs of ``tests/integration/programs``, with ``paceline wiretap`` between real processes, conform to the catalogue."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_cluster import Cluster, Process, scheduler_command, start_process

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
SECONDS = 3000
#: Deliberate violations by programs that compare the errors of both schedulers.
MISTAKES = {
    "wrong type: logs $.n: Expected `int | null`, got `str`",
    "wrong type: get_task_stream $.count: Expected `int | null`, got `str`",
}


class TappedProcesses(Cluster):
    """A cluster whose workers and clients reach its scheduler through a tap."""

    tap: Process | None = None

    def _wait_for_address(self, process: Process) -> str:
        real = super()._wait_for_address(process)
        command = [
            sys.executable,
            "-m",
            "paceline.scheduler.server.cli.main",
            "wiretap",
            "--forward",
        ]
        command += [real, "--listen", "tcp://127.0.0.1:0", "--quiet", "--stats"]
        self.tap = start_process("tap", command, self.folder, self.config)
        for _ in range(600):
            if found := re.search(r"Listening at (\S+),", self.tap.output()):
                return found[1]
            time.sleep(0.1)
        raise TimeoutError(self.tap.tail())

    def hang_up(self) -> tuple[int, str]:
        """Stop the tap. Return its exit code and output."""
        assert self.tap is not None
        self.tap.popen.send_signal(signal.SIGINT)
        code = self.tap.popen.wait(30)
        return code, self.tap.output()

    def close(self) -> None:
        super().close()
        if self.tap is not None:
            self.tap.kill()


def programs(kind: str, nannies: bool) -> Iterator[Callable[[Any], object]]:
    """Return every public function with one parameter called `client`, except those that only fail on stock."""
    for path in sorted((ROOT / "tests/integration/programs").glob("[!_]*.py")):
        module = importlib.import_module(f"tests.integration.programs.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__
            if own and list(inspect.signature(function).parameters) == ["client"]:
                if kind == "stock" and name in getattr(module, "EXPECTED", {}):
                    continue
                if (name in getattr(module, "NANNIES", ())) == nannies:
                    yield function


def tapped(kind: str, folder: Path, nannies: bool = False) -> TappedProcesses:
    # functions of programs are pickled by reference, as those of an installed package
    inherited = os.environ.get("PYTHONPATH")
    config = {"PYTHONPATH": os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])}
    options: dict[str, Any] = {}
    if nannies:
        config["DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES"] = "1"
        options = {"nannies": (True, True), "nthreads": 1}
    return TappedProcesses(scheduler_command(kind), folder, config=config, **options)


@pytest.mark.timeout(200)
def test_dataframe_program_gives_same_result_through_tap(tmp_path: Path, stock: Cluster) -> None:
    from tests.integration.programs.dataframes import merge_by_p2p

    with stock.client() as client:
        expected = merge_by_p2p(client)
    with tapped("paceline", tmp_path) as cluster:
        with cluster.client() as client:
            actual = merge_by_p2p(client)
        code, output = cluster.hang_up()
    assert str(actual) == str(expected)
    assert code == 0 and "no violations" in output.splitlines()[-1], output[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("nannies", [False, True], ids=["workers", "nannies"])
@pytest.mark.parametrize("kind", ["stock", "paceline"])
def test_all_programs(kind: str, nannies: bool, tmp_path: Path) -> None:
    failed: list[str] = []
    with tapped(kind, tmp_path, nannies) as cluster:
        for program in programs(kind, nannies):
            with cluster.client() as client:
                try:
                    program(client)
                except Exception as error:
                    failed.append(f"{program.__name__}: {error!r}")
        code, output = cluster.hang_up()
    assert failed == []
    found = re.findall(r"^!! \S+: (.*)$", output, re.MULTILINE)
    assert set(found) <= MISTAKES, output[-5000:]
    assert code == bool(found), output[-5000:]
    assert f"{len(found) or 'no'} violations" in output.splitlines()[-1]
