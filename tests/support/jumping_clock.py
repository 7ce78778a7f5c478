"""The real time, with a wall clock that a test sets wrong."""

from datetime import datetime, timedelta

from batholith.machinery.clock import SystemClock

HOUR = 3600.0


class JumpingClock(SystemClock):
    """The monotonic clock is not affected, as in reality."""

    def __init__(self) -> None:
        self.wrong_by = 0.0
        """Seconds to add to the true time."""

    def now(self) -> datetime:
        """The wall clock, as wrong as it is."""
        return super().now() + timedelta(seconds=self.wrong_by)
