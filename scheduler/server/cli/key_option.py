"""Task keys as arguments of commands."""

from __future__ import annotations

import ast
from typing import Any


def read_key(text: str | None) -> Any:
    """Return a key as typed by a user: ``('x', 0)`` is a tuple, anything else a string."""
    if text is None or not text.startswith("("):
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
