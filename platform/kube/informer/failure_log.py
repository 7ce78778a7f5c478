"""Log levels of repeated failures, as in an outage of the server."""

import logging

from ..timing import Timing

REPEAT_INTERVAL = 60.0
"""Seconds after which a repeated failure is logged as a warning again."""


class FailureLog:
    """Log level and duration of the failures of one operation."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._logged_at: dict[str, float] = {}
        self._since: float | None = None

    @property
    def failing_for(self) -> float:
        """Seconds since the first failure; 0 while the operation succeeds."""
        return 0.0 if self._since is None else self._timing.monotonic() - self._since

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt failed."""
        return self._since is not None

    def level(self, text: str) -> int:
        """Count a failure: WARNING for a new *text* and once a minute for a known one, else DEBUG.

        The first failure is INFO: a single one is normal.
        """
        now = self._timing.monotonic()
        if self._since is None:
            self._since = now
            return logging.INFO
        if now - self._logged_at.get(text, float("-inf")) < REPEAT_INTERVAL:
            return logging.DEBUG
        self._logged_at[text] = now
        return logging.WARNING

    def recovered(self) -> float:
        """Reset after a success; return the seconds since the first failure."""
        lasted = self.failing_for
        self._since = None
        self._logged_at.clear()
        return lasted
