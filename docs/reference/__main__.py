"""``python docs/reference``: writes what of the documentation follows from the code.

- ``docs/protocol.md``: the narrative (``narrative/*.md``), then every message;
- ``docs/protocol.schema.json``: JSON Schema of every message;
- ``docs/compatibility.md``: every op, what stock does and what paceline does.

A test compares them with what is committed. It must not know: what the words say.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from compatibility import compatibility
from messages import protocol
from schema import schema

DOCS = Path(__file__).parent.parent


def pages() -> dict[Path, str]:
    """Each page that is generated, and its text."""
    return {
        DOCS / "protocol.md": protocol(),
        DOCS / "protocol.schema.json": schema(),
        DOCS / "compatibility.md": compatibility(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
        print(f"{path.name}: {len(text.encode()):,} bytes")
