"""Executes effects: every write of the CronJob controller is here.

A Job is created before it is in the status, by a name that has its scheduled time: after a crash or
a lost response, and if there are two leaders, the second request finds that it exists. It is
deleted only after its time is in the status. One exception remains, as in Kubernetes: a Job that
ends and is deleted by its TTL or a user before the status is written may be started again.
"""

import logging
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, assert_never

import msgspec

from ..kube.errors import AlreadyExistsError, ApiError, ForbiddenError, was_rejected
from ..machinery.controller import RequeueError
from ..machinery.merge_patch import merge_patch
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import RequeueAfter, Sync
from ..machinery.reconcile.events import Events, Notices
from ..machinery.reconcile.state import KeyStates
from ..model.cronjob import CronJob, CronJobStatus
from . import kind as kinds
from .decide import (
    CronJobView,
    DeleteJobs,
    Effect,
    Notify,
    StartJob,
    UpdateStatus,
    with_created,
    without,
)
from .kind import CronJobKind, J

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CronJobState:
    """What is known of a CronJob besides its objects."""

    changed_at: datetime | None = None
    """When its schedule was changed."""
    unconfirmed: set[str] = field(default_factory=set)
    """Names of Jobs that were created, or may have been, until the informer has them."""


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
        """Execute one effect.

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
            case UpdateStatus():
                await self._update_status(sync, cronjob, effect)
            case DeleteJobs(jobs):
                for job in jobs:
                    await self._delete_job(cronjob, job)
            case _:
                assert_never(effect)

    async def _update_status(self, sync: Sync, cronjob: CronJob, effect: UpdateStatus[J]) -> None:
        status = effect.status
        if effect.start is not None:
            status = await self._start(sync, cronjob, status, effect.start)
        if status != cronjob.status:
            before, after = (msgspec.to_builtins(each) for each in (cronjob.status, status))
            await self.cronjobs.patch_status(cronjob.metadata, merge_patch(before, after))
        for event in effect.changes:
            self.events.record(cronjob.metadata, event)

    async def _start(
        self, sync: Sync, cronjob: CronJob, status: CronJobStatus, start: StartJob[J]
    ) -> CronJobStatus:
        """Start a Job; return *status* with what was achieved, also after an error."""
        try:
            for job in start.replaced:
                if (event := self.kind.events.replaced(job)) is not None:
                    self.events.record(cronjob.metadata, event)
                await self._delete_job(cronjob, job)
                status = without(status, [job])
            created = await self._create_job(cronjob, start.scheduled)
        except Exception as error:
            sync.errors.append(error)
            return status
        if created is None:
            return status
        return with_created(self.kind, status, created, start.scheduled)

    async def _create_job(self, cronjob: CronJob, scheduled: datetime) -> J | None:
        """Create the Job for *scheduled*, or return it if it exists; None if it cannot be ours.

        Raises:
            ApiError, ConnectionLostError: it was not created, or may have been.
            RequeueError: it existed, but was deleted concurrently.
        """
        meta = cronjob.metadata
        name = cronjob.job_name(scheduled)
        log_fields = {"cronjob": meta.key, "job": name}
        self.states.of(meta).unconfirmed.add(name)
        try:
            job = await self.jobs.create(
                self.kind.build_job(cronjob, scheduled), namespace=meta.namespace
            )
        except AlreadyExistsError:
            return await self._find_existing(cronjob, name)
        except ApiError as error:
            if _namespace_terminates(error):
                log.debug("namespace terminates, job not created", extra=log_fields)
                return None
            if was_rejected(error):
                self.events.record(meta, kinds.create_failed(error.message))
            raise
        log.info("job created", extra=log_fields)
        self.events.record(meta, self.kind.events.created(cronjob, name))
        return job

    async def _find_existing(self, cronjob: CronJob, name: str) -> J | None:
        """Get the Job of that name; None, with an event, if it is not the CronJob's.

        Raises:
            RequeueError: it was deleted concurrently.
        """
        job = await self.jobs.read(f"{cronjob.metadata.namespace}/{name}")
        if job is None:
            raise RequeueError("job was deleted concurrently")
        if self.kind.is_controlled_by(job, cronjob):
            return job
        self.events.record(cronjob.metadata, self.kind.events.foreign(name))
        return None

    async def _delete_job(self, cronjob: CronJob, job: J) -> None:
        """Delete a Job and its pods.

        Raises:
            RequeueError: another Job has its name.
            ApiError, ConnectionLostError: it was not deleted, or may have been.
        """
        name = job.metadata.name
        try:
            existed = await self.jobs.delete(job.metadata, propagation="Background")
        except ApiError as error:
            self.events.record(cronjob.metadata, kinds.delete_failed(name, error.message))
            raise
        if existed:
            self.events.record(cronjob.metadata, kinds.deleted(name))


def _namespace_terminates(error: ApiError) -> bool:
    causes = error.details.get("causes") or ()
    return isinstance(error, ForbiddenError) and any(
        isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating"
        for cause in causes
    )
