"""The transfer that dask's configuration asks for, as the scheduler hands it to every worker that registers.

Must not know: what a transfer does. Nothing of it is imported where nobody asks for one.
"""

from __future__ import annotations

import dask.config
from distributed.protocol.pickle import dumps

KEY = "paceline.transfer"


def worker_plugins() -> dict[str, bytes]:
    """Plugins of workers by name, pickled; none where the configuration names no transfer.

    Raises:
        ValueError: what it says means nothing.
    """
    if not dask.config.get(KEY, None):
        return {}
    from .transfer.plugin import NAME, configured_transfer

    return {NAME: bytes(dumps(configured_transfer()))}
