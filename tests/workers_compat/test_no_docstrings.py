"""Without docstrings, dask has the same functions and makes the same graphs."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Prints the names of all functions that dask derives from other packages, and a graph.
NAMES = """
import inspect, sys
import dask.array, dask.array.fft, dask.array.linalg, dask.array.ma, dask.array.stats
import dask.dataframe
found = set()
for name in [name for name in sys.modules if name.partition(".")[0] == "dask"]:
    for attribute, value in list(vars(sys.modules[name]).items()):
        members = vars(value) if inspect.isclass(value) else {}
        found.update(f"{name}.{attribute}.{part}" for part in ("", *members) if part != "__doc__")
        if inspect.isfunction(value) and attribute != "derived_from":
            found.add(f"{attribute}{list(inspect.signature(value).parameters)}")
print(len(found), sorted(found))
x = dask.array.sin(dask.array.ones((4, 4), chunks=2)).sum(axis=0)
print(sorted(map(str, x.__dask_graph__())))
print(repr(dask.array.sum.__doc__)[:20])
"""
INSTALL = """
from paceline.workers_compat.graphs.accelerators import no_docstrings
no_docstrings.install()
"""


def test_the_same_functions_without_docstrings() -> None:
    pytest.importorskip("pandas")
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for code in (NAMES, INSTALL + NAMES)
    ]
    assert int(outputs[0][0].split()[0]) > 5_000
    assert outputs[0][:-1] == outputs[1][:-1]
    assert outputs[0][-1] != outputs[1][-1] == "None"
