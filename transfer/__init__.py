"""Alternative transfers of task results between stock Dask workers.

Enable a transfer with ``client.register_plugin(Transfer("shm"))``, with
``dask worker --preload paceline.transfer``, or with the key ``paceline.transfer`` in the
scheduler's dask configuration. See docs/transfer.md.
"""

from __future__ import annotations

from typing import Any

from .backend import (
    Backend,
    BackendContext,
    BackendError,
    BackendFull,
    Capacity,
    Fetched,
    Source,
    Stored,
    ValueGone,
)
from .plugin import Transfer, preload
from .settings import Rule

__all__ = [
    "Backend",
    "BackendContext",
    "BackendError",
    "BackendFull",
    "Capacity",
    "Fetched",
    "Rule",
    "Source",
    "Stored",
    "Transfer",
    "ValueGone",
]


def dask_setup(worker: Any) -> None:
    """Enable the configured transfer on ``worker``; called by ``--preload``."""
    preload(worker)
