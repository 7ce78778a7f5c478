"""Files that an administrator provides and replaces: certificates, resource groups.

Mounted Secrets and ConfigMaps are replaced without any event that could be relied on, so files are
read again and again; they are small.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...kube.cache import Cache
from ...machinery.clock import Clock
from .tls import CertificateError, Presenter

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two looks."""


class Files:
    """Tells of files that have changed, together."""

    def __init__(self, paths: Sequence[Path], take: Callable[[list[bytes]], None]) -> None:
        """*take* gets what is in them; it raises ValueError if that cannot be used."""
        self._paths = paths
        self._take = take
        self._digest = b""

    def look(self) -> None:
        """Read the files, and hand them on if they have changed.

        Raises:
            OSError: one cannot be read.
            ValueError: they cannot be used.
        """
        contents = [path.read_bytes() for path in self._paths]
        digest = hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in contents))
        if digest.digest() != self._digest:
            self._digest = digest.digest()
            self._take(contents)
            log.info("read", extra={"files": [str(path) for path in self._paths]})

    async def follow(self, clock: Clock, *, interval: float = INTERVAL) -> None:
        """Look every *interval* seconds until cancelled; what cannot be used changes nothing."""
        complaint = ""
        while True:
            try:
                self.look()
            except (OSError, ValueError) as error:
                if str(error) != complaint:
                    names = [str(path) for path in self._paths]
                    log.error("files not taken", extra={"files": names, "error": str(error)})
                complaint = str(error)
            else:
                complaint = ""
            await clock.sleep(interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """Paths of PEM files."""

    certificate: Path
    key: Path
    authority: Path | None = None
    """What configurations are to trust; without it they are left as they are."""


class FileCertificates:
    """Has *presenter* show what is in files."""

    caches: Sequence[Cache[Any]] = ()

    def __init__(
        self,
        files: CertificateFiles,
        presenter: Presenter,
        *,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """*changed* is called when a file has."""
        self.trusted = b""
        """The authorities that configurations are to name; empty where no file is given."""
        self._presenter = presenter
        self._clock = clock
        self._changed = changed
        authority = [] if files.authority is None else [files.authority]
        self._files = Files([files.certificate, files.key, *authority], self._take)

    async def start(self) -> None:
        """Read the files for the first time.

        Raises:
            OSError: one cannot be read.
            ValueError: certificate and key cannot be served.
        """
        self._files.look()

    async def follow(self) -> None:
        """Look for changes until cancelled."""
        await self._files.follow(self._clock)

    async def renew(self, *, spread_for: float) -> float:
        """Whoever provides the files renews them."""
        return math.inf

    def _take(self, contents: list[bytes]) -> None:
        certificate, key, *authority = contents
        try:
            self._presenter.show(certificate, key)
        except CertificateError as error:
            raise ValueError(str(error)) from error
        self.trusted = b"".join(authority)
        self._changed()
