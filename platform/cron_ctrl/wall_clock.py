"""Notices that the wall clock was changed, or that the machine was suspended.

Schedules are in wall time, but the delays of the work queue are elapsed time.
"""

import logging
from collections.abc import Callable

from ..machinery.clock import Clock

log = logging.getLogger(__name__)

_INTERVAL = 5.0
"""Seconds between two checks."""

_MAX_DRIFT = 1.0
"""Seconds by which the wall clock may differ from the elapsed time."""


async def watch_wall_clock(clock: Clock, on_changed: Callable[[], None]) -> None:
    """Call *on_changed* whenever the wall clock differs from the elapsed time, until cancelled."""
    offset = _offset(clock)
    while True:
        await clock.sleep(_INTERVAL)
        change = _offset(clock) - offset
        if abs(change) > _MAX_DRIFT:
            offset += change
            log.warning("wall clock changed", extra={"seconds": round(change, 3)})
            on_changed()


def _offset(clock: Clock) -> float:
    return clock.now().timestamp() - clock.monotonic()
