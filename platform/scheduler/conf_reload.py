"""Reloading of the scheduler configuration from its file, which may be a mounted ConfigMap.

The file is polled, because a mount replaces a symbolic link above it without a notification of the
file itself. A configuration that cannot be read or is invalid changes nothing; a Warning event on
the root queue and a metric report it once.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from ..machinery.clock import Clock
from . import conf
from .conf import Conf
from .metrics import ReloadMetrics

log = logging.getLogger(__name__)

POLL_INTERVAL = 1.0
"""Seconds between two reads: a change has to be in effect within two."""


class ConfReloader:
    """Polls the file of the scheduler configuration."""

    def __init__(
        self,
        path: Path,
        *,
        loaded: str,
        load: Callable[[str], Conf],
        use: Callable[[Conf], object],
        report: Callable[[str], object],
        clock: Clock,
        metrics: ReloadMetrics,
    ) -> None:
        """Start with the text *loaded* before; *load* parses a new one, *use* gets the result, and
        *report* the reason why one cannot be used."""
        self._path = path
        self._last: str | None = loaded
        self._last_error = ""
        self._load = load
        self._use = use
        self._report = report
        self._clock = clock
        self._metrics = metrics

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            await self._clock.sleep(POLL_INTERVAL)

    async def poll(self) -> None:
        """Read the file, and use it if it has changed and is valid."""
        try:
            text = await asyncio.to_thread(read, self._path)
        except ValueError as error:
            self._last = None
            self._fail(str(error))
            return
        if text == self._last:
            return
        self._last = text
        try:
            loaded = self._load(text)
        except conf.ConfError as error:
            self._fail(str(error))
            return
        self._last_error = ""
        self._metrics.succeeded()
        log.info("scheduler configuration reloaded", extra={"path": str(self._path)})
        self._use(loaded)

    def _fail(self, problem: str) -> None:
        if problem == self._last_error:
            return
        self._last_error = problem
        self._metrics.failed()
        extra = {"path": str(self._path), "error": problem}
        log.error("cannot reload scheduler configuration, keeping the previous one", extra=extra)
        self._report(problem)


def read(path: Path) -> str:
    """Return the text of the file.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the scheduler configuration: {error}") from error
