"""How loudly to tell of failures that come again and again, as in an outage of the server."""

import logging

from ..timing import Timing

REPEAT_INTERVAL = 60.0
"""Seconds after which a failure that goes on is told of once more."""


class FailureLog:
    """Of one kind of thing that fails until it works."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._logged_at: dict[str, float] = {}
        self._since: float | None = None

    @property
    def failing_for(self) -> float:
        """Seconds since it has failed without working again; 0 while it works."""
        return 0.0 if self._since is None else self._timing.monotonic() - self._since

    @property
    def is_failing(self) -> bool:
        """It has failed, and not worked since."""
        return self._since is not None

    def level(self, text: str) -> int:
        """Count a failure; WARNING for a new *text*, and for a known one once a minute, else DEBUG.

        The first failure of all is INFO: one may always happen.
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
        """It works: seconds since the first failure, all of which is forgotten."""
        lasted = self.failing_for
        self._since = None
        self._logged_at.clear()
        return lasted
