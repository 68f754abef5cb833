"""A class name is used once in the program, so that a name in a log, a traceback or a search means one thing."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.support.source_tree import sources


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(source.where)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
