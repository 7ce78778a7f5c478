"""Delays of replacements of failed pods. Pure.

A delay starts at the end of the failed pod and doubles with each failure since the last success:
10 s, 20 s, up to 10 min. All times are seconds since the epoch.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

INITIAL_DELAY = 10.0
"""Seconds after the first failure."""
MAX_DELAY = 600.0
"""Maximum delay in seconds."""
_MAX_DOUBLINGS = 6


@dataclass(frozen=True, slots=True)
class BackoffRecord:
    """Failures of a Job's pods since the last success."""

    failures: int = 0
    last_failure: float | None = None

    def updated(self, *, succeeded: Iterable[float], failed: Iterable[float]) -> "BackoffRecord":
        """Return the record after more pods have ended; *succeeded* and *failed* are their ends."""
        last_success = max(succeeded, default=None)
        failures = list(failed)
        if last_success is None:
            if not failures:
                return self
            latest = max(*failures, self.last_failure or 0.0)
            return BackoffRecord(self.failures + len(failures), latest)
        later = [end for end in failures if end > last_success]
        return BackoffRecord(len(later), max(later, default=None))

    def remaining(self, now: float) -> float:
        """Return the seconds until the next pod may be created."""
        return remaining_delay(self.failures, self.last_failure, now=now)


def remaining_delay(failures: int, last_failure: float | None, *, now: float) -> float:
    """Return how much of the delay after *failures* is left at *now*."""
    if failures <= 0 or last_failure is None:
        return 0.0
    delay = min(math.ldexp(INITIAL_DELAY, min(failures - 1, _MAX_DOUBLINGS)), MAX_DELAY)
    return max(0.0, last_failure + delay - now)
