"""How loudly to tell of failures that come again and again, as in an outage of the server."""

import logging

from ..timing import Timing

AGAIN = 60.0
"""Seconds after which a failure that goes on is told of once more."""


class Complaints:
    """Of one kind of thing that fails until it works."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._told: dict[str, float] = {}
        self._since: float | None = None

    @property
    def lasting(self) -> float:
        """Seconds since it has failed without working again; 0 while it works."""
        return 0.0 if self._since is None else self._timing.monotonic() - self._since

    @property
    def pending(self) -> bool:
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
        if now - self._told.get(text, float("-inf")) < AGAIN:
            return logging.DEBUG
        self._told[text] = now
        return logging.WARNING

    def over(self) -> float:
        """It works: seconds since the first failure, all of which is forgotten."""
        lasted = self.lasting
        self._since = None
        self._told.clear()
        return lasted
