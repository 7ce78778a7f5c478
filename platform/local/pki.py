"""The embedded cluster's own certificates: one authority, servers and one client.

Everything lies in one folder, readable by its owner alone, and is made again only when it is
missing, damaged, about to expire, or signed by another authority.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.x509 import Certificate
from cryptography.x509.oid import ExtendedKeyUsageOID

from ..kube.private_files import ensure_private_dir, read_private
from ..machinery.x509 import CertificateRequest, CertKeyPair, create_ca, issue_certificate
from .files import write_private

CA_VALIDITY = timedelta(days=3650)
CERT_VALIDITY = timedelta(days=825)
RENEW_BEFORE = timedelta(days=30)
"""A certificate that expires so soon is made anew."""

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


def ensure(directory: Path, *, names: Sequence[str] = ()) -> Pki:
    """Make what is missing in *folder*, and say where everything is.

    Args:
        folder: made with mode 0700 if it does not exist.
        names: host names and addresses beside the usual ones at which servers are reached.

    Raises:
        UnsafePathError: others control the folder or a file in it.
        OSError: a file cannot be read or written.
    """
    ensure_private_dir(directory)
    authority = _ensure_ca(directory)
    hosts = tuple(dict.fromkeys((*_SERVER_NAMES, *names)))

    def leaf(file: str, request: CertificateRequest) -> KeyPair:
        """A certificate that is there already and still good, or a new one."""
        pair = KeyPair(directory / f"{file}.crt", directory / f"{file}.key")
        found = _load(pair)
        if (
            found is None
            or not found.signed_by(authority.certificate)
            or not _matches_request(found, request)
        ):
            _write(pair, issue_certificate(authority, request, now=datetime.now(UTC)))
        return pair

    client = CertificateRequest(
        subject="kube-apiserver", validity=CERT_VALIDITY, usage=ExtendedKeyUsageOID.CLIENT_AUTH
    )
    return Pki(
        ca=directory / "ca.crt",
        server=leaf("apiserver", _server_request("kube-apiserver", hosts)),
        agent=leaf("agent", _server_request("kubelet", hosts)),
        client=leaf("apiserver-agent-client", client),
    )


def _server_request(subject: str, hosts: Sequence[str]) -> CertificateRequest:
    return CertificateRequest(subject=subject, validity=CERT_VALIDITY, hosts=hosts)


def _ensure_ca(folder: Path) -> CertKeyPair:
    """The key that signs: what is there and still good, or a new one."""
    pair = KeyPair(folder / "ca.crt", folder / "ca.key")
    found = _load(pair)
    if found is None:
        found = create_ca("batholith-ca", now=datetime.now(UTC), validity=CA_VALIDITY)
        _write(pair, found)
    return found


def _load(pair: KeyPair) -> CertKeyPair | None:
    try:
        found = CertKeyPair.from_pem(read_private(pair.certificate), read_private(pair.key))
    except (FileNotFoundError, ValueError):
        return None
    return found if _is_fresh(found.certificate) else None


def _matches_request(found: CertKeyPair, request: CertificateRequest) -> bool:
    return not request.hosts or found.covers(request.hosts)


def _is_fresh(certificate: Certificate) -> bool:
    return certificate.not_valid_after_utc > datetime.now(UTC) + RENEW_BEFORE


def _write(pair: KeyPair, identity: CertKeyPair) -> None:
    write_private(pair.key, identity.key_pem)
    write_private(pair.certificate, identity.certificate_pem)
