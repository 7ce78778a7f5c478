"""Users of TLS client certificates, as kube-apiserver reads them.

OpenSSL has verified the certificate against ``--client-ca-file`` in the handshake.
"""

import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from .reviewer import UserInfo

CERTIFICATE = "client_certificate"
"""Key of the request's state."""

_AUTHENTICATED = "system:authenticated"


class ClientCaError(ValueError):
    """``--client-ca-file`` cannot be used; the text names the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    """The user of a certificate."""

    user: UserInfo
    """Common name and organizations; the name is empty if there is no common name."""

    expires_at: datetime


def parse_client_certificate(der: bytes) -> ClientCertificate:
    """Return the user of a verified certificate: common name, and organizations as groups.

    Raises:
        ValueError: the certificate is malformed.
    """
    certificate = x509.load_der_x509_certificate(der)
    names = _subject_values(certificate, NameOID.COMMON_NAME)
    groups = _subject_values(certificate, NameOID.ORGANIZATION_NAME)
    user = UserInfo(
        username=names[-1] if names else "",
        groups=(*groups, *(() if _AUTHENTICATED in groups else (_AUTHENTICATED,))),
    )
    return ClientCertificate(user=user, expires_at=certificate.not_valid_after_utc)


def _subject_values(certificate: x509.Certificate, attribute: x509.ObjectIdentifier) -> list[str]:
    found = certificate.subject.get_attributes_for_oid(attribute)
    return [each.value if isinstance(each.value, str) else "" for each in found]


def accept_client_certificates(context: ssl.SSLContext, ca_file: Path) -> None:
    """Request a client certificate in handshakes of *context*, and verify one that is sent.

    Raises:
        ClientCaError: the file contains no certificate, or cannot be read.
    """
    try:
        context.load_verify_locations(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClientCaError(f"cannot load --client-ca-file={ca_file}: {reason}") from error
    if not context.get_ca_certs():
        raise ClientCaError(f"cannot load --client-ca-file={ca_file}: it has no CA certificate")
    context.verify_mode = ssl.CERT_OPTIONAL
