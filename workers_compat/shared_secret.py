"""A secret that every peer of a cluster must know, proved in the handshake of each connection.

Stock peers say a dictionary first, and look at no key of it that they do not know. A peer that loads ``secret_preload`` says one key
more: a proof that it knows the secret, which holds for a while and once, and never shows the secret itself. Peers with that preload
ask the same of whoever connects to them, so that workers are closed to strangers too.

What it protects from, and what not (whoever reads or changes what passes on the way, for which there is TLS), says
``docs/security.md``.

Must not know: paceline. It runs in workers, nannies and clients too.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import dask.config

logger = logging.getLogger("distributed.comm")

#: The key of the proof in a handshake.
FIELD = "paceline-proof"
#: What is proved with: a proof for another purpose is none for this one.
PURPOSE = "paceline-handshake-1"
#: A proof is good so long before and after the moment that it names: clocks differ, and connecting takes its time. Seconds.
GOOD_SECONDS = 300.0
#: Proofs that are remembered as used; with more than these in ten minutes the oldest could be used again.
USED_MAX = 200_000
#: A shorter secret could be guessed from a proof that somebody overheard.
SECRET_NBYTES_MIN = 16

#: The two ends of a connection. What one says is no proof for the other.
CONNECTOR, LISTENER = "connector", "listener"


class SecretError(ValueError):
    """The configured secret cannot be used."""


class Secret:
    """Makes proofs, and looks at those of others.

    Args:
        value: the secret.
        clock: seconds since the epoch.
    """

    def __init__(self, value: bytes, clock: Callable[[], float] = time.time) -> None:
        if len(value) < SECRET_NBYTES_MIN:
            raise SecretError(f"paceline.security.secret is shorter than {SECRET_NBYTES_MIN} bytes")
        self._value = value
        self._clock = clock
        self._used: OrderedDict[str, float] = OrderedDict()

    def __repr__(self) -> str:
        return "<Secret>"

    def proof(self, role: str) -> dict[str, Any]:
        """What to add to a handshake as this end of the connection."""
        moment, nonce = f"{self._clock():.3f}", os.urandom(16).hex()
        return {FIELD: [moment, nonce, self._mac(role, moment, nonce)]}

    def refusal(self, handshake: Any, role: str) -> str | None:
        """Why the other end, which is ``role``, is refused; None where it proved that it knows the secret."""
        proof = handshake.get(FIELD) if isinstance(handshake, Mapping) else None
        if proof is None:
            return "it does not know the cluster's secret (does it load paceline.workers_compat.secret_preload?)"
        if not (isinstance(proof, list | tuple) and len(proof) == 3 and all(type(x) is str for x in proof)):
            return "its proof of the cluster's secret is malformed"
        moment, nonce, mac = proof
        try:
            expected = self._mac(role, moment, nonce)
            is_right = hmac.compare_digest(expected, mac)
            said_at = float(moment) if is_right else 0.0
        except (TypeError, ValueError):  # odd characters
            is_right = False
        if not is_right:
            return "it proved another secret than the cluster's"
        now = self._clock()
        if abs(now - said_at) > GOOD_SECONDS:
            return f"its proof is from {now - said_at:+.0f} s ago: do the clocks differ?"
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
        while used and (len(used) > USED_MAX or now - next(iter(used.values())) > 2 * GOOD_SECONDS):
            used.popitem(last=False)


def configured() -> Secret | None:
    """The secret of dask's configuration: ``paceline.security.secret``, or the content of the file ``.secret-file``.

    Raises:
        SecretError: it is too short, or the file cannot be read.
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
    """From now on each connection of distributed in this process proves the secret, and asks the other end for it."""
    from distributed.comm import core

    comm, listener = core.Comm, core.Listener
    if hasattr(comm, "_paceline_secret"):
        comm._paceline_secret = secret
        return
    comm._paceline_secret = secret
    said, heard, greet = comm.handshake_info, comm.handshake_configuration, listener.on_connection

    def handshake_info(self: Any) -> dict[str, Any]:
        return {**said(self), **comm._paceline_secret.proof(CONNECTOR), "paceline-role": CONNECTOR}

    def on_connection(self: Any, comm_: Any, handshake_overrides: Mapping[str, Any] | None = None) -> Any:
        ours = {**comm._paceline_secret.proof(LISTENER), "paceline-role": LISTENER}
        return greet(self, comm_, {**(handshake_overrides or {}), **ours})

    def handshake_configuration(local: dict[str, Any], remote: dict[str, Any]) -> dict[str, Any]:
        other = LISTENER if local.get("paceline-role") == CONNECTOR else CONNECTOR
        refusal = comm._paceline_secret.refusal(remote, other)
        if refusal is not None:
            logger.warning("Refused a connection with %s: %s", remote.get("address"), refusal)
            raise core.CommClosedError(f"refused the connection: {refusal}")
        return dict(heard(local, remote))

    comm.handshake_info = handshake_info
    comm.handshake_configuration = staticmethod(handshake_configuration)
    listener.on_connection = on_connection
