"""``fast_docstrings`` gives the same docstrings as dask's own functions."""

from __future__ import annotations

import subprocess
import sys

import pytest
from dask import utils
from paceline.workers_compat.graphs.accelerators import fast_docstrings

#: Prints a digest of all docstrings that dask derives from other packages, and their number.
DIGEST = """
import hashlib, inspect, sys
import dask.array, dask.array.fft, dask.array.linalg, dask.array.ma, dask.array.stats, dask.dataframe
found = {}
for name in [name for name in sys.modules if name.partition(".")[0] == "dask"]:
    for attribute, value in list(vars(sys.modules[name]).items()):
        members = vars(value) if inspect.isclass(value) else {}
        for part, each in {"": value, **members}.items():
            text = getattr(each, "__doc__", None)
            if isinstance(text, str) and "copied from" in text:
                found[f"{name}.{attribute}.{part}"] = text
print(len(found), hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest())
"""
INSTALL = """
from paceline.workers_compat.graphs.accelerators import fast_docstrings
assert fast_docstrings.install()
"""
DOC = """Return one.

Parameters
----------
a: int
  b : int
c  : int
a : int

Notes
-----
d:
Notes
-----
last
----"""


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore dask's functions after the test."""
    for name in ("extra_titles", "unsupported_arguments"):
        monkeypatch.setattr(utils, name, getattr(utils, name))


def test_the_same_docstrings() -> None:
    pytest.importorskip("pandas")
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        for code in (DIGEST, INSTALL + DIGEST)
    ]
    assert int(outputs[0][0]) > 500
    assert outputs[0] == outputs[1]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("args", [["a", "b"], ["b", "c", "d", "d"], [], ["a", "b.*"]])
def test_the_same_edits(args: list[str]) -> None:
    before = utils.unsupported_arguments, utils.extra_titles
    expected = before[0](DOC, args), before[1](DOC)
    assert fast_docstrings.install()
    assert (utils.unsupported_arguments, utils.extra_titles) != before
    assert (utils.unsupported_arguments(DOC, args), utils.extra_titles(DOC)) == expected
    for doc in ("", "one line", "Title\n-----"):
        assert utils.extra_titles(doc) == before[1](doc)


@pytest.mark.usefixtures("restored")
def test_other_functions_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(utils, "extra_titles")
    before = utils.unsupported_arguments
    assert not fast_docstrings.install()
    assert utils.unsupported_arguments is before
