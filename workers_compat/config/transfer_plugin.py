"""The worker plugin of the configured transfer, which the scheduler sends to workers."""

from __future__ import annotations

import dask.config
from distributed.protocol.pickle import dumps

#: Configuration key of the transfer.
KEY = "paceline.transfer"


def worker_plugins() -> dict[str, bytes]:
    """Return name -> pickled worker plugin; empty if no transfer is configured.

    Raises:
        ValueError: the configuration of the transfer is invalid.
    """
    if not dask.config.get(KEY, None):
        return {}
    from paceline.transfer.plugin import NAME, configured_transfer

    return {NAME: bytes(dumps(configured_transfer()))}
