"""Files of an installation: the package `paceline`, complete, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT, sources

API_PAGE = ROOT / "docs" / "api.md"
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = CONFIG["tool"]["setuptools"]


def packages_on_disk() -> set[str]:
    return {source.module for source in sources() if source.path.name == "__init__.py"}


def test_package_list_is_complete() -> None:
    """The list is explicit, so a new folder must be added to it."""
    assert set(SETUPTOOLS["packages"]) == packages_on_disk()


def test_folders_are_mapped() -> None:
    mapped = SETUPTOOLS["package-dir"]
    for source in sources():
        if source.path.name == "__init__.py":
            package = max((p for p in mapped if f"{source.module}.".startswith(f"{p}.")), key=len)
            below = source.module.removeprefix(package).strip(".").split(".")
            assert ROOT.joinpath(mapped[package], *below) == source.path.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy so that no build folder is left in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("paceline", "protocol", "scheduler", "testing", "transfer", "workers_compat"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(copy / "dist"), str(copy)]
    # what a pure build requires is installed
    if int(version("setuptools").split(".")[0]) >= 77:
        command += ["--no-isolation", "--skip-dependency-check"]
    environment = {**os.environ, "PACELINE_PURE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (built,) = (copy / "dist").glob("*.whl")
    return zipfile.ZipFile(built)


def test_wheel_installs_one_package(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"paceline"}
    assert "paceline/__init__.py" in wheel.namelist()


def test_wheel_has_every_module(wheel: zipfile.ZipFile) -> None:
    expected = set()
    for source in sources():
        name = source.module.replace(".", "/")
        expected.add(f"{name}/__init__.py" if source.path.name == "__init__.py" else f"{name}.py")
    assert {name for name in wheel.namelist() if name.endswith(".py")} == expected


def test_wheel_is_typed(wheel: zipfile.ZipFile) -> None:
    for package in ("protocol", "scheduler", "testing", "transfer", "workers_compat"):
        assert f"paceline/{package}/py.typed" in wheel.namelist()


def test_testing_kit_of_the_wheel(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """The example in the documentation runs with the installed `paceline.testing`, without pytest."""
    example = re.search(
        r"```python\n(from paceline.testing.*?)```", API_PAGE.read_text(), re.DOTALL
    )
    assert example is not None
    wheel.extractall(tmp_path)
    code = f"import sys; sys.modules['pytest'] = None\n{example[1]}\nprint(Env.__module__, sys.modules[Env.__module__].__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    module = f"paceline.testing.env {tmp_path / 'paceline' / 'testing' / 'env.py'}"
    assert (done.stdout.strip(), done.returncode) == (module, 0), done.stderr


def test_console_script_resolves() -> None:
    """The function that the command `paceline` calls exists."""
    import importlib

    module, function = CONFIG["project"]["scripts"]["paceline"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_readme_is_the_description_of_the_package() -> None:
    assert CONFIG["project"]["readme"] == "README.md"
    assert Path(ROOT / "LICENSE").read_text().startswith("BSD 3-Clause")
