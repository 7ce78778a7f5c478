"""What of the scheduler cache is kept over restarts."""

from dataclasses import dataclass

from ...machinery.clock import Clock
from ..state.cache.cache import SchedulerCache
from ..state.past_usage.past_usage import PastUsage
from .kept_state import KeptEntry


def kept_entries(cache: SchedulerCache, clock: Clock) -> dict[str, KeptEntry]:
    """Return what of *cache* is to be kept, by key."""
    return {
        "predictions": cache.run_times.predictions,
        "usage": KeptPastUsage(cache.past_usage, clock),
    }


@dataclass(frozen=True, slots=True)
class KeptPastUsage:
    """Keeps *usage*, as of the time of *clock*: it grows while nothing else happens, too."""

    usage: PastUsage
    clock: Clock

    @property
    def version(self) -> int:
        """Grows with changes, and with time while resources are used."""
        snapshot = self.usage.snapshot
        if snapshot is None:
            return 0
        at = self.clock.monotonic() if snapshot.is_growing else snapshot.changed_at
        return snapshot.version + int(at)

    def encode(self) -> str:
        """Return what has been used until now as text."""
        return self.usage.encode(self.clock.monotonic(), self.clock.now().timestamp())

    def restore(self, text: str) -> None:
        """Continue from what :meth:`encode` has returned.

        Raises:
            ValueError: the text is malformed.
        """
        self.usage.restore(text)
