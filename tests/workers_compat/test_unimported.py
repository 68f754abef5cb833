"""Graphs are compiled without importing what they only refer to."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from dask._task_spec import Task
from dask.base import collections_to_expr
from dask.delayed import delayed
from dask.tokenize import tokenize
from paceline.workers_compat.graphs.accelerators.unimported import (
    Reference,
    is_defined,
    is_installed,
)

SOURCE = """
def double(x):
    return 2 * x

async def later(x):
    return x

class Point:
    scale = 3
    def __init__(self, x):
        self.x = x
    def __eq__(self, other):
        return self.x == other.x

class NotFound(Exception):
    pass

made: object = double

if True:
    def conditional(x):
        return x
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Install a package, and return a function that forgets that it was imported."""
    installed = tmp_path / "site-packages"
    folder = installed / "heavy_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from .part import double\n")
    (folder / "part.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(installed)

    def forget() -> None:
        for name in [each for each in sys.modules if each.startswith("heavy_package")]:
            del sys.modules[name]

    yield forget
    forget()


def is_imported() -> bool:
    return "heavy_package" in sys.modules


@pytest.fixture
def part(package: Any) -> Any:
    import heavy_package.part

    return heavy_package.part


@pytest.mark.parametrize("wrap", [lambda f: f, functools.partial], ids=["function", "partial"])
def test_a_function_is_passed_on_without_its_package(
    compile: Any, make_request: Any, accelerators: bool, package: Any, part: Any, wrap: Callable
) -> None:
    graph = {("x", i): Task(("x", i), wrap(part.double), i) for i in range(3)}
    request = make_request(graph, list(graph))
    package()
    compiled = compile(request)
    assert is_imported() == (not accelerators)
    assert [compiled.spec(key)({}) for key in graph] == [0, 2, 4]
    assert is_imported()


def test_a_class_is_passed_on_without_its_package(
    compile: Any, make_request: Any, accelerators: bool, package: Any, part: Any
) -> None:
    request = make_request({"x": Task("x", map, part.Point, [1])}, ["x"])
    package()
    compiled = compile(request)
    assert is_imported() == (not accelerators)
    assert [each.x for each in compiled.spec("x")({})] == [1]


def test_an_instance_needs_its_package(
    compile: Any, make_request: Any, package: Any, part: Any
) -> None:
    request = make_request({"x": Task("x", repr, part.Point(4))}, ["x"])
    package()
    compiled = compile(request)
    assert is_imported()
    assert "Point" in compiled.spec("x")({})


class Called:
    """A value that a function of the package returns when it is unpickled."""

    def __init__(self, function: Callable) -> None:
        self.function = function

    def __reduce__(self) -> Any:
        return self.function, (3,)


def test_a_function_that_is_called_is_imported_everywhere(
    compile: Any, make_request: Any, package: Any, part: Any
) -> None:
    graph = {"x": Task("x", part.double, 1), "y": Task("y", int, Called(part.double))}
    request = make_request(graph, list(graph))
    package()
    compiled = compile(request)
    assert is_imported()
    assert compiled.spec("y")({}) == 6
    frames = b"".join(map(bytes, compiled.frames("x")))
    assert b"heavy_package" in frames and b"import_module" not in frames


def test_a_function_pickled_by_value_keeps_its_references(
    compile: Any, make_request: Any, accelerators: bool, package: Any, part: Any
) -> None:
    double = part.double

    def quadruple(x: int) -> int:
        return double(double(x))  # type: ignore[no-any-return]

    request = make_request({"x": Task("x", quadruple, 5)}, ["x"])
    package()
    compiled = compile(request)
    assert is_imported() == (not accelerators)
    assert compiled.spec("x")({}) == 20


@pytest.mark.parametrize("given", [lambda cls: cls, lambda cls: (cls,)], ids=["class", "tuple"])
def test_classes_in_annotations_are_imported(
    compile: Any, make_request: Any, package: Any, part: Any, given: Callable[[Any], Any]
) -> None:
    with dask.annotate(retries=1, retry_on=given(part.NotFound)):
        x = delayed(part.double, pure=True)(1)
    request = make_request(collections_to_expr([x]), [x.key])
    package()
    compiled = compile(request)
    assert is_imported()
    (annotations,) = compiled.chunks[0].new_annotations
    assert annotations.policy.retry_on == ["heavy_package.part.NotFound"]


def test_only_definitions_of_installed_packages_are_taken_as_they_are(package: Any) -> None:
    for name in ("double", "later", "Point", "made"):
        assert is_defined("heavy_package.part", name)
    for name in ("absent", "conditional", "Point.scale", "x", "double_"):
        assert not is_defined("heavy_package.part", name)
    assert not is_defined("heavy_package", "double")  # imported there
    assert not is_defined("heavy_package.absent", "double")
    assert not is_defined("absent_package.part", "double")
    assert not is_defined("math", "sqrt")
    assert is_installed("heavy_package") and is_installed("heavy_package.part")
    assert not is_installed("heavy_package.absent") and not is_installed("math")
    assert not is_defined("dask.base", "compute")
    assert not is_imported()


def test_packages_that_are_not_installed_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_defined("own_module", "double")


def test_a_function_that_refers_to_a_module(
    compile: Any, make_request: Any, accelerators: bool, package: Any, part: Any
) -> None:
    def triple(x: int) -> int:
        return part.double(x) + x  # type: ignore[no-any-return]

    request = make_request({"x": Task("x", triple, 5)}, ["x"])
    package()
    compiled = compile(request)
    assert is_imported() == (not accelerators)
    assert compiled.spec("x")({}) == 15


def test_references_behave_like_the_originals(package: Any, part: Any) -> None:
    module = Reference("heavy_package.part")
    double = module.double
    assert type(double) is Reference
    assert module.double(4) == double(4) == 8
    assert double.__name__ == "double"
    assert module.Point.scale == 3
    assert module.conditional(1) == 1
    assert tokenize(double) == tokenize(part.double)
    assert tokenize(module) == tokenize(part)
    assert pickle.loads(pickle.dumps([module, double])) == [part, part.double]
