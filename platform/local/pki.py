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

from ..kube.private_files import make_folder, read_private
from ..machinery.x509 import Identity, LeafRequest, issue, make_authority
from .files import write_private

AUTHORITY_LASTS = timedelta(days=3650)
LEAF_LASTS = timedelta(days=825)
RENEW_WITHIN = timedelta(days=30)
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


def ensure(folder: Path, *, names: Sequence[str] = ()) -> Pki:
    """Make what is missing in *folder*, and say where everything is.

    Args:
        folder: made with mode 0700 if it does not exist.
        names: host names and addresses beside the usual ones at which servers are reached.

    Raises:
        UnsafePathError: others control the folder or a file in it.
        OSError: a file cannot be read or written.
    """
    make_folder(folder)
    authority = _authority(folder)
    hosts = tuple(dict.fromkeys((*_SERVER_NAMES, *names)))

    def leaf(file: str, request: LeafRequest) -> KeyPair:
        """A certificate that is there already and still good, or a new one."""
        pair = KeyPair(folder / f"{file}.crt", folder / f"{file}.key")
        found = _load(pair)
        if (
            found is None
            or not found.signed_by(authority.certificate)
            or not _serves(found, request)
        ):
            _write(pair, issue(authority, request, now=datetime.now(UTC)))
        return pair

    client = LeafRequest(
        subject="kube-apiserver", lasts=LEAF_LASTS, usage=ExtendedKeyUsageOID.CLIENT_AUTH
    )
    return Pki(
        ca=folder / "ca.crt",
        server=leaf("apiserver", _server("kube-apiserver", hosts)),
        agent=leaf("agent", _server("kubelet", hosts)),
        client=leaf("apiserver-agent-client", client),
    )


def _server(subject: str, hosts: Sequence[str]) -> LeafRequest:
    return LeafRequest(subject=subject, lasts=LEAF_LASTS, hosts=hosts)


def _authority(folder: Path) -> Identity:
    """The key that signs: what is there and still good, or a new one."""
    pair = KeyPair(folder / "ca.crt", folder / "ca.key")
    found = _load(pair)
    if found is None:
        found = make_authority("batholith-ca", now=datetime.now(UTC), lasts=AUTHORITY_LASTS)
        _write(pair, found)
    return found


def _load(pair: KeyPair) -> Identity | None:
    try:
        found = Identity.read(read_private(pair.certificate), read_private(pair.key))
    except (FileNotFoundError, ValueError):
        return None
    return found if _fresh(found.certificate) else None


def _serves(found: Identity, request: LeafRequest) -> bool:
    return not request.hosts or found.serves(request.hosts)


def _fresh(certificate: Certificate) -> bool:
    return certificate.not_valid_after_utc > datetime.now(UTC) + RENEW_WITHIN


def _write(pair: KeyPair, identity: Identity) -> None:
    write_private(pair.key, identity.key_pem)
    write_private(pair.certificate, identity.certificate_pem)
