"""Counters of work queues.

Plain integers, since a metric object with a lock costs as much as a whole pass through a queue;
:mod:`.metrics` exports them when scraped, so that processes without metrics need not import the
Prometheus library.
"""

from bisect import bisect_left

_BOUNDS = tuple(10.0**power for power in range(-8, 2))
"""Buckets of client-go: decades from 10 ns to 10 s."""

_RECONCILE_BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0, 60.0,
)  # fmt: skip
"""Buckets of controller-runtime."""


RESULTS = ("error", "requeue", "requeue_after", "success")
"""Results of reconciles, as in controller-runtime."""


class Histogram:
    """Histogram of durations in seconds."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = _BOUNDS) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self._bounds = bounds

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by upper bound, in Prometheus' format."""
        rows: list[tuple[str, float]] = []
        so_far = 0
        for bound, count in zip([*self._bounds, None], self.counts, strict=True):
            so_far += count
            rows.append(("+Inf" if bound is None else repr(bound), so_far))
        return rows


class WorkQueueStats:
    """Counters of one queue with all its shards, and of its workers."""

    __slots__ = (
        "adds",
        "queue_duration",
        "reconcile_duration",
        "results",
        "retries",
        "terminal_errors",
        "timeouts",
        "unexpected_errors",
        "work_duration",
        "workers",
    )

    def __init__(self) -> None:
        self.adds = 0
        """Adds that were not merged into an earlier one."""
        self.retries = 0
        """Delayed adds."""
        self.timeouts = 0
        """Reconciles that timed out."""
        self.results = dict.fromkeys(RESULTS, 0)
        """Reconciles by result."""
        self.terminal_errors = 0
        """Reconciles that failed permanently."""
        self.unexpected_errors = 0
        """Reconciles that failed with an error other than of a request."""
        self.workers = 0
        """Maximum number of concurrent reconciles."""
        self.reconcile_duration = Histogram(_RECONCILE_BOUNDS)
        """Of each reconcile."""
        self.queue_duration = Histogram()
        """From the add to the get."""
        self.work_duration = Histogram()
        """From the get to the done."""
