"""Watches CronJobs of one kind and their Jobs, and executes plans.

:mod:`.decide` computes the plans. A Job is created before it is in the status, by a name that
has its scheduled time: after a crash or a lost response, and if there are two leaders, the second
request returns that it exists. It is deleted only after its time is in the status. One exception
remains, as in Kubernetes: a Job that ends and is deleted by its TTL or a user before the status is
written may be started again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Generic

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError, ApiError, ForbiddenError, NotFoundError, was_rejected
from ...kube.informer.informer import Informer, KindSource
from ...kube.supervision import supervise
from ...kube.timing import Timing
from ...model.meta import preconditions
from ..clock import Clock, SystemClock
from ..controller import (
    RECONCILE_TIMEOUT,
    RequeueError,
    ShardedQueue,
    WorkerSettings,
    requeue_on_conflict,
    run_workers,
)
from ..cron import local_time_zone
from ..event_recorder import Recorder, object_reference
from ..lifecycle import Source, run_controller
from ..metrics import WorkQueueMetrics
from . import kind as kinds
from .build import build_job
from .decide import Plan, decide, with_created, without
from .kind import CronJobKind, Event, J
from .objects import CronJob, CronJobStatus

log = logging.getLogger(__name__)

_BY_CRONJOB = "cronjob"
"""Index of Jobs by the identity of the CronJob that controls them."""

_START_DELAY = 0.1
"""Seconds after a scheduled time until the reconcile: a timer may fire slightly early."""

_RECHECK = 86400.0
"""Seconds after which a schedule without a time in the next years is checked again."""

_CLOCK_CHECK_INTERVAL = 5.0
"""Seconds between two checks of whether the wall clock was changed."""

_MAX_CLOCK_DRIFT = 1.0
"""Seconds by which the wall clock may differ from the elapsed time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJobSettings:
    """Options of a CronJob controller."""

    workers: int = 5
    """Concurrent reconciles."""

    reconcile_timeout: float = RECONCILE_TIMEOUT
    """Timeout of one reconcile in seconds."""

    time_zone: tzinfo | None = None
    """Time zone of CronJobs without ``timeZone``; None for that of this process."""

    work_metrics: WorkQueueMetrics | None = None
    """Metrics of the work queue, if any."""


class _JobSource(KindSource[J]):
    """The Jobs, watched from the first CronJob on: most clusters have none, and many Jobs."""

    def __init__(
        self, client: Client, informer: Informer[J], handler: Callable[[J | None, J | None], None]
    ) -> None:
        super().__init__(informer, handler)
        self._wanted = asyncio.Event()
        # Until it runs, readiness does not depend on it.
        client.metrics.unregister_informer(informer)

    def want(self, old: CronJob | None, new: CronJob | None) -> None:
        """Watch the Jobs, since there is a CronJob."""
        self._wanted.set()

    async def run(self) -> None:
        """Run the informer, once it is wanted, until cancelled."""
        await self._wanted.wait()
        await super().run()

    async def wait_synced(self) -> None:
        """Wait until the Jobs are in the store, if they are wanted."""
        if self._wanted.is_set():
            await super().wait_synced()


class CronJobController(Generic[J]):
    """Controller of the CronJobs of *kind*; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        kind: CronJobKind[J],
        name: str,
        settings: CronJobSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._client = client
        self._kind = kind
        self._name = name
        self._settings = settings or CronJobSettings()
        self._clock = clock if clock is not None else SystemClock()
        self._recorder = recorder
        self._local_zone = self._settings.time_zone or local_time_zone()
        self._workqueue = ShardedQueue(
            name=name,
            shards=self._settings.workers,
            clock=self._clock,
            metrics=self._settings.work_metrics,
        )
        self._cronjobs = Informer(client, kind.cronjobs, CronJob)
        self._jobs = Informer(
            client, kind.jobs, kind.job_type, indexes={_BY_CRONJOB: self._cronjob_identity}
        )
        self._job_source = _JobSource(client, self._jobs, self._on_job)
        self._cronjobs.add_event_handler(self._job_source.want)
        # CronJobs as last written, until the informer has that version or a later one.
        self._last_written: dict[str, CronJob] = {}
        # When the schedule was changed: earlier times of the new one were not missed.
        self._changed_at: dict[str, datetime] = {}
        # Names of Jobs that were created, or may have been, and may not be in the status.
        self._started: dict[str, set[str]] = {}
        # Notices in the last plan of a CronJob.
        self._notices: dict[str, frozenset[Event]] = {}

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Sync the informers and run the workers until cancelled, as `run_controller` does.

        When cancelled, it finishes keys in processing and queued, and writes nothing after that.
        """
        sources: list[Source] = [KindSource(self._cronjobs, self._on_cronjob), self._job_source]
        await run_controller(sources, self._run_workers, ready=ready, elected=elected)

    async def _run_workers(self) -> None:
        clock = self._clock
        timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)
        clock_check = asyncio.create_task(
            supervise(f"{self._name} clock check", self._check_clock, timing=timing)
        )
        settings = WorkerSettings(timeout=self._settings.reconcile_timeout)
        try:
            await run_workers(self._workqueue, self._reconcile, settings=settings)
        finally:
            clock_check.cancel()
            await asyncio.gather(clock_check, return_exceptions=True)

    async def _check_clock(self) -> None:
        """Reconcile all CronJobs when the wall clock was changed or the machine was suspended.

        The delays of the work queue are elapsed time.
        """
        offset = self._clock_offset()
        while True:
            await self._clock.sleep(_CLOCK_CHECK_INTERVAL)
            change = self._clock_offset() - offset
            if abs(change) > _MAX_CLOCK_DRIFT:
                offset += change
                log.warning("wall clock changed", extra={"seconds": round(change, 3)})
                for cronjob in self._cronjobs:
                    self._workqueue.add(cronjob.metadata.key)

    def _clock_offset(self) -> float:
        return self._clock.now().timestamp() - self._clock.monotonic()

    # Event handlers

    def _on_cronjob(self, old: CronJob | None, new: CronJob | None) -> None:
        if new is None:
            if old is not None:
                self._forget(old.metadata.key)
            return
        key = new.metadata.key
        if old is not None and _schedule(old) != _schedule(new):
            self._changed_at[key] = self._clock.now()
        written = self._last_written.get(key)
        if written is None or written.metadata.resource_version != new.metadata.resource_version:
            self._workqueue.add(key)

    def _cronjob_identity(self, job: J) -> tuple[str, ...]:
        owner = self._kind.owner(job)
        return () if owner is None else (job.metadata.owner_identity(owner),)

    def _relevant_fields(self, job: J) -> tuple[object, ...]:
        """Return the fields that the controller depends on."""
        meta = job.metadata
        completed = job.outcome, job.succeeded_at
        return (
            meta.uid,
            self._kind.owner(job),
            meta.annotations,
            meta.deletion_timestamp,
            completed,
        )

    def _forget(self, key: str) -> None:
        self._last_written.pop(key, None)
        self._changed_at.pop(key, None)
        self._started.pop(key, None)
        self._notices.pop(key, None)

    def _on_job(self, old: J | None, new: J | None) -> None:
        relevant_fields = self._relevant_fields
        if old is not None and new is not None and relevant_fields(old) == relevant_fields(new):
            return
        for job in (old, new):
            owner = self._kind.owner(job) if job is not None else None
            if job is not None and owner is not None:
                self._workqueue.add(f"{job.metadata.namespace}/{owner.name}")

    # Reconciling

    async def _reconcile(self, key: str) -> float | None:
        await self._jobs.wait_synced()
        cronjob = self._latest(key)
        if cronjob is None:
            return None
        jobs = await self._existing_jobs(cronjob)
        now = self._clock.now()
        plan = decide(
            self._kind,
            cronjob,
            jobs,
            now,
            local_zone=self._local_zone,
            changed_at=self._changed_at.get(key),
        )
        requeue_after = self._requeue_after(plan, now)
        try:
            await self._execute(cronjob, plan)
        except Exception:
            # The next time may be earlier than the retry.
            if requeue_after is not None:
                self._workqueue.add_after(key, requeue_after)
            raise
        return requeue_after

    async def _existing_jobs(self, cronjob: CronJob) -> list[J]:
        """Return the Jobs of *cronjob*, including those that the informer does not have yet."""
        key = cronjob.metadata.key
        jobs = list(self._jobs.by_index(_BY_CRONJOB, cronjob.metadata.identity))
        uids, names = {job.metadata.uid for job in jobs}, {job.metadata.name for job in jobs}
        active = {each.name for each in cronjob.status.active or () if each.uid not in uids}
        started = self._started.get(key, set())
        started -= names
        for name in sorted(active | started):
            job = await self._get_job(cronjob, name)
            if job is None:
                started.discard(name)
            elif job.metadata.uid not in uids:
                jobs.append(job)
        if not started:
            self._started.pop(key, None)
        return jobs

    @staticmethod
    def _requeue_after(plan: Plan[J], now: datetime) -> float | None:
        if plan.next is not None:
            return max((plan.next - now).total_seconds(), 0.0) + _START_DELAY
        return _RECHECK if plan.notices else None

    async def _execute(self, cronjob: CronJob, plan: Plan[J]) -> None:
        """Execute *plan*; a Job that cannot be started does not prevent the rest.

        Raises:
            ApiError, ConnectionLostError: a write failed, or may have failed.
            RequeueError: an object was modified concurrently.
        """
        status = plan.status
        self._record_notices(cronjob, plan.notices)
        failure: Exception | None = None
        if plan.create is not None:
            try:
                for job in plan.replace:
                    if (event := self._kind.events.replaced(job)) is not None:
                        self._record(cronjob, event)
                    await self._delete_job(cronjob, job)
                    status = without(status, [job])
                created = await self._create_job(cronjob, plan.create)
                if created is not None:
                    status = with_created(self._kind, status, created, plan.create)
            except Exception as error:
                failure = error
        if status != cronjob.status and not await self._write_status(cronjob, status):
            return
        for event in plan.changes:
            self._record(cronjob, event)
        for job in plan.delete:
            await self._delete_job(cronjob, job)
        if failure is not None:
            raise failure

    async def _create_job(self, cronjob: CronJob, scheduled: datetime) -> J | None:
        """Create the Job for *scheduled*, or return it if it exists; None if it cannot be ours.

        Raises:
            ApiError, ConnectionLostError: it was not created, or may have been.
        """
        meta = cronjob.metadata
        name = cronjob.job_name(scheduled)
        log_fields = {"cronjob": meta.key, "job": name}
        self._started.setdefault(meta.key, set()).add(name)
        try:
            job = await self._client.create(
                self._kind.jobs,
                build_job(self._kind, cronjob, scheduled),
                namespace=meta.namespace,
                view=self._kind.job_type,
            )
        except AlreadyExistsError:
            return await self._get_existing(cronjob, name)
        except ApiError as error:
            if _namespace_terminates(error):
                log.debug("namespace terminates, job not created", extra=log_fields)
                return None
            if was_rejected(error):
                self._record(cronjob, kinds.create_failed(error.message))
            raise
        log.info("job created", extra=log_fields)
        self._record(cronjob, self._kind.events.created(cronjob, name))
        return job

    async def _get_existing(self, cronjob: CronJob, name: str) -> J | None:
        """Get the Job of that name; None, with an event, if it is not the CronJob's.

        Raises:
            RequeueError: it was deleted concurrently.
        """
        try:
            job = await self._client.get(
                self._kind.jobs,
                name,
                namespace=cronjob.metadata.namespace,
                view=self._kind.job_type,
            )
        except NotFoundError:
            raise RequeueError("job was deleted concurrently") from None
        if self._kind.is_controlled_by(job, cronjob):
            return job
        self._record(cronjob, self._kind.events.foreign(name))
        return None

    async def _get_job(self, cronjob: CronJob, name: str) -> J | None:
        """Get a Job from the server; None if it does not exist or is not the CronJob's."""
        meta = cronjob.metadata
        try:
            job = await self._client.get(
                self._kind.jobs, name, namespace=meta.namespace, view=self._kind.job_type
            )
        except NotFoundError:
            return None
        return job if self._kind.is_controlled_by(job, cronjob) else None

    async def _delete_job(self, cronjob: CronJob, job: J) -> None:
        """Delete a Job and its pods.

        Raises:
            ApiError, ConnectionLostError: it was not deleted, or may have been.
        """
        meta = job.metadata
        try:
            with requeue_on_conflict("Job"):
                await self._client.delete(
                    self._kind.jobs,
                    meta.name,
                    namespace=meta.namespace,
                    uid=meta.uid,
                    propagation="Background",
                )
        except NotFoundError:
            return
        except ApiError as error:
            self._record(cronjob, kinds.delete_failed(meta.name, error.message))
            raise
        self._record(cronjob, kinds.deleted(meta.name))

    async def _write_status(self, cronjob: CronJob, status: CronJobStatus) -> bool:
        """Write the status if the CronJob is unmodified; return false if it was deleted.

        Raises:
            RequeueError: it was modified concurrently.
        """
        meta = cronjob.metadata
        body = {"metadata": preconditions(meta), "status": _changed_fields(cronjob.status, status)}
        try:
            with requeue_on_conflict("CronJob"):
                written = await self._client.patch(
                    self._kind.cronjobs,
                    meta.name,
                    body,
                    namespace=meta.namespace,
                    subresource="status",
                    view=CronJob,
                )
        except NotFoundError:
            return False
        self._last_written[meta.key] = written
        return True

    def _latest(self, key: str) -> CronJob | None:
        """Return the CronJob as in the informer, or as last written if that is newer."""
        cached, written = self._cronjobs.get(key), self._last_written.get(key)
        if written is None:
            return cached
        same = cached is not None and cached.metadata.uid == written.metadata.uid
        if cached is not None and same and _resource_version(cached) < _resource_version(written):
            return written
        del self._last_written[key]
        return cached

    # Events

    def _record_notices(self, cronjob: CronJob, notices: Sequence[Event]) -> None:
        key = cronjob.metadata.key
        known, current = self._notices.get(key, frozenset()), frozenset(notices)
        for event in notices:
            if event not in known:
                self._record(cronjob, event)
        if current:
            self._notices[key] = current
        else:
            self._notices.pop(key, None)

    def _record(self, cronjob: CronJob, event: Event) -> None:
        if self._recorder is not None:
            regarding = object_reference(self._kind.cronjobs, cronjob.metadata)
            self._recorder.record(
                regarding, type=event.type, reason=event.reason, message=event.message
            )


def _schedule(cronjob: CronJob) -> tuple[str, str | None]:
    return cronjob.spec.schedule, cronjob.spec.time_zone


def _changed_fields(old: CronJobStatus, new: CronJobStatus) -> dict[str, object]:
    """Return a merge patch of what differs."""
    changed: dict[str, object] = {}
    for field, name in zip(new.__struct_fields__, new.__struct_encode_fields__, strict=True):
        value = getattr(new, field)
        if value != getattr(old, field):
            changed[name] = value
    return changed


def _namespace_terminates(error: ApiError) -> bool:
    causes = error.details.get("causes") or ()
    return isinstance(error, ForbiddenError) and any(
        isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating"
        for cause in causes
    )


def _resource_version(cronjob: CronJob) -> int:
    return int(cronjob.metadata.resource_version or 0)
