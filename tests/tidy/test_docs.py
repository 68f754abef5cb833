"""Generated documentation is current, and every message is described."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from paceline.protocol.catalogue import TABLES

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"

WRITE = """
import json, sys
sys.path.insert(0, {folder!r})
import runpy
pages = runpy.run_path({main!r}, run_name="docs")["pages"]()
print(json.dumps({{path.name: text for path, text in pages.items()}}))
"""


def generated() -> dict[str, str]:
    """Return the pages as the generator writes them now, in a separate process because its modules have short names."""
    import json

    folder = DOCS / "reference"
    script = WRITE.format(folder=str(folder), main=str(folder / "__main__.py"))
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    pages: dict[str, str] = json.loads(out.stdout)
    return pages


def test_generated_pages_are_current() -> None:
    stale = [name for name, text in generated().items() if (DOCS / name).read_text() != text]
    assert stale == [], "run `make reference`"


def test_every_op_has_its_place_on_the_page() -> None:
    page = (DOCS / "protocol.md").read_text()
    anchors = {
        f'<a id="{direction}-{op}"></a>'.replace("_", "-").lower()
        for direction, table in TABLES.items()
        for op in table
    }
    assert [anchor for anchor in anchors if anchor not in page] == []


def test_every_field_is_described() -> None:
    page = (DOCS / "protocol.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `") and line.count(" | ") == 3]
    assert len(rows) > 400
    silent = [row for row in rows if row.rstrip().endswith("|  |")]
    assert silent == []
