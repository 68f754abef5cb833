"""Faster versions of parts of dask in which the graph compiler spends most of its time.

- ``task_order`` with ``measured_graph``: ``dask.order.order`` over lists of integers.
- ``no_docstrings``: dask is imported without copied docstrings.
- ``fast_unpickle``: ``Task.__setstate__`` without the loop over slot names.
- ``optional_imports``: packages without the optional modules that they import.
- ``shared_openings``: pickles of tasks with the same function share their first bytes.
- ``plain_tasks``: pickles of tasks with simple arguments, written without a pickler.
- ``unimported``: graphs are unpickled without importing the functions that they only refer to.

The graphs are the same as with dask's own code. Modules that replace functions of dask fall back to
them if the installed dask differs from the version that they were written for. They are to be
contributed to dask: remove a module and its call as soon as the oldest supported dask contains the
change.
``paceline.graph-compiler.accelerators: false`` turns all of them off.
"""

from __future__ import annotations

from paceline.workers_compat.config.settings import is_on


def are_enabled() -> bool:
    """Return whether the configuration allows the accelerators."""
    return is_on("paceline.graph-compiler.accelerators")
