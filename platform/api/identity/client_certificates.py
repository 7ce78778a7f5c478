"""Users of TLS client certificates, as kube-apiserver reads them.

OpenSSL has verified the certificate against ``--client-ca-file`` in the handshake.
"""

import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ...machinery.x509 import Subject
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
    subject = Subject.of(der)
    groups = subject.organizations
    user = UserInfo(
        username=subject.name,
        groups=(*groups, *(() if _AUTHENTICATED in groups else (_AUTHENTICATED,))),
    )
    return ClientCertificate(user=user, expires_at=subject.expires_at)


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
