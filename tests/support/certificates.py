"""Certificates made while a test runs: an authority, and certificates signed by it or by another."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

#: How an authority's key may be used: to sign certificates.
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    cert: str
    key: str


class Authority:
    """A certificate authority; its own certificate is `ca_file`."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(self._name, self._key, [], (-1, 30), authority=True)
        self.ca_file = str(folder / f"{name.replace(' ', '-')}-{id(self)}.pem")
        Path(self.ca_file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, days: tuple[int, int] = (-1, 30), alternatives: tuple[str, ...] = ()
    ) -> Pair:
        """Create a certificate that is valid between two days relative to today."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._signed(subject, key, [name, *alternatives], days)
        stem = self._folder / f"{name}-{os.urandom(4).hex()}"
        cert_file, key_file = f"{stem}.crt", f"{stem}.key"
        Path(cert_file).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        Path(key_file).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return Pair(cert_file, key_file)

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: list[str],
        days: tuple[int, int],
        authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(tz=datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=days[0]))
            .not_valid_after(now + datetime.timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        # required by the strict checks of Python 3.13
        own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(own_id, critical=False).add_extension(
            issuer_id, critical=False
        )
        if authority:
            builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
        return builder.sign(self._key, hashes.SHA256())


def keywords(authority: Authority, pair: Pair) -> dict[str, str]:
    """Return the arguments of distributed's ``Security``, with one certificate for all roles."""
    out = {"tls_ca_file": authority.ca_file}
    for role in ("client", "scheduler", "worker"):
        out |= {f"tls_{role}_cert": pair.cert, f"tls_{role}_key": pair.key}
    return out
