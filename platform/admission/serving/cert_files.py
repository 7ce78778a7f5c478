"""Serving certificate from files that the administrator provides and renews."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...kube.informer.informer import Informer
from ...machinery.clock import Clock
from ...machinery.file_watcher import FileWatcher
from ...machinery.serving_certificate import ServingCertificate


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """Paths of PEM files."""

    certificate: Path
    key: Path
    ca: Path | None = None
    """CA bundle for webhook configurations; without it they are not modified."""


class FileCertProvider:
    """Loads the serving certificate from files."""

    informers: Sequence[Informer[Any]] = ()

    def __init__(
        self,
        files: CertificateFiles,
        serving_certificate: ServingCertificate,
        *,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """Call *changed* when a file has changed."""
        self.ca_bundle = b""
        """CA bundle for webhook configurations; empty if no file is given."""
        self._serving_certificate = serving_certificate
        self._clock = clock
        self._changed = changed
        ca_files = [] if files.ca is None else [files.ca]
        self._files = FileWatcher([files.certificate, files.key, *ca_files], self._on_files)

    async def start(self) -> None:
        """Load the files.

        Raises:
            OSError: a file cannot be read.
            ValueError: certificate and key cannot be served.
        """
        self._files.poll()

    async def watch(self) -> None:
        """Watch the files until cancelled."""
        await self._files.watch(self._clock)

    async def renew(self, *, propagated_for: float) -> float:
        """Do nothing: the administrator renews the files."""
        return math.inf

    def _on_files(self, contents: list[bytes]) -> None:
        certificate, key, *ca_files = contents
        self._serving_certificate.load(certificate, key)
        self.ca_bundle = b"".join(ca_files)
        self._changed()
