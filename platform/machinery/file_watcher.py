"""Reloading of files that an administrator replaces: certificates, resource groups.

Mounted Secrets and ConfigMaps change without reliable notifications, so the files, which are small,
are polled.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from .clock import Clock

log = logging.getLogger(__name__)

POLL_INTERVAL = 5.0
"""Seconds between polls."""


class FileWatcher:
    """Calls a function when any of a group of files has changed."""

    def __init__(self, paths: Sequence[Path], on_change: Callable[[list[bytes]], None]) -> None:
        """*on_change* gets the files' contents; it raises ValueError if they are invalid."""
        self._paths = paths
        self._on_change = on_change
        self._digest = b""

    def poll(self) -> None:
        """Read the files; call the function if they have changed.

        Raises:
            OSError: a file cannot be read.
            ValueError: the contents are invalid.
        """
        contents = [path.read_bytes() for path in self._paths]
        digest = hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in contents))
        if digest.digest() != self._digest:
            self._digest = digest.digest()
            self._on_change(contents)
            log.info("files loaded", extra={"files": [str(path) for path in self._paths]})

    async def watch(self, clock: Clock, *, interval: float = POLL_INTERVAL) -> None:
        """Poll every *interval* seconds until cancelled; errors are logged and change nothing."""
        last_error = ""
        while True:
            try:
                self.poll()
            except (OSError, ValueError) as error:
                if str(error) != last_error:
                    names = [str(path) for path in self._paths]
                    log.error("cannot reload files", extra={"files": names, "error": str(error)})
                last_error = str(error)
            else:
                last_error = ""
            await clock.sleep(interval)
