"""How much is going on, so that what may wait does not add to it.

Phases and conditions are written at once; numbers alone are late by a moment when it is calm, and
by more while many things change: then mostly the next phase carries them along.
"""

import math

from .clock import Clock

_DECAY_SECONDS = 3.0
"""How long a change is remembered: after so many seconds it counts for a third. A busy server's
answers come in gusts with seconds between them."""


class ChangeRate:
    """How many changes a second were noted lately."""

    def __init__(self, clock: Clock, *, busy_threshold: float = 50.0) -> None:
        """From *lively* changes a second on it is no longer calm: some fifteen pods that start,
        or five jobs of one pod."""
        self._clock = clock
        self._busy_threshold = busy_threshold
        self._level = 0.0
        self._updated_at = clock.monotonic()

    def observe(self) -> None:
        """Something has changed."""
        now = self._clock.monotonic()
        self._level = self._decayed(now) + 1
        self._updated_at = now

    def quiet_in(self) -> float:
        """Seconds until it is calm, if nothing more changes; 0: it is."""
        level, calm = self._decayed(self._clock.monotonic()), self._busy_threshold * _DECAY_SECONDS
        return _DECAY_SECONDS * math.log(level / calm) if level > calm else 0.0

    def remaining_delay(self, since: float, *, min_delay: float, max_delay: float) -> float:
        """Seconds for which something may still wait that has been due *since*.

        That is *least* seconds after it, or as soon as it is calm if that is later, but at most
        *most* seconds after it. *since* is a reading of the monotonic clock.
        """
        now = self._clock.monotonic()
        due = max(since + min_delay, now + self.quiet_in())
        return max(min(due, since + max_delay) - now, 0.0)

    def _decayed(self, now: float) -> float:
        return self._level * math.exp((self._updated_at - now) / _DECAY_SECONDS)
