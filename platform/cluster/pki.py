"""The embedded cluster's own certificates: one authority, servers and one client.

Everything lies in one folder, readable by its owner alone, and is made again only when it is
missing, damaged, about to expire, or signed by another authority.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .files import write_private

AUTHORITY_DAYS = 3650
LEAF_DAYS = 825
RENEW_DAYS = 30
"""A certificate that expires within these days is made anew."""

_SKEW = timedelta(minutes=5)
_SERVER_NAMES = (
    "127.0.0.1",
    "::1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Paths of a certificate and its private key, both PEM."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Pki:
    """All certificates of the embedded cluster."""

    ca: Path
    """Certificate of the authority: what everybody trusts."""

    server: KeyPair
    """Of the API server."""

    agent: KeyPair
    """Of the agent's HTTPS; it demands a client certificate of the same authority."""

    client: KeyPair
    """With which the API server comes to agents."""

    @property
    def ca_data(self) -> bytes:
        """The authority's certificate, PEM."""
        return self.ca.read_bytes()


def ensure(folder: Path, *, names: Sequence[str] = ()) -> Pki:
    """Make what is missing in *folder*, and say where everything is.

    Args:
        folder: made with mode 0700 if it does not exist.
        names: host names and addresses beside the usual ones at which servers are reached.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _Authority.load(folder) or _Authority.make(folder)
    hosts = tuple(dict.fromkeys((*_SERVER_NAMES, *names)))
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    return Pki(
        ca=folder / "ca.crt",
        server=authority.leaf("apiserver", "kube-apiserver", usage=server, hosts=hosts),
        agent=authority.leaf("agent", "kubelet", usage=server, hosts=hosts),
        client=authority.leaf("apiserver-agent-client", "kube-apiserver", usage=client),
    )


class _Authority:
    """The key that signs."""

    def __init__(
        self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        self._folder = folder
        self._certificate = certificate
        self._key = key

    @classmethod
    def load(cls, folder: Path) -> "_Authority | None":
        try:
            certificate, key = _read(KeyPair(folder / "ca.crt", folder / "ca.key"))
        except (OSError, ValueError):
            return None
        return cls(folder, certificate, key) if _fresh(certificate) else None

    @classmethod
    def make(cls, folder: Path) -> "_Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("batholith-ca")
        builder = _builder(name, name, key, days=AUTHORITY_DAYS)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
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
        builder = builder.add_extension(constraints, critical=True)
        certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
        _write(KeyPair(folder / "ca.crt", folder / "ca.key"), certificate, key)
        return cls(folder, certificate, key)

    def leaf(
        self, file: str, subject: str, *, usage: x509.ObjectIdentifier, hosts: Sequence[str] = ()
    ) -> KeyPair:
        """A certificate that is there already and still good, or a new one."""
        pair = KeyPair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        if not self._good(pair, hosts):
            key = ec.generate_private_key(ec.SECP256R1())
            builder = _builder(_name(subject), self._certificate.subject, key, days=LEAF_DAYS)
            extended = x509.ExtendedKeyUsage([usage])
            builder = builder.add_extension(extended, critical=False).add_extension(
                x509.BasicConstraints(ca=False, path_length=None), critical=True
            )
            issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(issuer_key, critical=False)
            if hosts:
                alternatives = x509.SubjectAlternativeName([_host(each) for each in hosts])
                builder = builder.add_extension(alternatives, critical=False)
            _write(pair, builder.sign(self._key, hashes.SHA256()), key)
        return pair

    def _good(self, pair: KeyPair, hosts: Sequence[str]) -> bool:
        try:
            certificate, _ = _read(pair)
            certificate.verify_directly_issued_by(self._certificate)
        except (OSError, ValueError, TypeError, InvalidSignature):
            return False
        if not _fresh(certificate):
            return False
        if not hosts:
            return True
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        return {_host(each) for each in hosts} <= set(found.value)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _fresh(certificate: x509.Certificate) -> bool:
    return certificate.not_valid_after_utc > datetime.now(UTC) + timedelta(days=RENEW_DAYS)


def _read(pair: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{pair.key} holds another kind of key")
    if key.public_key() != certificate.public_key():
        raise ValueError(f"{pair.key} is not the key of {pair.certificate}")
    return certificate, key


def _write(pair: KeyPair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(pair.key, private)
    write_private(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
