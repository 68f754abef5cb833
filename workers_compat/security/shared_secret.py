"""A secret shared by all peers of a cluster, proved in the handshake of each connection.

Stock peers first send a dictionary, and ignore unknown keys in it. A peer that loads
``secret_preload`` adds a key with a proof that it knows the secret. The proof is valid for a
limited time and once, and does not reveal the secret. Such peers require a proof of each peer that
connects to them, so that workers are protected as well.

``docs/security.md`` describes what this protects from; reading and changing messages in transit
needs TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import dask.config
from distributed.comm import core

logger = logging.getLogger("distributed.comm")

#: The key of the proof in a handshake.
FIELD = "paceline-proof"
#: Part of the signed text: proofs for other purposes are not valid here.
PURPOSE = "paceline-handshake-1"
#: Maximum difference between the time in a proof and the current time, seconds: clocks differ, and
#: connecting takes time.
VALID_SECONDS = 300.0
#: Used proofs that are remembered. With more than these in ten minutes, the oldest could be used
#: again.
USED_MAX = 200_000
#: Minimum length of a secret. A shorter one could be guessed from an intercepted proof.
SECRET_NBYTES_MIN = 16

#: The two ends of a connection. The proof of one end is not valid for the other.
CONNECTOR, LISTENER = "connector", "listener"


class SecretError(ValueError):
    """The configured secret is missing or invalid."""


class Secret:
    """Creates and verifies proofs of the secret `value`."""

    def __init__(self, value: bytes, clock: Callable[[], float] = time.time) -> None:
        if len(value) < SECRET_NBYTES_MIN:
            raise SecretError(f"paceline.security.secret is shorter than {SECRET_NBYTES_MIN} bytes")
        self._value = value
        self._clock = clock
        self._used: OrderedDict[str, float] = OrderedDict()

    def __repr__(self) -> str:
        return "<Secret>"

    def proof(self, role: str) -> dict[str, Any]:
        """Return the items to add to the handshake of the end ``role`` of a connection."""
        moment, nonce = f"{self._clock():.3f}", os.urandom(16).hex()
        return {FIELD: [moment, nonce, self._mac(role, moment, nonce)]}

    def refusal(self, handshake: Any, role: str) -> str | None:
        """Return why the handshake of the other end is refused; None if it proves the secret.

        `role` is that of the other end, ``CONNECTOR`` or ``LISTENER``.
        """
        proof = handshake.get(FIELD) if isinstance(handshake, Mapping) else None
        if proof is None:
            return (
                "it does not know the cluster's secret "
                "(does it load paceline.workers_compat.security.secret_preload?)"
            )
        if not isinstance(proof, list | tuple) or [type(x) for x in proof] != [str, str, str]:
            return "its proof of the cluster's secret is malformed"
        moment, nonce, mac = proof
        try:
            expected = self._mac(role, moment, nonce)
            is_valid = hmac.compare_digest(expected, mac)
            proved_at = float(moment) if is_valid else 0.0
        except (TypeError, ValueError):  # not ASCII, or not a number
            is_valid = False
        if not is_valid:
            return "it proved a different secret"
        if not math.isfinite(proved_at):
            return "its proof of the cluster's secret is malformed"
        now = self._clock()
        if abs(now - proved_at) > VALID_SECONDS:
            return f"its proof is from {now - proved_at:+.0f} s ago: do the clocks differ?"
        if nonce in self._used:
            return "its proof was used before"
        self._remember(nonce, now)
        return None

    def _mac(self, role: str, moment: str, nonce: str) -> str:
        text = "\n".join((PURPOSE, role, moment, nonce))
        return hmac.new(self._value, text.encode(), hashlib.sha256).hexdigest()

    def _remember(self, nonce: str, now: float) -> None:
        used = self._used
        used[nonce] = now
        while used and (
            len(used) > USED_MAX or now - next(iter(used.values())) > 2 * VALID_SECONDS
        ):
            used.popitem(last=False)


def configured() -> Secret | None:
    """Return the secret of ``paceline.security.secret`` or ``.secret-file``, or None.

    Raise SecretError if the secret is too short, or the file cannot be read.
    """
    value = dask.config.get("paceline.security.secret", default=None)
    path = dask.config.get("paceline.security.secret-file", default=None)
    if value:
        return Secret(str(value).encode())
    if not path:
        return None
    try:
        with open(os.path.expanduser(path), "rb") as file:
            return Secret(file.read().strip())
    except OSError as error:
        raise SecretError(f"paceline.security.secret-file cannot be read: {error}") from error


def install(secret: Secret) -> None:
    """Let distributed's connections in this process prove the secret and require it of peers.

    A second call replaces the secret.
    """
    comm, listener = core.Comm, core.Listener
    is_installed = hasattr(comm, "paceline_secret")
    comm.paceline_secret = secret
    if is_installed:
        return
    stock_info, stock_configuration = comm.handshake_info, comm.handshake_configuration
    stock_on_connection = listener.on_connection

    def handshake_info(self: Any) -> dict[str, Any]:
        return {
            **stock_info(self),
            **comm.paceline_secret.proof(CONNECTOR),
            "paceline-role": CONNECTOR,
        }

    def on_connection(
        self: Any, comm_: Any, handshake_overrides: Mapping[str, Any] | None = None
    ) -> Any:
        proof = {**comm.paceline_secret.proof(LISTENER), "paceline-role": LISTENER}
        return stock_on_connection(self, comm_, {**(handshake_overrides or {}), **proof})

    def handshake_configuration(local: dict[str, Any], remote: dict[str, Any]) -> dict[str, Any]:
        other = LISTENER if local.get("paceline-role") == CONNECTOR else CONNECTOR
        refusal = comm.paceline_secret.refusal(remote, other)
        if refusal is not None:
            logger.warning("Rejected the connection with %s: %s", remote.get("address"), refusal)
            raise core.CommClosedError(f"refused the connection: {refusal}")
        return dict(stock_configuration(local, remote))

    comm.handshake_info = handshake_info
    comm.handshake_configuration = staticmethod(handshake_configuration)
    listener.on_connection = on_connection
