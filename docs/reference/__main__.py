"""Generate documentation pages from the code: ``python docs/reference``.

- ``docs/protocol.md``: the narrative in ``narrative/*.md``, then every message;
- ``docs/protocol.schema.json``: JSON Schema of every message;
- ``docs/compatibility.md``: every operation, and where the stock scheduler and paceline handle it;
- ``docs/configuration.md``: the keys of Dask's configuration, from the schema.

A test compares the pages with the committed ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from compatibility import compatibility
from configuration import configuration
from messages import protocol
from schema import schema

DOCS = Path(__file__).parent.parent


def pages() -> dict[Path, str]:
    """Return the path and text of each generated page."""
    return {
        DOCS / "protocol.md": protocol(),
        DOCS / "protocol.schema.json": schema(),
        DOCS / "compatibility.md": compatibility(),
        DOCS / "configuration.md": configuration(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
        print(f"{path.name}: {len(text.encode()):,} bytes")
