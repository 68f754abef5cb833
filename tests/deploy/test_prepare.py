"""prepare.sh, the container's entry point, with programs that record their arguments instead of pip, conda and apt-get."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

#: A program that appends its name and arguments to the file $CALLS.
RECORD = '#!/bin/sh\necho "$(basename "$0") $*" >> "$CALLS"\n'


class Container:
    """A folder that stands in for the container; its `bin` is the PATH of prepare.sh."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls_file = folder / "calls"
        self.calls_file.touch()
        for program in ("pip", "apt-get"):
            self.install(program)

    def install(self, program: str, text: str = RECORD) -> None:
        path = self.bin / program
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        for program in ("bash", "sh", "basename", "echo", "env"):
            if not (self.bin / program).exists():
                (self.bin / program).symlink_to(f"/bin/{program}")
        env = {"PATH": str(self.bin), "CALLS": str(self.calls_file), **variables}
        env.setdefault("PREPARE_ENVIRONMENT", str(self.folder / "environment.yml"))
        return subprocess.run(
            ["/bin/bash", str(ROOT / "prepare.sh"), *command],
            env=env,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    made = Container(tmp_path)
    made.install("id", "#!/bin/sh\necho 1000\n")
    return made


def test_prepare_execs_the_command(container: Container) -> None:
    done = container.run("echo", "dask-scheduler", "--port", "8786 with blanks")
    assert (done.returncode, done.stdout) == (0, "dask-scheduler --port 8786 with blanks\n")
    assert container.calls() == []
    assert container.run("bash", "-c", "exit 7").returncode == 7


def test_pip_packages(container: Container) -> None:
    done = container.run("echo", "on", EXTRA_PIP_PACKAGES="s3fs dask-ml --upgrade")
    assert done.stdout == "on\n"
    assert container.calls() == ["pip install --no-cache-dir s3fs dask-ml --upgrade"]


def test_failed_installation_exits(container: Container) -> None:
    container.install("pip", "#!/bin/sh\nexit 3\n")
    done = container.run("echo", "on", EXTRA_PIP_PACKAGES="nothing-of-this-name")
    assert done.returncode == 3 and done.stdout == ""


def test_apt_packages_require_root(container: Container) -> None:
    done = container.run("echo", "on", EXTRA_APT_PACKAGES="build-essential")
    assert done.returncode == 1 and "--user root" in done.stderr
    container.install("id", "#!/bin/sh\necho 0\n")
    assert container.run("echo", "on", EXTRA_APT_PACKAGES="build-essential git").stdout == "on\n"
    assert container.calls() == [
        "apt-get update",
        "apt-get install --yes --no-install-recommends build-essential git",
    ]


def test_conda_packages_use_pip_without_conda(container: Container) -> None:
    packages = "numba xarray=2024.9 -c conda-forge pandas>=2 conda-forge::zarr=3.0.1=py_0 --yes"
    done = container.run("echo", "on", EXTRA_CONDA_PACKAGES=packages)
    assert "no conda" in done.stderr and done.stdout == "on\n"
    assert container.calls() == [
        "pip install --no-cache-dir numba xarray==2024.9 pandas>=2 zarr==3.0.1"
    ]


@pytest.mark.parametrize("use_mamba", ["", "true"])
def test_conda_packages_with_conda(container: Container, use_mamba: str) -> None:
    for program in ("conda", "mamba"):
        container.install(program)
    (container.folder / "environment.yml").touch()
    container.run("echo", USE_MAMBA=use_mamba, EXTRA_CONDA_PACKAGES="numba -c conda-forge")
    program = "mamba" if use_mamba else "conda"
    assert container.calls() == [
        f"{program} env update --file {container.folder / 'environment.yml'}",
        f"{program} install --yes numba -c conda-forge",
    ]


def test_environment_file_is_ignored_without_conda(container: Container) -> None:
    (container.folder / "environment.yml").touch()
    done = container.run("echo", "on")
    assert "ignoring" in done.stderr and done.stdout == "on\n"
