"""Certificates of the embedded cluster: CAs, serving certificates and client certificates.

All are in one directory that only its owner may read. A certificate is issued again only if it is
missing, malformed, about to expire, or signed by another CA.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.x509 import Certificate
from cryptography.x509.oid import ExtendedKeyUsageOID

from ...kube.private_files import ensure_private_dir, read_private, write_private
from ...machinery.serving_certificate import KeyPairFiles
from ...machinery.x509 import (
    CertificateRequest,
    CertKeyPair,
    create_ca,
    issue_certificate,
    key_pem,
    new_key,
    parse_key,
    public_key_hash,
)
from ...model.node_identity import API_SERVER_CLIENT, FRONT_PROXY_CLIENT
from ...model.service_network import PodNetwork

CA_VALIDITY = timedelta(days=3650)
CERT_VALIDITY = timedelta(days=825)
RENEW_BEFORE = timedelta(days=30)
"""A certificate that expires this soon is issued again."""

_SERVER_NAMES = (
    "127.0.0.1",
    "::1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pki:
    """All certificates of the embedded cluster."""

    ca: Path
    """CA certificate, which all clients and servers trust."""

    server: KeyPairFiles
    """Serving certificate of the API server."""

    agent: KeyPairFiles
    """Serving certificate of the agent, which requires a client certificate of the same CA."""

    client: KeyPairFiles
    """Client certificate of the API server for requests to the agent."""

    front_proxy_ca: Path
    """CA certificate, by which other API servers know requests that this one passes on.

    It is not the CA of the cluster: a node, which has a certificate of that, must not name users
    to them.
    """

    front_proxy_client: KeyPairFiles
    """Client certificate of the API server for requests to other API servers."""

    service_account_key: Path
    """Private key that signs the tokens of service accounts."""

    @property
    def ca_data(self) -> bytes:
        """CA certificate, PEM."""
        return self.ca.read_bytes()


def ensure(directory: Path, *, names: Sequence[str] = ()) -> Pki:
    """Issue the certificates that are missing in *directory*, and return their paths.

    Args:
        directory: created with mode 0700 if it does not exist.
        names: host names and addresses of the servers in addition to the default ones.

    Raises:
        UnsafePathError: other users control the directory or a file in it.
        OSError: a file cannot be read or written.
    """
    ensure_private_dir(directory)
    ca = signing_ca(directory)
    hosts = tuple(dict.fromkeys((*_SERVER_NAMES, *names)))

    def leaf(file: str, request: CertificateRequest, issuer: CertKeyPair = ca) -> KeyPairFiles:
        """Return the existing certificate if it is valid, or a new one."""
        pair = KeyPairFiles(directory / f"{file}.crt", directory / f"{file}.key")
        found = _load(pair)
        if (
            found is None
            or not found.signed_by(issuer.certificate)
            or not _matches_request(found, request)
        ):
            _write(pair, issue_certificate(issuer, request, now=datetime.now(UTC)))
        return pair

    front_proxy_ca = _ensure_ca(directory, "front-proxy-ca", subject="batholith-front-proxy-ca")
    return Pki(
        ca=directory / "ca.crt",
        server=leaf("apiserver", _server_request("kube-apiserver", hosts)),
        agent=leaf("agent", _server_request("kubelet", hosts)),
        client=leaf("apiserver-agent-client", _client_request(API_SERVER_CLIENT)),
        front_proxy_ca=directory / "front-proxy-ca.crt",
        front_proxy_client=leaf(
            "front-proxy-client", _client_request(FRONT_PROXY_CLIENT), front_proxy_ca
        ),
        service_account_key=_ensure_signing_key(directory / "sa.key"),
    )


def names_in(network: PodNetwork) -> tuple[str, ...]:
    """Return the addresses at which pods reach the API server and the agent."""
    if network is PodNetwork.HOST:
        return ()
    return network.ranges.api_server_ip, network.ranges.node_ip


def ca_hash(directory: Path) -> str:
    """Return the hash of the CA's public key, by which other machines know it."""
    return public_key_hash(signing_ca(directory).certificate)


def _server_request(subject: str, hosts: Sequence[str]) -> CertificateRequest:
    return CertificateRequest(subject=subject, validity=CERT_VALIDITY, hosts=hosts)


def _client_request(subject: str) -> CertificateRequest:
    usage = ExtendedKeyUsageOID.CLIENT_AUTH
    return CertificateRequest(subject=subject, validity=CERT_VALIDITY, usage=usage)


def signing_ca(directory: Path) -> CertKeyPair:
    """Return the existing CA of the cluster if it is valid, or a new one."""
    return _ensure_ca(directory, "ca", subject="batholith-ca")


def _ensure_ca(directory: Path, file: str, *, subject: str) -> CertKeyPair:
    pair = KeyPairFiles(directory / f"{file}.crt", directory / f"{file}.key")
    found = _load(pair)
    if found is None:
        found = create_ca(subject, now=datetime.now(UTC), validity=CA_VALIDITY)
        _write(pair, found)
    return found


def _ensure_signing_key(path: Path) -> Path:
    """Create a private key, unless there is a valid one."""
    try:
        parse_key(read_private(path))
    except (FileNotFoundError, ValueError):
        write_private(path, key_pem(new_key()))
    return path


def _load(pair: KeyPairFiles) -> CertKeyPair | None:
    try:
        found = CertKeyPair.from_pem(read_private(pair.certificate), read_private(pair.key))
    except (FileNotFoundError, ValueError):
        return None
    return found if _is_fresh(found.certificate) else None


def _matches_request(found: CertKeyPair, request: CertificateRequest) -> bool:
    return not request.hosts or found.covers(request.hosts)


def _is_fresh(certificate: Certificate) -> bool:
    return certificate.not_valid_after_utc > datetime.now(UTC) + RENEW_BEFORE


def _write(pair: KeyPairFiles, identity: CertKeyPair) -> None:
    write_private(pair.key, identity.key_pem)
    write_private(pair.certificate, identity.certificate_pem)
