"""Preload for workers, nannies and clients that share the cluster's secret.

Pass ``--preload paceline.workers_compat.security.secret_preload`` and ``--preload-nanny`` with the
same module to ``dask worker``, or set ``distributed.{worker,nanny,client}.preload`` in the
configuration. The secret is ``paceline.security.secret`` or ``.secret-file``.

The import installs it, because a client connects before it starts its preloads.
"""

from __future__ import annotations

from typing import Any

from . import shared_secret

configured = shared_secret.configured()
if configured is None:
    raise shared_secret.SecretError(
        "This preload needs paceline.security.secret or paceline.security.secret-file"
    )
shared_secret.install(configured)


def dask_setup(server: Any) -> None:
    """Do nothing: distributed requires a preload to have this function."""
