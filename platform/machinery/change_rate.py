"""How much is going on, so that what may wait does not add to it.

Phases and conditions are written at once; numbers alone are late by a moment when it is calm, and
by more while many things change: then mostly the next phase carries them along.
"""

import math

from .clock import Clock

_SECONDS = 3.0
"""How long a change is remembered: after so many seconds it counts for a third. A busy server's
answers come in gusts with seconds between them."""


class Bustle:
    """How many changes a second were noted lately."""

    def __init__(self, clock: Clock, *, lively: float = 50.0) -> None:
        """From *lively* changes a second on it is no longer calm: some fifteen pods that start,
        or five jobs of one pod."""
        self._clock = clock
        self._lively = lively
        self._level = 0.0
        self._at = clock.monotonic()

    def note(self) -> None:
        """Something has changed."""
        now = self._clock.monotonic()
        self._level = self._faded(now) + 1
        self._at = now

    def calm_in(self) -> float:
        """Seconds until it is calm, if nothing more changes; 0: it is."""
        level, calm = self._faded(self._clock.monotonic()), self._lively * _SECONDS
        return _SECONDS * math.log(level / calm) if level > calm else 0.0

    def wait(self, since: float, *, least: float, most: float) -> float:
        """Seconds for which something may still wait that has been due *since*.

        That is *least* seconds after it, or as soon as it is calm if that is later, but at most
        *most* seconds after it. *since* is a reading of the monotonic clock.
        """
        now = self._clock.monotonic()
        due = max(since + least, now + self.calm_in())
        return max(min(due, since + most) - now, 0.0)

    def _faded(self, now: float) -> float:
        return self._level * math.exp((self._at - now) / _SECONDS)
