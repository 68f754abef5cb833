"""Packages without modules that they import if these are installed, for processes of the scheduler.

- ``distributed`` imports NumPy to allocate received data. The event loop does not need it.
- ``dask.array`` imports xarray (and with it pandas), SciPy and CuPy to recognize their types in the
  arguments of its functions. ``dask.dataframe`` imports SciPy for the same reason. Graphs do not
  need it: their collections are already made.
- scikit-learn imports pandas to read its version.

That is most of the time and memory that these packages take. Pickles import the modules that they
refer to.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Module -> modules that are hidden from it and from what it imports, in all processes.
SCHEDULER: Mapping[str, Sequence[str]] = {"distributed.protocol.utils": ("numpy",)}
#: The same in graph compilers.
COMPILER: Mapping[str, Sequence[str]] = {
    "dask.array": ("cupy", "cupyx", "scipy.fftpack", "scipy.sparse", "sparse", "xarray"),
    "dask.dataframe": ("scipy.sparse", "sparse"),
    "sklearn.utils.fixes": ("pandas",),
}


class OptionalImports(MetaPathFinder):
    """Hides optional modules from other modules while these are imported.

    Args:
        importers: hidden module -> modules that it is hidden from.
    """

    def __init__(self, importers: Mapping[str, Sequence[str]]) -> None:
        self._importers = importers

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for a hidden module. Leave others to the next finder."""
        if any(map(_is_being_imported, self._importers.get(fullname, ()))):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def _is_being_imported(name: str) -> bool:
    """Return whether the code of a module runs. CPython's import system keeps this flag."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def hide(optional: Mapping[str, Sequence[str]]) -> None:
    """Hide the modules of a table in this process. Modules that are already imported stay."""
    importers: dict[str, list[str]] = {}
    for importer, names in optional.items():
        for name in names:
            importers.setdefault(name, []).append(importer)
    sys.meta_path.insert(0, OptionalImports(importers))
