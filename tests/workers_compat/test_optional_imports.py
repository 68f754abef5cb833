"""``optional_imports`` hides modules from certain modules only, and graphs are the same."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from dask.base import collections_to_expr

IMPORT = """
import sys
from paceline.workers_compat.graphs.accelerators import optional_imports
"""
INSTALL = IMPORT + "optional_imports.hide(optional_imports.COMPILER)\n"
#: Prints the graphs and the results of pickled expressions.
COMPUTE = """
import pickle, re, sys
from dask.core import flatten
from dask.threaded import get
for data in pickle.load(open(sys.argv[1], "rb")):
    expr = pickle.loads(data)
    graph = expr.__dask_graph__()
    for key in sorted(graph, key=str):
        print(key, re.sub(" at 0x[0-9a-f]+", "", str(graph[key])), sorted(getattr(graph[key], "dependencies", ()), key=str))
    for result in get(graph, list(flatten(expr.__dask_keys__()))):
        print(getattr(result, "todense", lambda: result)())
"""


def run(code: str, *args: str) -> str:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_modules_are_hidden_only_from_dask_array() -> None:
    code = """
import dask.array
hidden = set(optional_imports.COMPILER["dask.array"])
assert not hidden & set(sys.modules), set(sys.modules)
assert "pandas" not in sys.modules
for name in sys.argv[1:]:
    __import__(name)
print(sorted(hidden & set(sys.modules)) == sys.argv[1:])
"""
    for name in ("scipy", "xarray"):
        pytest.importorskip(name)
    assert run(INSTALL + code, "scipy.fftpack", "scipy.sparse", "xarray") == "True\n"


def test_scipy_is_hidden_from_dask_dataframe() -> None:
    pytest.importorskip("pandas")
    assert run(INSTALL + "import dask.dataframe; print('scipy.sparse' in sys.modules)") == "False\n"


def test_pandas_is_hidden_only_from_scikit_learn() -> None:
    for name in ("sklearn", "pandas"):
        pytest.importorskip(name)
    code = """
import sklearn.model_selection
assert "pandas" not in sys.modules
import pandas
from sklearn.preprocessing import StandardScaler
scaler = StandardScaler().set_output(transform="pandas")
print(type(scaler.fit_transform(pandas.DataFrame({"x": [1.0, 2.0]}))).__name__)
"""
    assert run(INSTALL + code) == "DataFrame\n"


def test_numpy_is_hidden_only_from_distributed() -> None:
    code = """
optional_imports.hide(optional_imports.SCHEDULER)
import distributed
from distributed.protocol.utils import host_array_from_buffers
assert "numpy" not in sys.modules
assert bytes(host_array_from_buffers([b"ab", b"c"])) == b"abc"
import numpy
print(numpy.arange(3))
"""
    assert run(IMPORT + code) == "[0 1 2]\n"


def test_imported_modules_are_used() -> None:
    pytest.importorskip("xarray")
    code = "import xarray, dask.array.core; print(dask.array.core.xr is xarray)"
    assert run(INSTALL + code) == "True\n"


def test_the_same_graphs_and_results(tmp_path: Path) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    xarray = pytest.importorskip("xarray")
    dd = pytest.importorskip("dask.dataframe")
    x = da.ones((8, 6), chunks=(4, 3))
    named = xarray.DataArray(x, dims=("a", "b")).groupby("a").mean()
    csr = scipy_sparse.csr_array
    sparse = x.map_blocks(csr, meta=csr(np.ones((1, 1)))).map_blocks(np.negative)
    table = dd.from_dask_array(x, columns=list("abcdef"))
    collections = (x.sum(), da.fft.fft(x.rechunk((8, 6))), named, sparse, table.a.sum())
    path = tmp_path / "expressions"
    exprs = [collections_to_expr((each,)).optimize() for each in collections]
    path.write_bytes(pickle.dumps([pickle.dumps(expr) for expr in exprs]))
    plain, hidden = (run(code, str(path)) for code in (COMPUTE, INSTALL + COMPUTE))
    assert len(plain.splitlines()) > 50
    assert plain == hidden
