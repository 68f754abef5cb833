"""``dask.array`` without xarray, SciPy and CuPy, in the process that compiles graphs.

``dask.array`` imports them if they are installed, to recognize their types in the arguments of its
functions. xarray imports pandas. That is most of the time and memory that ``dask.array`` takes.
Graphs do not need it: their arrays are already made, and pickles import the modules that they refer
to.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGE = "dask.array"
OPTIONAL = frozenset(("cupy", "cupyx", "scipy.fftpack", "scipy.sparse", "sparse", "xarray"))


class OptionalImports(MetaPathFinder):
    """Hides optional modules from ``dask.array`` while it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for a hidden module. Leave others to the next finder."""
        if fullname in OPTIONAL and _is_being_imported(PACKAGE):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def _is_being_imported(name: str) -> bool:
    """Return whether the code of a module runs. CPython's import system keeps this flag."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def install() -> None:
    """Hide the modules in this process, if ``dask.array`` is not imported yet."""
    sys.meta_path.insert(0, OptionalImports())
