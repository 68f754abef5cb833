"""Find the release of distributed in which each operation and field first appeared, after 2024.1.0.

usage: python docs/reference/since.py GIT_DIR

The program reads the tags of a clone of distributed and writes `since.json`: a dict from name to
the first release whose source contains it. Names that 2024.1.0 contains are left out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FIRST = "2024.1.0"
FILE = Path(__file__).parent / "since.json"


def since(git_dir: str, words: set[str]) -> dict[str, str]:
    """Return the first release of each word in `words`."""
    tags = _git(git_dir, "tag").split()
    releases = sorted(
        (t for t in tags if re.fullmatch(r"202[4-9]\.\d+\.\d+", t)),
        key=lambda t: tuple(map(int, t.split("."))),
    )
    found: dict[str, str] = {}
    missing = set(words)
    for release in releases:
        text = _git(
            git_dir,
            "grep",
            "-hIoE",
            r"[A-Za-z_][A-Za-z0-9_-]*",
            release,
            "--",
            "distributed/*.py",
            ":!*/tests/*",
        )
        there = set(text.split()) & missing
        missing -= there
        if release != FIRST:
            found.update(dict.fromkeys(there, release))
        if not missing:
            break
    return dict(sorted(found.items()))


def _git(git_dir: str, *command: str) -> str:
    return subprocess.run(
        ["git", "--git-dir", git_dir, *command], capture_output=True, text=True, check=False
    ).stdout


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from classes import described
    from paceline.protocol.catalogue import TABLES

    wanted = set()
    for table in TABLES.values():
        for op in table.values():
            wanted |= {op.name, *(f.name for f in described(op.cls).fields)}
    FILE.write_text(json.dumps(since(sys.argv[1], wanted), indent=1) + "\n")
