"""What work queues count.

They count in plain integers, because a metric object with a lock costs as much as a whole pass
through a queue; :mod:`.metrics` turns them into Prometheus' form when it is scraped. Queues whose
figures nobody scrapes do without its library, which takes long to import.
"""

from bisect import bisect_left

_BOUNDS = tuple(10.0**power for power in range(-8, 2))


class Histogram:
    """Counts of durations (seconds) in buckets from 10 ns to 10 s, each ten times the last."""

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
        """How many were observed."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus wants them."""
        rows: list[tuple[str, float]] = []
        so_far = 0
        for bound, count in zip([*_BOUNDS, None], self.counts, strict=True):
            so_far += count
            rows.append(("+Inf" if bound is None else repr(bound), so_far))
        return rows


class WorkQueueStats:
    """What one queue, with all its shards, has counted."""

    __slots__ = ("adds", "queue_duration", "retries", "timeouts", "work_duration")

    def __init__(self) -> None:
        self.adds = 0
        """Accepted adds that were not merged into an earlier one."""
        self.retries = 0
        """Adds for later."""
        self.timeouts = 0
        """Reconciles that took too long."""
        self.queue_duration = Histogram()
        """From the add to the get."""
        self.work_duration = Histogram()
        """From the get to the done."""
