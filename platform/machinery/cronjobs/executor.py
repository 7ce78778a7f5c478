"""Executes effects: every write of the CronJob controllers is here.

A Job is created before it is in the status, by a name that has its scheduled time: after a crash or
a lost response, and if there are two leaders, the second request returns that it exists. It is
deleted only after its time is in the status. One exception remains, as in Kubernetes: a Job that
ends and is deleted by its TTL or a user before the status is written may be started again.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, assert_never

from ...kube.errors import AlreadyExistsError, ApiError, ForbiddenError, was_rejected
from ..controller import RequeueError
from ..reconcile.cache import WriteThroughCache
from ..reconcile.controller import Sync
from ..reconcile.events import Events, Notices
from ..reconcile.state import KeyStates
from . import kind as kinds
from .build import build_job
from .decide import (
    CronJobView,
    DeleteJobs,
    Effect,
    Notify,
    RequeueAfter,
    SetStatus,
    StartJob,
    with_created,
    without,
)
from .kind import CronJobKind, J
from .objects import CronJob, CronJobStatus

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CronJobState:
    """What is known of a CronJob besides its objects."""

    changed_at: datetime | None = None
    """When the schedule was changed: earlier times of the new one were not missed."""
    started: set[str] = field(default_factory=set)
    """Names of Jobs that were created, or may have been, and may not be in the status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJobExecutor(Generic[J]):
    """Executes the effects on one CronJob and its Jobs in their order."""

    kind: CronJobKind[J]
    cronjobs: WriteThroughCache[CronJob]
    jobs: WriteThroughCache[J]
    states: KeyStates[CronJobState]
    events: Events
    notices: Notices

    async def execute(self, sync: Sync, view: CronJobView[J], effect: Effect[J]) -> None:
        """Execute one effect; a Job that cannot be started does not prevent the rest.

        Raises:
            RequeueError: an object was modified concurrently.
            ApiError, ConnectionLostError: a write failed, or may have failed.
        """
        cronjob = view.cronjob
        match effect:
            case RequeueAfter(seconds):
                sync.after(seconds)
            case Notify(notices):
                self.notices.update(cronjob.metadata, notices)
            case StartJob():
                try:
                    await self._start(cronjob, effect)
                except Exception as error:
                    sync.errors.append(error)
            case SetStatus():
                await self._set_status(cronjob, effect)
            case DeleteJobs(jobs):
                await self._delete(cronjob, jobs)
            case _:
                assert_never(effect)

    async def _start(self, cronjob: CronJob, start: StartJob[J]) -> None:
        for job in start.replace:
            if (event := self.kind.events.replaced(job)) is not None:
                self.events.record(cronjob.metadata, event)
            await self._delete(cronjob, [job])
        await self._create(cronjob, start.scheduled)

    async def _create(self, cronjob: CronJob, scheduled: datetime) -> None:
        """Create the Job for *scheduled*, or find that it exists.

        Raises:
            ApiError, ConnectionLostError: it was not created, or may have been.
        """
        meta = cronjob.metadata
        name = cronjob.job_name(scheduled)
        log_fields = {"cronjob": meta.key, "job": name}
        self.states.of(meta).started.add(name)
        try:
            body = build_job(self.kind, cronjob, scheduled)
            await self.jobs.create(body, namespace=meta.namespace)
        except AlreadyExistsError:
            job = await self.jobs.read(f"{meta.namespace}/{name}")
            if job is None:
                raise RequeueError("job was deleted concurrently") from None
            if not self.kind.is_controlled_by(job, cronjob):
                self.events.record(meta, self.kind.events.foreign(name))
        except ApiError as error:
            if _namespace_terminates(error):
                log.debug("namespace terminates, job not created", extra=log_fields)
                return
            if was_rejected(error):
                self.events.record(meta, kinds.create_failed(error.message))
            raise
        else:
            log.info("job created", extra=log_fields)
            self.events.record(meta, self.kind.events.created(cronjob, name))

    async def _delete(self, cronjob: CronJob, jobs: Iterable[J]) -> None:
        """Delete Jobs with their pods, one after the other."""
        meta = cronjob.metadata
        for job in jobs:
            name = job.metadata.name
            try:
                is_deleted = await self.jobs.delete(job.metadata, propagation="Background")
            except ApiError as error:
                self.events.record(meta, kinds.delete_failed(name, error.message))
                raise
            if is_deleted:
                self.events.record(meta, kinds.deleted(name))

    async def _set_status(self, cronjob: CronJob, effect: SetStatus[J]) -> None:
        meta, status = cronjob.metadata, effect.status
        if effect.start is not None:
            status = self._with_start(cronjob, status, effect.start)
        if status != cronjob.status:
            await self.cronjobs.patch_status(meta, _changed_fields(cronjob.status, status))
        for event in effect.changes:
            self.events.record(meta, event)

    def _with_start(
        self, cronjob: CronJob, status: CronJobStatus, start: StartJob[J]
    ) -> CronJobStatus:
        """Return *status* without the replaced Jobs, and with the one that was created."""
        namespace = cronjob.metadata.namespace
        status = without(status, [each for each in start.replace if self._is_deleted(each)])
        job = self.jobs.get(f"{namespace}/{cronjob.job_name(start.scheduled)}")
        if job is None or not self.kind.is_controlled_by(job, cronjob):
            return status
        return with_created(self.kind, status, job, start.scheduled)

    def _is_deleted(self, job: J) -> bool:
        found = self.jobs.get(job.metadata.key)
        return (
            found is None
            or found.metadata.uid != job.metadata.uid
            or found.metadata.deletion_timestamp is not None
        )


def _changed_fields(old: CronJobStatus, new: CronJobStatus) -> dict[str, object]:
    """Return a merge patch of what differs."""
    changed: dict[str, object] = {}
    for name, encoded in zip(new.__struct_fields__, new.__struct_encode_fields__, strict=True):
        value = getattr(new, name)
        if value != getattr(old, name):
            changed[encoded] = value
    return changed


def _namespace_terminates(error: ApiError) -> bool:
    causes = error.details.get("causes") or ()
    return isinstance(error, ForbiddenError) and any(
        isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating"
        for cause in causes
    )
