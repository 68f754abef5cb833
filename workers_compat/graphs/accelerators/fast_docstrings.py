"""Faster editing of docstrings for the process that compiles graphs.

dask copies the docstrings of NumPy and pandas to its own functions when it is imported. The edits
of these copies are a fifth of the time to import ``dask.dataframe``. The replacements return the
same texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dask import utils


def install() -> bool:
    """Replace the functions in this process. Return False if dask has others."""
    if not all(hasattr(utils, name) for name in ("extra_titles", "unsupported_arguments")):
        return False
    extra_titles: Any = utils.extra_titles
    unsupported_arguments: Any = utils.unsupported_arguments

    def fast_extra_titles(doc: str) -> str:
        return str(extra_titles(doc)) if _has_equal_titles(doc.split("\n")) else doc

    def fast_unsupported_arguments(doc: str, args: Sequence[str]) -> str:
        if not all(map(str.isidentifier, args)):
            return str(unsupported_arguments(doc, args))
        lines = doc.split("\n")
        places: dict[str, list[int]] = {}
        for i, line in enumerate(lines):
            name, colon, _ = line.lstrip().partition(":")
            if colon:
                places.setdefault(name.removesuffix(" "), []).append(i)
        for arg in args:
            if len(found := places.get(arg, [])) == 1:
                lines[found[0]] += "  (Not supported in Dask)"
        return "\n".join(lines)

    utils.extra_titles = fast_extra_titles
    utils.unsupported_arguments = fast_unsupported_arguments
    return True


def _has_equal_titles(lines: list[str]) -> bool:
    """Return whether two titles, which are underlined with dashes, are equal."""
    titles = [
        above.strip()
        for above, line in pairwise(lines)
        if "-" in line and not line.strip().strip("-")
    ]
    return len(set(titles)) < len(titles)
