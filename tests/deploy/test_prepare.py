"""prepare.sh, the container's entry point, run in an environment where pip, conda and apt-get only record their arguments."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

TELLS = '#!/bin/sh\necho "$(basename "$0") $*" >> "$ASKED"\n'


class Container:
    """Make a folder that stands in for the container: `bin` is its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.asked = folder / "asked"
        self.asked.touch()
        for program in ("pip", "apt-get"):
            self.has(program)

    def has(self, program: str, text: str = TELLS) -> None:
        path = self.bin / program
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        for program in ("bash", "sh", "basename", "echo", "env"):
            if not (self.bin / program).exists():
                (self.bin / program).symlink_to(f"/bin/{program}")
        env = {"PATH": str(self.bin), "ASKED": str(self.asked), **variables}
        env.setdefault("PREPARE_ENVIRONMENT", str(self.folder / "environment.yml"))
        return subprocess.run(
            ["/bin/bash", str(ROOT / "prepare.sh"), *command],
            env=env,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def was_asked(self) -> list[str]:
        return self.asked.read_text().splitlines()


@pytest.fixture
def container(tmp_path: Path) -> Container:
    found = Container(tmp_path)
    found.has("id", "#!/bin/sh\necho 1000\n")
    return found


def test_prepare_execs_the_command(container: Container) -> None:
    done = container.run("echo", "dask-scheduler", "--port", "8786 with blanks")
    assert (done.returncode, done.stdout) == (0, "dask-scheduler --port 8786 with blanks\n")
    assert container.was_asked() == []
    assert container.run("bash", "-c", "exit 7").returncode == 7


def test_pip_packages(container: Container) -> None:
    done = container.run("echo", "on", EXTRA_PIP_PACKAGES="s3fs dask-ml --upgrade")
    assert done.stdout == "on\n"
    assert container.was_asked() == ["pip install --no-cache-dir s3fs dask-ml --upgrade"]


def test_failed_installation_exits(container: Container) -> None:
    container.has("pip", "#!/bin/sh\nexit 3\n")
    done = container.run("echo", "on", EXTRA_PIP_PACKAGES="nothing-of-this-name")
    assert done.returncode == 3 and done.stdout == ""


def test_apt_packages_require_root(container: Container) -> None:
    done = container.run("echo", "on", EXTRA_APT_PACKAGES="build-essential")
    assert done.returncode == 1 and "--user root" in done.stderr
    container.has("id", "#!/bin/sh\necho 0\n")
    assert container.run("echo", "on", EXTRA_APT_PACKAGES="build-essential git").stdout == "on\n"
    assert container.was_asked() == [
        "apt-get update",
        "apt-get install --yes --no-install-recommends build-essential git",
    ]


def test_conda_packages_use_pip_without_conda(container: Container) -> None:
    wanted = "numba xarray=2024.9 -c conda-forge pandas>=2 conda-forge::zarr=3.0.1=py_0 --yes"
    done = container.run("echo", "on", EXTRA_CONDA_PACKAGES=wanted)
    assert "no conda" in done.stderr and done.stdout == "on\n"
    assert container.was_asked() == [
        "pip install --no-cache-dir numba xarray==2024.9 pandas>=2 zarr==3.0.1"
    ]


@pytest.mark.parametrize("use_mamba", ["", "true"])
def test_conda_packages_with_conda(container: Container, use_mamba: str) -> None:
    for program in ("conda", "mamba"):
        container.has(program)
    (container.folder / "environment.yml").touch()
    container.run("echo", USE_MAMBA=use_mamba, EXTRA_CONDA_PACKAGES="numba -c conda-forge")
    program = "mamba" if use_mamba else "conda"
    assert container.was_asked() == [
        f"{program} env update --file {container.folder / 'environment.yml'}",
        f"{program} install --yes numba -c conda-forge",
    ]


def test_unsupported_environment_variable_is_reported(container: Container) -> None:
    (container.folder / "environment.yml").touch()
    done = container.run("echo", "on")
    assert "is not read" in done.stderr and done.stdout == "on\n"
