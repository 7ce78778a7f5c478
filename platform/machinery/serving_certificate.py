"""Serving certificate of an HTTPS server, rotated without closing connections.

The process keeps one ``ssl.SSLContext``. A new certificate is loaded into it and used for new
connections.
"""

import hashlib
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .file_watcher import FileWatcher

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class CertificateError(ValueError):
    """An invalid certificate or key; the text states the problem."""


@dataclass(frozen=True, slots=True)
class KeyPairFiles:
    """Paths of PEM files: a certificate or chain, and its key."""

    certificate: Path
    key: Path


class ServingCertificate:
    """Serving certificate of an HTTPS server."""

    def __init__(self) -> None:
        """Create a context without a certificate."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_ciphers("ECDHE+AESGCM")
        self.current = b""
        """The current chain, PEM; empty until one is loaded."""
        self._digest = b""
        """Digest of the chain and its key."""

    def load(self, certificate: bytes, key: bytes) -> bool:
        """Load a certificate (a chain, PEM) and its key; return whether they have changed.

        Raises:
            CertificateError: they are malformed or not a pair; the current ones are kept.
        """
        pair = hashlib.sha256(hashlib.sha256(certificate).digest() + key).digest()
        if pair == self._digest:
            return False
        try:
            _load_cert_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
            _load_cert_chain(self.context, certificate, key)
        except ssl.SSLError as error:
            raise CertificateError(f"cannot load certificate and key: {error}") from error
        self.current, self._digest = certificate, pair
        return True

    def collect(self) -> "Iterator[Metric]":
        """Yield the expiry of the served certificate; without one, a family without samples."""
        from cryptography import x509
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(
            "batholith_serving_certificate_expiration_timestamp_seconds",
            "When the certificate that is served to new connections expires.",
        )
        if self.current:
            expiry = x509.load_pem_x509_certificate(self.current).not_valid_after_utc
            family.add_metric([], expiry.timestamp())
        yield family


def key_pair_watcher(serving: ServingCertificate, *, certificate: Path, key: Path) -> FileWatcher:
    """Return a watcher that loads the pair into *serving* whenever its files change."""

    def on_change(contents: list[bytes]) -> None:
        serving.load(*contents)

    return FileWatcher([certificate, key], on_change)


def _load_cert_chain(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a pair via memory: OpenSSL reads files only, and the key must not be on disk."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        # Without a password OpenSSL would prompt on the terminal for that of an encrypted key.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
