"""The certificate of an HTTPS server, changed while connections stay open.

One ``ssl.SSLContext`` serves as long as the process. A new certificate is loaded into it: new
connections get it, those that are open go on.
"""

import hashlib
import os
import ssl
from pathlib import Path

from .file_watcher import Files


class CertificateError(ValueError):
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
        self._pair = b""
        """Digest of the chain and its key."""

    def show(self, certificate: bytes, key: bytes) -> bool:
        """Serve another certificate (a chain, PEM) and its key; whether it is another.

        Raises:
            CertificateError: they are damaged or not a pair; what was served still is.
        """
        pair = hashlib.sha256(hashlib.sha256(certificate).digest() + key).digest()
        if pair == self._pair:
            return False
        try:
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
            _load(self.context, certificate, key)
        except ssl.SSLError as error:
            raise CertificateError(f"certificate and key cannot be served: {error}") from error
        self.shown, self._pair = certificate, pair
        return True


def key_pair_files(presenter: Presenter, *, certificate: Path, key: Path) -> Files:
    """Files that *presenter* serves, and serves anew when they have changed."""

    def load(contents: list[bytes]) -> None:
        presenter.show(*contents)

    return Files([certificate, key], load)


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a pair by way of memory: the library reads files only, and a key belongs in none."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
