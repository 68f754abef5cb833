"""The Dockerfile without a Docker engine: parse it, and run its install and start commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_cluster import Process, start_process
from tests.support.source_tree import ROOT

START_TIMEOUT_SECONDS = 60


def instructions() -> list[tuple[str, str]]:
    """(INSTRUCTION, arguments) in order, continued lines joined, comments dropped."""
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.split("\n") if line]


def last(name: str) -> str:
    return [arguments for instruction, arguments in instructions() if instruction == name][-1]


def final_stage() -> list[tuple[str, str]]:
    found = instructions()
    start = max(i for i, (name, _) in enumerate(found) if name == "FROM")
    return found[start:]


def test_dockerfile_defines_a_scheduler_image() -> None:
    stage = dict(final_stage())
    entrypoint = json.loads(stage["ENTRYPOINT"])
    assert entrypoint[0] == "tini", "tini is PID 1, for signals and zombies"
    assert entrypoint[-1] == "/usr/bin/prepare.sh", "as in the dask image"
    assert json.loads(stage["CMD"]) == ["paceline"]
    assert stage["EXPOSE"].split() == ["8786", "8787"]
    assert "/health" in stage["HEALTHCHECK"]
    assert stage["USER"] not in ("root", "0")
    names = [name for name, _ in final_stage()]
    assert names.index("USER") > names.index("RUN"), "commands that need root come first"


def test_copied_files_exist() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    for name, arguments in instructions():
        if name == "COPY" and "--from" not in arguments:
            for path in arguments.split()[:-1]:
                assert (ROOT / path).exists(), path
                assert f"!{path}" in ignored, f"{path} is left out of the build's context"


class Image:
    """Result of the build in folders of this machine: `home` replaces /opt/paceline."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "opt"
        self.path = f"{self.home}/bin:/usr/bin:/bin"

    def build(self, env: dict[str, str]) -> None:
        """COPY the files, and RUN with `env` the commands that make the environment."""
        context = self.folder / "src"
        context.mkdir()
        for name, arguments in instructions():
            if name == "COPY" and "--from" not in arguments:
                for path in arguments.split()[:-1]:
                    source = ROOT / path
                    copy = shutil.copytree if source.is_dir() else shutil.copy
                    copy(source, context / path)
            elif name == "RUN" and "/opt/paceline" in arguments:
                command = arguments.replace("/opt/paceline", str(self.home))
                command = re.sub(r"^python ", f"{sys.executable} ", command)
                command = command.replace("--no-cache-dir ", "")
                done = subprocess.run(
                    command,
                    shell=True,
                    cwd=context,
                    env={**os.environ, **env},
                    capture_output=True,
                    text=True,
                )
                assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    def run(self, name: str, command: list[str]) -> Process:
        """Return the command of `docker run paceline COMMAND`; its program must come from the image."""
        program = shutil.which(command[0], path=self.path)
        assert program is not None and program.startswith(str(self.home)), command
        clean = {key: "" for key in os.environ if key.startswith(("DASK", "VIRTUAL", "PYTHONPATH"))}
        env = {**clean, "PATH": self.path, "HOME": str(self.folder)}
        return start_process(name, [program, *command[1:]], self.folder, env)


# compiling takes two to five minutes; make test-compiled compiles the same way
@pytest.fixture(scope="module", params=["pure", pytest.param("compiled", marks=pytest.mark.slow)])
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Image:
    built = Image(tmp_path_factory.mktemp("image"))
    built.build({f"PACELINE_{request.param.upper()}": "1"})
    return built


@pytest.fixture
def scheduler(image: Image) -> Iterator[dict[str, Any]]:
    """Run the container's CMD on free ports; yield the content of its scheduler file."""
    file = image.folder / "scheduler.json"
    options = ["--port", "0", "--dashboard-address", ":0", "--scheduler-file", str(file)]
    process = image.run("scheduler", json.loads(last("CMD")) + options)
    try:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not file.exists() and time.monotonic() < deadline and process.running:
            time.sleep(0.1)
        assert file.exists(), process.tail()
        yield json.loads(file.read_text())
    finally:
        process.terminate()
        assert process.wait() == 0, process.tail()


@pytest.mark.timeout(900)
def test_scheduler_worker_and_health(image: Image, scheduler: dict[str, Any]) -> None:
    address = str(scheduler["address"])
    port = scheduler["services"]["dashboard"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        assert answer.status == 200
    check = json.loads(last("HEALTHCHECK").split("CMD", 1)[1])
    check = [part.replace("8787", str(port)) for part in check]
    check[0] = str(image.home / "bin" / check[0])
    assert subprocess.run(check, timeout=20).returncode == 0, shlex.join(check)

    worker = image.run("worker", ["dask", "worker", address, "--nthreads", "1", "--no-dashboard"])
    try:
        from distributed import Client

        with Client(address, timeout=30) as client:
            client.wait_for_workers(1, timeout=START_TIMEOUT_SECONDS)
            assert client.submit(sum, [1, 2, 3]).result(timeout=30) == 6
    finally:
        worker.terminate()
        worker.wait()
