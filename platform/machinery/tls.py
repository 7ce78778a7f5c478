"""The certificate of the HTTPS server, changed while connections stay open.

One ``ssl.SSLContext`` serves as long as the process. A new certificate is loaded into it: new
connections get it, those that are open go on.
"""

import os
import ssl


class CertificateError(Exception):
    """A certificate and key that cannot be served; the text says why."""


class Presenter:
    """What the server shows of itself."""

    def __init__(self) -> None:
        """Make a context without a certificate."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_ciphers("ECDHE+AESGCM")
        self.shown = b""
        """The chain that is served, PEM; empty until there is one."""

    def show(self, certificate: bytes, key: bytes) -> bool:
        """Serve another certificate (a chain, PEM) and its key; whether it is another.

        Raises:
            CertificateError: they are damaged or not a pair; what was served still is.
        """
        if certificate == self.shown:
            return False
        try:
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
            _load(self.context, certificate, key)
        except ssl.SSLError as error:
            raise CertificateError(f"certificate and key cannot be served: {error}") from error
        self.shown = certificate
        return True


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a pair by way of memory: the library reads files only, and a key belongs in none."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
