"""The list of quirks is true: what it names exists, and each has its test."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest
from paceline.workers_compat.quirks import QUIRKS

TESTS = Path(__file__).resolve().parents[1]


def find(name: str) -> object:
    module, _, path = name.partition(":")
    found = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def test_numbers_are_used_once():
    numbers = [quirk.number for quirk in QUIRKS]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: str(quirk.number))
def test_what_a_quirk_names_exists(quirk):
    assert find(quirk.stock) is not None
    assert find(quirk.ours) is not None
    file, _, function = quirk.test.partition(":")
    tree = ast.parse((TESTS / file).read_text())
    names = {
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert function in names
    assert quirk.what.endswith(".")
