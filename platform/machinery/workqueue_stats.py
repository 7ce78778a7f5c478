"""Counters of work queues.

Plain integers, since a metric object with a lock costs as much as a whole pass through a queue;
:mod:`.metrics` exports them when scraped, so that processes without metrics need not import the
Prometheus library.
"""

from bisect import bisect_left

_BOUNDS = tuple(10.0**power for power in range(-8, 2))


class Histogram:
    """Histogram of durations in seconds, in decade buckets from 10 ns to 10 s."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(_BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by upper bound, in Prometheus' format."""
        rows: list[tuple[str, float]] = []
        so_far = 0
        for bound, count in zip([*_BOUNDS, None], self.counts, strict=True):
            so_far += count
            rows.append(("+Inf" if bound is None else repr(bound), so_far))
        return rows


class WorkQueueStats:
    """Counters of one queue with all its shards."""

    __slots__ = ("adds", "queue_duration", "retries", "timeouts", "work_duration")

    def __init__(self) -> None:
        self.adds = 0
        """Adds that were not merged into an earlier one."""
        self.retries = 0
        """Delayed adds."""
        self.timeouts = 0
        """Reconciles that timed out."""
        self.queue_duration = Histogram()
        """From the add to the get."""
        self.work_duration = Histogram()
        """From the get to the done."""
