"""TLS as users of Dask configure it: ``Security`` objects, dictionaries, or the configuration alone.

The contexts are made by distributed's ``Security`` (or by what a deployment derived from it): which files, versions and
ciphers a cluster asks for is its matter, and shall be the same for the scheduler as for its workers.

Must not know: sockets.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import dask.config
from distributed.security import Security

#: Names that a peer's certificate may carry; a certificate of more is refused rather than searched.
NAMES_MAX = 256
ROLE = "scheduler"


@dataclass(frozen=True, slots=True)
class Tls:
    """What the scheduler's connections are secured with.

    Attributes:
        listen, dial: contexts, or None where there are no certificates.
        required: no connection goes without.
        peer_names: patterns, one of which a peer's certificate must carry; () asks for no name.
        server_hostname: the name that peers are dialled under (SNI); None for their host.
        security: the ``Security`` object itself, for carriers that other packages wrote.
    """

    listen: ssl.SSLContext | None = None
    dial: ssl.SSLContext | None = None
    required: bool = False
    peer_names: tuple[str, ...] = ()
    server_hostname: str | None = None
    security: Any = field(default=None, repr=False)

    def refusal(self, names: Sequence[str]) -> str | None:
        """Why a peer with a certificate of these names is refused; None where it is not."""
        if not self.peer_names:
            return None
        if len(names) > NAMES_MAX:
            return f"its certificate carries {len(names)} names, more than {NAMES_MAX}"
        if any(fnmatchcase(name, pattern) for name in names for pattern in self.peer_names):
            return None
        return (
            f"its certificate names {', '.join(map(repr, names)) or 'nobody'}, which is not in "
            f"paceline.security.peer-names: {', '.join(map(repr, self.peer_names))}"
        )


def read(security: Any = None) -> Tls:
    """What a user's ``security=`` and dask's configuration come to.

    Args:
        security: a ``Security`` object or one of its shape, its keywords as a dictionary, True for a temporary one,
            or None for the configuration alone.

    Raises:
        TypeError: it is something else.
        OSError: a certificate file cannot be read (``ssl.SSLError`` is one).
        ValueError: a version or cipher that there is not; or names are asked of peers without TLS.
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
    dial = security.get_connection_args(ROLE)
    names = dask.config.get("paceline.security.peer-names", default=None) or ()
    if isinstance(names, str):
        names = (names,)
    if names and listen.get("ssl_context") is None:
        raise ValueError("paceline.security.peer-names asks for names in certificates, but there are no certificates")
    return Tls(
        listen=listen.get("ssl_context"),
        dial=dial.get("ssl_context"),
        required=bool(listen.get("require_encryption")),
        peer_names=tuple(str(name) for name in names),
        server_hostname=(dial.get("extra_conn_args") or {}).get("server_hostname"),
        security=security,
    )


def certificate_names(certificate: Any) -> tuple[str, ...]:
    """What a peer's certificate calls it: its common names, then its alternative names.

    Args:
        certificate: as ``ssl`` gives it (``getpeercert()``).
    """
    if not certificate:
        return ()
    common = [
        value
        for parts in certificate.get("subject", ())
        for name, value in parts
        if name == "commonName"
    ]
    others = [value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str)]
    return tuple(dict.fromkeys([*common, *others]))
