"""When a scheduling cycle leaves the rest of the gangs to the next one."""

import math

from ..machinery.clock import Clock

MAX_SECONDS = 0.05
"""Time after which a cycle leaves the rest to the next, so that results are published and events
are applied."""


class CycleTimeLimit:
    """The time of a cycle: a maximum, but each action may try gangs for as long as it took to put
    them in order. Otherwise, if ordering all gangs took the whole time, a cycle would try one of
    them, and the next cycle would order the others again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end = math.inf
        self._action_started: float | None = None

    def start_cycle(self) -> None:
        """Start with the time of a cycle."""
        self._end = self._clock.monotonic() + MAX_SECONDS
        self._action_started = None

    def start_action(self) -> None:
        """Measure from now until the first call of :meth:`is_reached`."""
        self._action_started = self._clock.monotonic()

    def is_reached(self) -> bool:
        """Return whether the cycle is to stop, now that an action has tried a gang."""
        now = self._clock.monotonic()
        if self._action_started is not None:
            self._end = max(self._end, now + now - self._action_started)
            self._action_started = None
        return now > self._end
