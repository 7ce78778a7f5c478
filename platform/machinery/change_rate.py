"""Rate of changes, to delay deferrable status writes under load.

Phases and conditions are written at once; updates of counts alone are delayed shortly at low load
and longer at high load, when the next phase change usually includes them.
"""

import math

from .clock import Clock

_DECAY_SECONDS = 3.0
"""Time constant of the exponential decay: bridges the gaps between bursts of a busy server's
responses."""


class ChangeRate:
    """Exponentially decaying rate of changes per second."""

    def __init__(self, clock: Clock, *, busy_threshold: float = 50.0) -> None:
        """*busy_threshold*: changes per second, some fifteen starting pods or five one-pod jobs."""
        self._clock = clock
        self._busy_threshold = busy_threshold
        self._level = 0.0
        self._updated_at = clock.monotonic()

    def observe(self) -> None:
        """Count a change."""
        now = self._clock.monotonic()
        self._level = self._decayed(now) + 1
        self._updated_at = now

    def quiet_in(self) -> float:
        """Return the seconds until the load is low without further changes; 0 if it is."""
        level, threshold = (
            self._decayed(self._clock.monotonic()),
            self._busy_threshold * _DECAY_SECONDS,
        )
        return _DECAY_SECONDS * math.log(level / threshold) if level > threshold else 0.0

    def remaining_delay(self, since: float, *, min_delay: float, max_delay: float) -> float:
        """Return for how many seconds a write that is due since *since* may still be delayed.

        That is until *min_delay* after *since*, or later until the load is low, but at most
        *max_delay* after *since*. *since* is a reading of the monotonic clock.
        """
        now = self._clock.monotonic()
        due = max(since + min_delay, now + self.quiet_in())
        return max(min(due, since + max_delay) - now, 0.0)

    def _decayed(self, now: float) -> float:
        return self._level * math.exp((self._updated_at - now) / _DECAY_SECONDS)
