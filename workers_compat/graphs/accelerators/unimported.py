"""Unpickle graphs without importing what they only refer to.

The tasks of a graph call functions of packages such as XGBoost. The graph compiler does not call
them: it reads their names in one pickle and writes them into others. So it does not import a
module, function or class but represents it by a reference, if all of this holds:

- The module is not imported yet. Nothing in this process can then compare it with the original.
- The module belongs to an installed package other than dask, and its source defines the name. A
  stock worker closes if it cannot unpickle a task, so names must be checked before they are sent.

Calling a reference, or reading an attribute of it, imports the original. The graph is then
unpickled again, because code of that module may compare functions.
"""

from __future__ import annotations

import importlib
import io
import pickle
import re
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import cloudpickle.cloudpickle
from dask.tokenize import normalize_token

#: Packages whose classes are part of a graph, so that they are needed to open it.
_GRAPH_PACKAGES = ("dask", "distributed")
#: Names of the folders of installed packages.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_DEFINITION = r"^(?:(?:async +)?def +|class +)?{}\s*[(\[:=]"

#: The function by which cloudpickle refers to modules.
_SUBIMPORT = "cloudpickle.cloudpickle", cloudpickle.cloudpickle.subimport.__name__


class Reference:
    """A module that is known by its name, or a function or class in it.

    Its pickle yields the original, also in stock processes.

    Args:
        module: the name of the module.
        name: the name in it, or "" for the module itself.
    """

    def __init__(self, module: str, name: str = "") -> None:
        self._module = module
        self._name = self.__name__ = name

    def __reduce__(self) -> Any:
        if self._name:
            return getattr, (Reference(self._module), self._name)
        return importlib.import_module, (self._module,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # ``typing`` and ``inspect`` read special attributes, none of which is required
            raise AttributeError(f"a reference has no {name!r}")
        if not self._name and is_defined(self._module, name):
            return Reference(self._module, name)
        return getattr(self._original(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._original()(*args, **kwargs)

    def __dask_tokenize__(self) -> Any:
        return normalize_token(self._original())

    def _original(self) -> Any:
        module = importlib.import_module(self._module)
        return getattr(module, self._name) if self._name else module


#: Number of names for which a loader caches whether the source defines them.
NAMES_MAX = 1000


class ReferenceLoader:
    """Unpickles graphs, with references in place of what need not be imported.

    Attributes:
        modules: modules that the last graph has references to.
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self._known: dict[tuple[str, str], bool] = {}

    def loads(self, data: Any, buffers: Iterable[Any]) -> Any:
        """See ``pickle.loads``."""
        self.modules.clear()
        unpickler = _ReferenceUnpickler(io.BytesIO(data), buffers=buffers)
        unpickler.loader = self
        return unpickler.load()

    def has_stale_references(self) -> bool:
        """Return whether a module of the references has been imported meanwhile."""
        return not self.modules.isdisjoint(sys.modules)

    def subimport(self, module: str) -> Any:
        """Return a module, or a reference if it need not be imported."""
        reference = self.reference(module)
        return cloudpickle.cloudpickle.subimport(module) if reference is None else reference

    def reference(self, module: str, name: str = "") -> Reference | None:
        """Return a reference to `name` in a module, or to the module itself if `name` is "".

        None if the module must be imported.
        """
        if module in sys.modules:
            return None
        known = self._known.get((module, name))
        if known is None:
            if len(self._known) >= NAMES_MAX:
                self._known.clear()
            known = is_defined(module, name) if name else is_installed(module)
            self._known[module, name] = known
        if not known:
            return None
        self.modules.add(module)
        return Reference(module, name)


class _ReferenceUnpickler(pickle.Unpickler):
    loader: ReferenceLoader

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == _SUBIMPORT:
            return self.loader.subimport
        reference = self.loader.reference(module, name)
        return super().find_class(module, name) if reference is None else reference


def is_installed(module: str) -> bool:
    """Return whether an installed package other than dask has the source of `module`."""
    return _source(module) is not None


def is_defined(module: str, name: str) -> bool:
    """Return whether ``is_installed``, and whether the source defines `name` at its top level."""
    path = _source(module) if name.isidentifier() else None
    if path is None:
        return False
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError):
        return False
    return re.search(_DEFINITION.format(name), text, re.MULTILINE) is not None


def _source(module: str) -> Path | None:
    """Return the source of a module of an installed package, without importing the package.

    None for modules without a source, and for those of dask.
    """
    names = module.split(".")
    if names[0] in _GRAPH_PACKAGES:
        return None
    found = places = None
    for end in range(1, len(names) + 1):
        found = PathFinder.find_spec(".".join(names[:end]), places)
        if found is None:
            return None
        places = found.submodule_search_locations
    path = Path(str(found and found.origin))
    return path if path.suffix == ".py" and not _INSTALLED.isdisjoint(path.parts) else None
