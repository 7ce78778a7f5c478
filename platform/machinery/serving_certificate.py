"""The certificate of an HTTPS server, changed while connections stay open.

One ``ssl.SSLContext`` serves as long as the process. A new certificate is loaded into it: new
connections get it, those that are open go on.
"""

import hashlib
import os
import ssl
from pathlib import Path

from .file_watcher import FileWatcher


class CertificateError(ValueError):
    """A certificate and key that cannot be served; the text says why."""


class ServingCertificate:
    """What the server shows of itself."""

    def __init__(self) -> None:
        """Make a context without a certificate."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_ciphers("ECDHE+AESGCM")
        self.current = b""
        """The chain that is served, PEM; empty until there is one."""
        self._digest = b""
        """Digest of the chain and its key."""

    def load(self, certificate: bytes, key: bytes) -> bool:
        """Serve another certificate (a chain, PEM) and its key; whether it is another.

        Raises:
            CertificateError: they are damaged or not a pair; what was served still is.
        """
        pair = hashlib.sha256(hashlib.sha256(certificate).digest() + key).digest()
        if pair == self._digest:
            return False
        try:
            _load_cert_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
            _load_cert_chain(self.context, certificate, key)
        except ssl.SSLError as error:
            raise CertificateError(f"certificate and key cannot be served: {error}") from error
        self.current, self._digest = certificate, pair
        return True


def key_pair_watcher(serving: ServingCertificate, *, certificate: Path, key: Path) -> FileWatcher:
    """Files that *presenter* serves, and serves anew when they have changed."""

    def on_change(contents: list[bytes]) -> None:
        serving.load(*contents)

    return FileWatcher([certificate, key], on_change)


def _load_cert_chain(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a pair by way of memory: the library reads files only, and a key belongs in none."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
