"""``sla``: gangs that have waited too long bypass limits at admission.

The time is an argument, or an annotation of the PodGroup. In a tier before those of ``overcommit``
and of the limits of queues, an expired gang is admitted in spite of these.
"""

import math
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache

from ...model import durations, times
from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang
from .arguments import duration
from .extension_points import Rejection

WAITING_TIME = "sla-waiting-time"
ANNOTATIONS = (f"volcano.sh/{WAITING_TIME}", WAITING_TIME)
"""Annotations of a PodGroup, the first that is valid counts."""


class SlaPlugin:
    """Orders gangs by deadline, and permits those that are past it."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the waiting time of gangs without their own."""
        self._default = duration(arguments, WAITING_TIME)
        self._now = 0.0

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep the time of this cycle."""
        self._now = cache.cycle_time

    def job_order(self, gang: Gang) -> float:
        """Earlier deadline first; gangs without one are last."""
        return self.deadline(gang)

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Permit a gang that is past its deadline, else abstain."""
        return True if self.deadline(gang) < self._now else None

    def job_enqueued(self, gang: Gang) -> None:
        """Do nothing."""

    def job_pipelined(self, gang: Gang) -> bool | None:
        """Permit a gang that is past its deadline, else abstain."""
        return True if self.deadline(gang) < self._now else None

    def retry_at(self, gang: Gang) -> float | None:
        """Return when a rejected gang is past its deadline."""
        deadline = self.deadline(gang)
        return deadline + _AFTER if self._now <= deadline < math.inf else None

    def deadline(self, gang: Gang) -> float:
        """Return when *gang* has waited too long, in Unix time; infinity if never."""
        if gang.podgroup is None:
            return math.inf
        annotations = gang.podgroup.metadata.annotations
        given = (_positive(annotations[name]) for name in ANNOTATIONS if name in annotations)
        waiting = next(filter(None, given), self._default)
        return _seconds(gang.created) + waiting.total_seconds() if waiting else math.inf


_AFTER = 0.001
"""Seconds after the deadline when it is certainly past."""


@lru_cache(maxsize=4096)
def _positive(text: str) -> timedelta | None:
    try:
        parsed = durations.parse(text)
    except durations.DurationError:
        return None
    return parsed if parsed > timedelta() else None


@lru_cache(maxsize=16384)
def _seconds(timestamp: str) -> float:
    """Return Unix time; infinity for an object without a timestamp, which the API server sets."""
    try:
        return times.parse(timestamp).timestamp()
    except times.TimeError:
        return math.inf
