"""Files that an administrator provides and replaces: certificates, resource groups.

Mounted Secrets and ConfigMaps are replaced without any event that could be relied on, so files are
read again and again; they are small.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from .clock import Clock

log = logging.getLogger(__name__)

POLL_INTERVAL = 5.0
"""Seconds between two looks."""


class FileWatcher:
    """Tells of files that have changed, together."""

    def __init__(self, paths: Sequence[Path], on_change: Callable[[list[bytes]], None]) -> None:
        """*take* gets what is in them; it raises ValueError if that cannot be used."""
        self._paths = paths
        self._on_change = on_change
        self._digest = b""

    def poll(self) -> None:
        """Read the files, and hand them on if they have changed.

        Raises:
            OSError: one cannot be read.
            ValueError: they cannot be used.
        """
        contents = [path.read_bytes() for path in self._paths]
        digest = hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in contents))
        if digest.digest() != self._digest:
            self._digest = digest.digest()
            self._on_change(contents)
            log.info("read", extra={"files": [str(path) for path in self._paths]})

    async def watch(self, clock: Clock, *, interval: float = POLL_INTERVAL) -> None:
        """Look every *interval* seconds until cancelled; what cannot be used changes nothing."""
        complaint = ""
        while True:
            try:
                self.poll()
            except (OSError, ValueError) as error:
                if str(error) != complaint:
                    names = [str(path) for path in self._paths]
                    log.error("files not taken", extra={"files": names, "error": str(error)})
                complaint = str(error)
            else:
                complaint = ""
            await clock.sleep(interval)
