"""TLS configuration from ``Security`` objects, dictionaries, or dask's configuration.

distributed's ``Security``, or a subclass of a deployment, creates the contexts, so that files,
versions and ciphers are the same for the scheduler and its workers.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from distributed.security import Security
from paceline.workers_compat.config.settings import texts

#: Maximum number of names in a peer's certificate; a certificate with more is rejected.
NAMES_MAX = 256
#: Role in the ``Security`` object.
ROLE = "scheduler"


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS configuration of the scheduler's connections.

    Attributes:
        listen, connect: contexts; None without certificates.
        required: whether unencrypted connections are rejected.
        peer_names: patterns, one of which must match a name in a peer's certificate; () for no
            check.
        server_hostname: the name used to connect to peers (SNI); None for their host.
        security: the ``Security`` object, for comm backends of other packages.
    """

    listen: ssl.SSLContext | None = None
    connect: ssl.SSLContext | None = None
    required: bool = False
    peer_names: tuple[str, ...] = ()
    server_hostname: str | None = None
    security: Any = field(default=None, repr=False)

    def refusal(self, names: Sequence[str]) -> str | None:
        """Return why a peer with these names in its certificate is rejected, or None."""
        if not self.peer_names:
            return None
        if len(names) > NAMES_MAX:
            return f"its certificate carries {len(names)} names, more than {NAMES_MAX}"
        if any(fnmatchcase(name, pattern) for name in names for pattern in self.peer_names):
            return None
        return (
            f"its certificate names {', '.join(map(repr, names)) or 'no peer'}, which is not in "
            f"paceline.security.peer-names: {', '.join(map(repr, self.peer_names))}"
        )


def read(security: Any = None) -> Tls:
    """Return the TLS configuration for the parameter ``security=`` and dask's configuration.

    Args:
        security: an object with the methods of ``Security``, its keywords as a dictionary, True for
            a temporary one, or None for dask's configuration.

    Raises:
        OSError: a certificate file cannot be read (``ssl.SSLError`` is a subclass).
        ValueError: unknown version or cipher, or names of peers are configured without TLS.
    """
    if security is True:
        security = Security.temporary()
    elif not security:
        security = Security()
    elif isinstance(security, dict):
        security = Security(**security)
    elif not hasattr(security, "get_listen_args"):
        raise TypeError(f"security= must be a Security object, got {type(security).__name__}")
    listen = security.get_listen_args(ROLE)
    connect = security.get_connection_args(ROLE)
    names = texts("paceline.security.peer-names")
    if names and listen.get("ssl_context") is None:
        raise ValueError(
            "paceline.security.peer-names needs TLS. "
            "Configure certificates in distributed.comm.tls, or remove the names."
        )
    return Tls(
        listen=listen.get("ssl_context"),
        connect=connect.get("ssl_context"),
        required=bool(listen.get("require_encryption")),
        peer_names=tuple(str(name) for name in names),
        server_hostname=(connect.get("extra_conn_args") or {}).get("server_hostname"),
        security=security,
    )


def client_context() -> ssl.SSLContext | None:
    """Return the context of a client in dask's configuration; None without certificates.

    Without certificates of a client, those of the scheduler are used.

    Raises:
        OSError, ValueError: see ``read``.
    """
    security = Security()
    for role in ("client", ROLE):
        context: ssl.SSLContext | None = security.get_connection_args(role).get("ssl_context")
        if context is not None:
            return context
    return None


def certificate_names(certificate: Any) -> tuple[str, ...]:
    """Return the common and alternative names in the result of ``getpeercert()``."""
    if not certificate:
        return ()
    subject = (pair for parts in certificate.get("subject", ()) for pair in parts)
    common = [value for name, value in subject if name == "commonName"]
    others = [value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
    return tuple(dict.fromkeys([*common, *others]))
