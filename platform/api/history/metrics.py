"""Metrics of the recorder of the history, and of the notifications that it sends."""

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

NotificationOutcome = Literal["delivered", "failed", "refused", "given up"]
"""Of an attempt; ``failed`` is tried again."""
_OUTCOMES: tuple[NotificationOutcome, ...] = ("delivered", "failed", "refused", "given up")


class RecorderMetrics:
    """Counters of one process; one per registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.records = Counter(
            "batholith_history_records",
            "Changes of jobs and pods that were recorded.",
            ("resource",),
            registry=registry,
        )
        self.skipped = Counter(
            "batholith_history_skipped",
            "Changes that could not be decoded or stored.",
            ("resource",),
            registry=registry,
        )
        self.gaps = Counter(
            "batholith_history_gaps",
            "Lists because changes may have been missed; the first one included.",
            ("resource",),
            registry=registry,
        )
        self.recorded_at = Gauge(
            "batholith_history_recorded_timestamp_seconds",
            "Time up to which the leader has recorded the changes of a resource.",
            ("resource",),
            registry=registry,
        )
        self.marks = Counter(
            "batholith_history_marks",
            "Annotations written to finished jobs, for their deletion to go on.",
            registry=registry,
        )
        self.deleted = Counter(
            "batholith_history_deleted",
            "Rows deleted by the retention.",
            ("table",),
            registry=registry,
        )

    def recorded(self, resource: str, count: int, now: float) -> None:
        """Count *count* changes that were recorded at *now*."""
        self.records.labels(resource).inc(count)
        self.recorded_at.labels(resource).set(now)


class NotificationMetrics:
    """Counters of the notifications of one process; one per registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.attempts = Counter(
            "batholith_notification_attempts",
            "Attempts to send a notification, by what became of them.",
            ("outcome",),
            registry=registry,
        )
        for outcome in _OUTCOMES:
            self.attempts.labels(_label(outcome))
        self.pending = Gauge(
            "batholith_notifications_pending",
            "Notifications of past events that are not delivered yet.",
            registry=registry,
        )

    def attempted(self, outcome: NotificationOutcome) -> None:
        """Count an attempt."""
        self.attempts.labels(_label(outcome)).inc()


def _label(outcome: NotificationOutcome) -> str:
    return outcome.replace(" ", "_")
