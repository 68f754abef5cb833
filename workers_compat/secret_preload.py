"""A preload for workers, nannies and clients: their connections prove the cluster's secret, and ask for it.

``dask worker --preload paceline.workers_compat.secret_preload --preload-nanny paceline.workers_compat.secret_preload``, or
``distributed.{worker,nanny,client}.preload`` in the configuration; the secret is ``paceline.security.secret`` or ``.secret-file``.

It works from its import on: a client connects before it lets its preloads start.

Must not know: how proofs look.
"""

from __future__ import annotations

from typing import Any

from paceline.workers_compat import shared_secret


def begin() -> None:
    """Prove and ask from now on.

    Raises:
        SecretError: there is no secret, or it cannot be used.
    """
    secret = shared_secret.configured()
    if secret is None:
        raise shared_secret.SecretError(
            "paceline.security.secret or paceline.security.secret-file must be configured for this preload"
        )
    shared_secret.install(secret)


begin()


def dask_setup(server: Any) -> None:
    """It stands already; distributed wants a preload to have this."""
