"""Certificate and key from files that an administrator provides and replaces."""

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
    """What configurations are to trust; without it they are left as they are."""


class FileCertProvider:
    """Has *presenter* show what is in files."""

    informers: Sequence[Informer[Any]] = ()

    def __init__(
        self,
        files: CertificateFiles,
        serving_certificate: ServingCertificate,
        *,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """*changed* is called when a file has."""
        self.ca_bundle = b""
        """The authorities that configurations are to name; empty where no file is given."""
        self._serving_certificate = serving_certificate
        self._clock = clock
        self._changed = changed
        authority = [] if files.ca is None else [files.ca]
        self._files = FileWatcher([files.certificate, files.key, *authority], self._on_files)

    async def start(self) -> None:
        """Read the files for the first time.

        Raises:
            OSError: one cannot be read.
            ValueError: certificate and key cannot be served.
        """
        self._files.poll()

    async def watch(self) -> None:
        """Look for changes until cancelled."""
        await self._files.watch(self._clock)

    async def renew(self, *, propagated_for: float) -> float:
        """Whoever provides the files renews them."""
        return math.inf

    def _on_files(self, contents: list[bytes]) -> None:
        certificate, key, *authority = contents
        self._serving_certificate.load(certificate, key)
        self.ca_bundle = b"".join(authority)
        self._changed()
