"""The tasks of the history in each replica: the recorder, if enabled, and the retention."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from ...kube.client.client import Client
from ...kube.client.events import EventRecorder
from ...kube.informer.informer import Informer
from ...kube.supervision import supervise
from ...machinery.clock import Clock
from ...machinery.leader_election import LeaderElector
from ...model.queue import Queue
from ...store.database import Database, StoreUnavailableError
from ...store.retention import Retention, RetentionSettings
from .metrics import RecorderMetrics
from .notifications import NotificationSender, NotificationSettings
from .recorder import HistoryRecorder, Notifications

log = logging.getLogger(__name__)

RETENTION_INTERVAL = 600.0
"""Seconds between two runs of the retention."""
RETRY_DELAY = 10.0
"""Seconds until it is tried again while the store is unavailable."""
BATCH_DELAY = 0.5
"""Seconds between two of its transactions, so that commands are not held up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySettings:
    """Settings of the history."""

    record: bool = False
    """Record jobs and their usage; the history of commands is always recorded."""

    new_elector: Callable[[], LeaderElector] | None = None
    """Creates a candidate for the Lease of the recorder; ``None`` for the only replica."""

    retention: RetentionSettings = field(default_factory=RetentionSettings)
    """How much is kept."""

    notifications: NotificationSettings | None = None
    """How notifications of jobs are sent; ``None``: none are. Requires *record*."""

    metrics: RecorderMetrics = field(default_factory=lambda: RecorderMetrics(None))
    """Metrics of the recorder and of the retention."""


async def run_history(
    client: Client,
    database: Database,
    settings: HistorySettings,
    *,
    clock: Clock,
    queues: Informer[Queue],
) -> None:
    """Run the tasks, once the schema is migrated, until cancelled.

    The annotations of *queues* are the defaults of the notifications of their jobs.
    """
    await database.wait_migrated()
    async with asyncio.TaskGroup() as tasks:
        retention = Retention(database, settings.retention)
        work = partial(run_retention, retention, clock, settings.metrics)
        tasks.create_task(supervise("history retention", work))
        if settings.record:
            events = EventRecorder(client, component="batholith-api")
            notifications = _notifications(settings, database, queues, clock=clock, events=events)
            if notifications is not None:
                tasks.create_task(events.run())
            recorder = HistoryRecorder(
                client,
                database,
                clock=clock,
                metrics=settings.metrics,
                new_elector=settings.new_elector,
                notifications=notifications,
            )
            tasks.create_task(supervise("history election", recorder.run))


def _notifications(
    settings: HistorySettings,
    database: Database,
    queues: Informer[Queue],
    *,
    clock: Clock,
    events: EventRecorder,
) -> Notifications | None:
    if settings.notifications is None:
        return None

    def annotations(queue: str) -> Mapping[str, str]:
        found = queues.get(queue)
        return {} if found is None else found.metadata.annotations

    return Notifications(
        queues=annotations,
        wait_queues=queues.wait_synced,
        sender=NotificationSender(database, settings.notifications, clock=clock, recorder=events),
    )


async def run_retention(retention: Retention, clock: Clock, metrics: RecorderMetrics) -> None:
    """Delete old rows, batch by batch, until cancelled."""
    while True:
        deleted = 0
        try:
            for table, count in (await retention.delete_batch(clock.now())).items():
                deleted += count
                metrics.deleted.labels(table).inc(count)
        except StoreUnavailableError as error:
            log.debug("cannot delete old rows, will retry", extra={"error": str(error)})
            await clock.sleep(RETRY_DELAY)
            continue
        await clock.sleep(BATCH_DELAY if deleted else RETENTION_INTERVAL)
