"""Run mypy --strict on the packages that are typed strictly.

The folders have import names that differ from their paths (`protocol/` is `paceline.protocol`), so mypy runs on a
tree of symbolic links in which paths and names agree. Its report is converted back to paths of the repository.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("protocol", "scheduler", "testing", "transfer", "workers_compat")
STRICT = (
    "paceline.protocol",
    "paceline.scheduler",
    "paceline.testing",
    "paceline.transfer",
    "paceline.workers_compat.facade",
    "paceline.workers_compat.graphs",
    "paceline.workers_compat.config",
    "paceline.workers_compat.dashboard",
    "paceline.workers_compat.security",
)


def main(mypy: str = "mypy") -> int:
    """Type-check the strict packages; return mypy's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "paceline"
        tree.mkdir()
        (tree / "__init__.py").symlink_to(ROOT / "paceline" / "__init__.py")
        for each in FOLDERS:
            (tree / each).symlink_to(ROOT / each)
        command = [str(Path(mypy).absolute()) if "/" in mypy else mypy, "--namespace-packages"]
        command += ["--explicit-package-bases", "--config-file", str(ROOT / "pyproject.toml")]
        command += ["--cache-dir", str(ROOT / ".mypy_cache")]
        for package in STRICT:
            command += ["-p", package]
        done = subprocess.run(command, cwd=folder, text=True, capture_output=True)
    print(done.stdout.replace("paceline/", "").replace(str(ROOT) + "/", ""), end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
