"""What a tracker of pods keeps is what a full computation over its pods yields."""

from typing import Any

from batholith.batch_ctrl.pod_tracker import BatchPodTracker

_NUMBERS = ("ready", "restarts", "awaited", "active_indexes")
_GROUPS = ("active", "stopping", "ended", "failing", "mismatched", "misplaced")


def check_tracker(tracker: BatchPodTracker) -> None:
    """Compare *tracker* with one that gets the same pods at once.

    Raises:
        AssertionError: they differ.
    """
    computed = BatchPodTracker(tracker.traits)
    for pod in tracker:
        computed.observe(pod)
    assert contents(tracker) == contents(computed)


def contents(tracker: BatchPodTracker) -> dict[str, Any]:
    """Return all that decisions read from *tracker*."""
    found: dict[str, Any] = {name: getattr(tracker, name) for name in _NUMBERS}
    found |= {name: {pod.uid: pod for pod in getattr(tracker, name)} for name in _GROUPS}
    found["duplicated"] = [{pod.uid for pod in same} for same in tracker.duplicated]
    return found
