"""Metrics of the streams of server-sent events."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LAG_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds."""


class StreamMetrics:
    """Counts of streams; the histogram is cheaper than the library's, for 10,000 values/s."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        """Ended streams by reason."""
        self.changes: Counter[str] = Counter()
        """Changes by kind, each counted once however many streams there are."""
        self.bytes_sent = 0
        self.open: Callable[[], Mapping[str, int]] = dict
        """Returns the number of open streams by kind."""
        self._buckets = [0] * (len(LAG_BUCKETS) + 1)
        self._lag_sum = 0.0

    def observe_lag(self, seconds: float) -> None:
        """Count a stream that is up to date *seconds* after a change."""
        self._buckets[bisect_left(LAG_BUCKETS, seconds)] += 1
        self._lag_sum += seconds

    def collect(self) -> "Iterator[Metric]":
        """Yield all metric families; the first scrape imports the library."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        streams = GaugeMetricFamily(
            "batholith_rest_streams", "Open streams of server-sent events.", labels=["kind"]
        )
        for kind, number in self.open().items():
            streams.add_metric([kind], number)
        ended = CounterMetricFamily(
            "batholith_rest_streams_ended", "Ended streams, by reason.", labels=["reason"]
        )
        for reason, number in self.ended.items():
            ended.add_metric([reason], number)
        changes = CounterMetricFamily(
            "batholith_rest_stream_changes", "Changes that streams read from.", labels=["kind"]
        )
        for kind, number in self.changes.items():
            changes.add_metric([kind], number)
        sent = CounterMetricFamily("batholith_rest_stream_bytes", "Bytes of events sent.")
        sent.add_metric([], self.bytes_sent)
        total, buckets = 0, []
        for limit, number in zip((*LAG_BUCKETS, float("inf")), self._buckets, strict=True):
            total += number
            buckets.append(("+Inf" if limit == float("inf") else str(limit), total))
        lag = HistogramMetricFamily(
            "batholith_rest_stream_lag_seconds",
            "Time from the first change that a stream has to send to its last event.",
        )
        lag.add_metric([], buckets, sum_value=self._lag_sum)
        yield from (streams, ended, changes, sent, lag)
