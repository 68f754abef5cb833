"""Docstrings, names and sizes of modules; unfinished code; paths of one machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.source_tree import ROOT, Source, project_files, sources

STATE_FOLDER = "scheduler/core/state/"
LINES_MAX = 500
FUNCTION_LINES_MAX = 60
FILE_NBYTES_MAX = 200_000
EXAMPLE_LINES_MAX = 80
#: Examples that contain a whole peer.
LONGER_EXAMPLES = {"worker_on_protocol.py": 250, "asyncio_comm.py": 95}
VAGUE_NAMES = {"utils", "util", "helpers", "misc", "common", "tools"}
UNFINISHED = re.compile(r"TODO|FIXME|XXX|raise NotImplementedError\b")
# folders of one machine, and hosts of package registries: neither belongs in a file
OF_ONE_MACHINE = re.compile(
    r"/(work|root|home|Users)/(?!paceline)\w|py" + r"pi\.org|python" + r"hosted\.org"
)


def test_modules_have_docstrings() -> None:
    python = [p for p in project_files() if p.suffix == ".py"]
    silent = [
        str(p.relative_to(ROOT)) for p in python if not ast.get_docstring(ast.parse(p.read_text()))
    ]
    assert silent == []


def test_module_names_are_specific() -> None:
    vague = [
        str(p.relative_to(ROOT))
        for p in project_files()
        if p.suffix == ".py" and {p.stem, *p.relative_to(ROOT).parts} & VAGUE_NAMES
    ]
    assert vague == []


def test_files_are_small() -> None:
    large = [
        f"{source.where}: {len(source.text.splitlines())} lines"
        for source in sources()
        if len(source.text.splitlines()) > LINES_MAX
    ]
    large += [str(p) for p in project_files() if p.stat().st_size > FILE_NBYTES_MAX]
    assert large == []


def test_functions_are_short() -> None:
    long = [
        f"{source.where}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_examples_are_short() -> None:
    long = [
        f"{p.name}: {len(p.read_text().splitlines())} lines"
        for p in sorted((ROOT / "examples").glob("*.py"))
        if len(p.read_text().splitlines()) > LONGER_EXAMPLES.get(p.name, EXAMPLE_LINES_MAX)
    ]
    assert long == []


def test_no_unfinished_code() -> None:
    found = [
        f"{source.where}:{number}: {line.strip()}"
        for source in sources()
        for number, line in enumerate(source.text.splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def test_no_paths_of_one_machine() -> None:
    found = []
    for path in project_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if OF_ONE_MACHINE.search(line)
        ]
    assert found == []


def test_attributes_of_the_state_are_described() -> None:
    """Each public attribute of a state class is named in its class's docstring, or has a comment."""
    found = [s for s in sources() if s.where.startswith(STATE_FOLDER)]
    assert found
    assert [each for source in found for each in undescribed(source)] == []


def undescribed(source: Source) -> list[str]:
    lines = source.text.splitlines()
    silent = []
    for node in source.tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        described = ast.get_docstring(node) or ""
        for name, line in attributes(node):
            has_comment = "#" in lines[line - 1] or lines[line - 2].strip()[:1] == "#"
            if not has_comment and not re.search(rf"\b{name}\b", described):
                silent.append(f"{source.where}: {node.name}.{name}")
    return silent


def attributes(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of the public attributes in the body of a class and its ``__init__``."""
    inits = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
    found: list[tuple[str, ast.AST]] = [("", item) for item in node.body]
    found += [("self.", item) for init in inits for item in ast.walk(init)]
    for before, item in found:
        if isinstance(item, ast.AnnAssign | ast.Assign):
            target = ast.unparse(
                item.target if isinstance(item, ast.AnnAssign) else item.targets[0]
            )
            name = target.removeprefix(before)
            if target.startswith(before) and name.isidentifier() and not name.startswith("_"):
                yield name, item.lineno
