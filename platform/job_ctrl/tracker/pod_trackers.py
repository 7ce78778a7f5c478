"""The pod trackers of all jobs of a controller."""

from ...machinery.expectations import Expectations
from .pod_tracker import PodTracker


class PodTrackers:
    """The pods of each job: also of a job that is not known yet, or that is deleted already."""

    def __init__(self, expectations: Expectations) -> None:
        """*expectations* of new pods are dropped with the tracker of their job."""
        self._expectations = expectations
        self._by_key: dict[str, PodTracker] = {}

    def of(self, key: str) -> PodTracker:
        """Return the tracker of the job *key*; create one if there is none."""
        tracker = self._by_key.get(key)
        if tracker is None:
            tracker = self._by_key[key] = PodTracker()
        return tracker

    def get(self, key: str) -> PodTracker | None:
        """Return the tracker of the job *key*, if there is one."""
        return self._by_key.get(key)

    def forget(self, key: str) -> None:
        """Drop the tracker of a job that is deleted with all its pods."""
        tracker = self._by_key.get(key)
        if tracker is not None and not len(tracker):
            del self._by_key[key]
            self._expectations.delete(key)

    def __len__(self) -> int:
        """Number of trackers."""
        return len(self._by_key)
