"""Client certificates with organizations, for tests."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from batholith.machinery.x509 import CertKeyPair


@dataclass(frozen=True, kw_only=True)
class ClientSubject:
    """Whom a certificate is issued to."""

    names: Sequence[str] = ("ada",)
    organizations: Sequence[str] = ()
    validity: timedelta = timedelta(days=1)
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH


def issue(ca: CertKeyPair, subject: ClientSubject) -> CertKeyPair:
    """A certificate of *subject*, signed by *ca*."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    attributes = [
        *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in subject.organizations),
        *(x509.NameAttribute(NameOID.COMMON_NAME, each) for each in subject.names),
    ]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(attributes))
        .issuer_name(ca.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + subject.validity)
        .add_extension(x509.ExtendedKeyUsage([subject.usage]), critical=False)
    )
    return CertKeyPair(builder.sign(ca.key, hashes.SHA256()), key)


def client_context(server_ca: bytes, pair: CertKeyPair | None, directory: Path) -> ssl.SSLContext:
    """TLS settings of a client that trusts *server_ca* and sends the certificate of *pair*."""
    context = ssl.create_default_context(cadata=server_ca.decode())
    if pair is not None:
        path = directory / f"client-{pair.certificate.serial_number}.pem"
        path.touch(0o600)
        path.write_bytes(pair.certificate_pem + pair.key_pem)
        context.load_cert_chain(path)
    return context


def der(pair: CertKeyPair) -> bytes:
    """The certificate as a TLS peer shows it."""
    return pair.certificate.public_bytes(serialization.Encoding.DER)
