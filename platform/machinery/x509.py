"""Certificate authorities and certificates that they issue. Elliptic keys, PEM."""

import hashlib
import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CLOCK_SKEW = timedelta(minutes=5)
"""Certificates are valid from this long before their creation: clocks differ."""


@dataclass(frozen=True, slots=True)
class CertKeyPair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def from_pem(cls, certificate: bytes, key: bytes) -> "CertKeyPair":
        """Parse PEM; of a chain the first certificate.

        Raises:
            ValueError: one is malformed, or they are not a pair.
        """
        first = x509.load_pem_x509_certificate(certificate)
        private = parse_key(key)
        if private.public_key() != first.public_key():
            raise ValueError("the key does not match the certificate")
        return cls(first, private)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate in PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The unencrypted private key in PEM."""
        return key_pem(self.key)

    def signed_by(self, ca: x509.Certificate) -> bool:
        """Return whether *ca* issued the certificate."""
        try:
            self.certificate.verify_directly_issued_by(ca)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def covers(self, hosts: Sequence[str]) -> bool:
        """Return whether the certificate covers all *hosts*."""
        found = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return {_general_name(each) for each in hosts} <= set(found.value)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def parse_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Parse an unencrypted private key.

    Raises:
        ValueError: it is malformed, or no elliptic curve key.
    """
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not an elliptic curve key")
    return key


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return *key* in PEM, unencrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def create_ca(name: str, *, now: datetime, validity: timedelta) -> CertKeyPair:
    """Create a self-signed CA."""
    key = new_key()
    subject = _common_name(name)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(subject, subject, key, now=now, validity=validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return CertKeyPair(builder.sign(key, hashes.SHA256()), key)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRequest:
    """Properties of a certificate to issue."""

    subject: str
    validity: timedelta
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.SERVER_AUTH
    hosts: Sequence[str] = ()
    """DNS names and IP addresses of a server."""


def issue_certificate(
    ca: CertKeyPair, request: CertificateRequest, *, now: datetime
) -> CertKeyPair:
    """Issue a certificate signed by *ca*."""
    key = new_key()
    issuer = ca.certificate.subject
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = (
        _builder(_common_name(request.subject), issuer, key, now=now, validity=request.validity)
        .add_extension(x509.ExtendedKeyUsage([request.usage]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(signer, critical=False)
    )
    if request.hosts:
        names = x509.SubjectAlternativeName([_general_name(each) for each in request.hosts])
        builder = builder.add_extension(names, critical=False)
    return CertKeyPair(builder.sign(ca.key, hashes.SHA256()), key)


USAGES = {
    "client auth": ExtendedKeyUsageOID.CLIENT_AUTH,
    "server auth": ExtendedKeyUsageOID.SERVER_AUTH,
}
"""What a certificate may be used for, as CertificateSigningRequests name it."""


def new_request(
    key: ec.EllipticCurvePrivateKey,
    *,
    name: str,
    organizations: Sequence[str],
    addresses: Sequence[str] = (),
) -> bytes:
    """Return a request for a certificate of *key* in PEM; *addresses* are IP addresses."""
    subject = x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if addresses:
        names = x509.SubjectAlternativeName(list(map(_general_name, addresses)))
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def sign_request(
    ca: CertKeyPair,
    request: x509.CertificateSigningRequest,
    *,
    usages: Collection[str],
    now: datetime,
    validity: timedelta,
) -> bytes:
    """Return a certificate in PEM with the subject and the alternative names of *request*.

    It is valid for one or both of `USAGES`, and no longer than *ca* itself.
    """
    extended = [oid for usage, oid in USAGES.items() if usage in usages]
    usage = x509.KeyUsage(
        digital_signature="digital signature" in usages,
        key_encipherment="key encipherment" in usages,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(request.subject)
        .issuer_name(ca.certificate.subject)
        .public_key(request.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(min(now + validity, ca.certificate.not_valid_after_utc))
        .add_extension(x509.ExtendedKeyUsage(extended), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(signer, critical=False)
    )
    if usage.digital_signature or usage.key_encipherment:
        # Without a purpose the extension would forbid each use of the key.
        builder = builder.add_extension(usage, critical=True)
    for each in request.extensions:
        if isinstance(each.value, x509.SubjectAlternativeName):
            builder = builder.add_extension(each.value, critical=False)
    signed = builder.sign(ca.key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def public_key_hash(certificate: x509.Certificate) -> str:
    """Return the hexadecimal SHA-256 digest of the public key, as kubeadm pins a CA by it."""
    key = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(key).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whom a certificate identifies, as kube-apiserver reads it."""

    name: str
    """The last common name; empty if there is none."""

    organizations: tuple[str, ...]
    expires_at: datetime

    @property
    def expires_at_unix(self) -> float:
        """Unix time at which the certificate expires."""
        return self.expires_at.timestamp()

    @classmethod
    def of(cls, der: bytes) -> "Subject":
        """Return the subject of a certificate.

        Raises:
            ValueError: the certificate is malformed.
        """
        certificate = x509.load_der_x509_certificate(der)
        names = subject_values(certificate.subject, NameOID.COMMON_NAME)
        return cls(
            name=names[-1] if names else "",
            organizations=subject_values(certificate.subject, NameOID.ORGANIZATION_NAME),
            expires_at=certificate.not_valid_after_utc,
        )


def subject_values(name: x509.Name, attribute: x509.ObjectIdentifier) -> tuple[str, ...]:
    """Return the values of an attribute; empty strings for those that are no text."""
    found = name.get_attributes_for_oid(attribute)
    return tuple(each.value if isinstance(each.value, str) else "" for each in found)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    now: datetime,
    validity: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _common_name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
