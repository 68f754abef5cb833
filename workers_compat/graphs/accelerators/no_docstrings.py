"""Functions of dask without docstrings, for the process that compiles graphs.

dask copies the docstrings of NumPy and pandas to its own functions when it is imported. The edits
of these copies take a fifth of the time to import ``dask.dataframe``, and no one reads them here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask import utils


def install() -> None:
    """Replace the decorator ``dask.utils.derived_from`` in this process."""
    utils.derived_from = _derived_from


def _derived_from(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return _unchanged


def _unchanged(method: Any) -> Any:
    return method
