"""Certificates for the TLS listeners, made afresh: a CA that clients can trust, a good leaf, and bad ones."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from monitor.extras import how_to_install
from monitor.model import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate as Signed
    from cryptography.x509 import GeneralName, Name

_NAMES = ("localhost", "127.0.0.1", "::1")


class Certificate(StrEnum):
    """Which certificate a listener shows."""

    GOOD = "good"
    EXPIRING = "expiring"  # good for three more days
    EXPIRED = "expired"  # since yesterday
    SELF_SIGNED = "self_signed"
    WRONG_NAME = "wrong_name"  # for wrong.example


class Authority:
    """A certificate authority in a directory: `ca_file` and one PEM file for each leaf asked for.

    Raises ConfigError when the package `cryptography` is missing. `now` dates the certificates.
    """

    def __init__(self, directory: Path, now: datetime) -> None:
        try:
            import cryptography  # noqa: F401 - asked here so that a missing one is a sentence
        except ImportError:
            raise ConfigError(f"TLS listeners need the package 'cryptography'; {how_to_install('simulator')}") from None
        self._directory, self._now = directory, now
        self._key, self._certificate = _ca(now)
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_bytes(_pem(self._certificate))

    def context(self, kind: Certificate, alpn: tuple[str, ...]) -> ssl.SSLContext:
        """A server's context that shows this certificate and offers these protocols, the preferred first."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.leaf(kind))
        context.set_alpn_protocols(list(alpn))
        return context

    def leaf(self, kind: Certificate) -> Path:
        """The PEM file (key and certificate) of one leaf, made at the first call."""
        path = self._directory / f"{kind}.pem"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_bytes(self._leaf(kind))
        return path

    def _leaf(self, kind: Certificate) -> bytes:
        key = _key()
        until = {Certificate.EXPIRED: -1, Certificate.EXPIRING: 3}.get(kind, 365)
        names = ("wrong.example",) if kind is Certificate.WRONG_NAME else _NAMES
        signer = (key, None) if kind is Certificate.SELF_SIGNED else (self._key, self._certificate)
        certificate = _signed(names, key, signer, self._now - timedelta(days=30), self._now + timedelta(days=until))
        return _key_pem(key) + _pem(certificate)


def _key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _ca(now: datetime) -> tuple[EllipticCurvePrivateKey, Signed]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key, name = _key(), _name("First Token simulator CA")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - timedelta(days=60))
        .not_valid_after(now.astimezone(UTC) + timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, builder.sign(key, hashes.SHA256())


def _signed(
    names: tuple[str, ...],
    key: EllipticCurvePrivateKey,
    signer: tuple[EllipticCurvePrivateKey, Signed | None],
    begin: datetime,
    end: datetime,
) -> Signed:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    subject = _name(names[0])
    issuer_key, issuer = signer
    builder = (
        x509.CertificateBuilder(
            issuer.subject if issuer else subject, subject, key.public_key(), x509.random_serial_number()
        )
        .not_valid_before(begin.astimezone(UTC))
        .not_valid_after(end.astimezone(UTC))
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    return builder.sign(issuer_key, hashes.SHA256())


def _name(common: str) -> Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: Signed) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
