"""Transfers that move task results between stock workers another way than Dask's.

``client.register_plugin(Transfer("shm"))`` turns one on; so does ``dask worker --preload paceline.workers_compat.transfer``, and the key
``paceline.transfer`` of dask's configuration where the scheduler reads it. See docs/transfer.md.

Must not know: the scheduler. It runs in workers.
"""

from __future__ import annotations

from typing import Any

from .backend import Backend, BackendError, BackendFull, Capacity, Fetched, Stored, Surroundings
from .plugin import Transfer, preload
from .settings import Rule

__all__ = [
    "Backend",
    "BackendError",
    "BackendFull",
    "Capacity",
    "Fetched",
    "Rule",
    "Stored",
    "Surroundings",
    "Transfer",
]


def dask_setup(worker: Any) -> None:
    """What ``--preload`` calls in each worker."""
    preload(worker)
