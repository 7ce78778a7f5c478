"""Deletes finished Jobs after their time to live (``spec.ttlSecondsAfterFinished``)."""

import logging

from ..kube.client.client import Client
from ..kube.errors import NotFoundError
from ..machinery.clock import Clock
from ..machinery.controller import RequeueError
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import Controller, Sync
from ..machinery.result import Result
from ..model import times
from ..model.names import BATCH_JOBS
from ..model.recorded import seconds_to_wait
from .conditions import finished_condition
from .core_types import Job
from .metrics import BatchJobMetrics
from .settings import BatchJobSettings

_RECHECK = 1.0
"""Seconds until the next attempt after a conflict."""

log = logging.getLogger(__name__)


class FinishTimeError(ValueError):
    """A finished Job has no time at which it finished."""


def expiry_time(job: Job, *, waits_for_history: bool = False) -> float | None:
    """Return when *job* is to be deleted, in seconds since the epoch; ``None`` if it is not.

    With *waits_for_history* that is later as long as the recorder has not annotated the Job.

    Raises:
        FinishTimeError: the terminal condition has no valid transition time.
    """
    condition = finished_condition(job.status.conditions)
    ttl = job.spec.ttl_seconds_after_finished
    if condition is None or ttl is None or job.is_being_deleted:
        return None
    try:
        finished_at = times.parse(condition.last_transition_time or "").timestamp()
    except times.TimeError as error:
        raise FinishTimeError(f"cannot determine when {job.metadata.key} finished") from error
    if waits_for_history:
        recorded = job.status.completion_time or condition.last_transition_time or ""
        return seconds_to_wait(job.metadata.annotations, recorded, finished_at + ttl)
    return finished_at + ttl


class ExpiredJobController(Controller[Job, Job]):
    """Deletes finished Jobs with a time to live, which the Job controller's event handlers add."""

    sources = ()

    def __init__(
        self,
        client: Client,
        jobs: WriteThroughCache[Job],
        settings: BatchJobSettings,
        *,
        clock: Clock,
        metrics: BatchJobMetrics,
    ) -> None:
        super().__init__(
            "ttl_jobs_to_delete", settings, clock=clock, log_fields=lambda key: {"job": key}
        )
        self._client = client
        self._jobs = jobs
        self._metrics = metrics
        self._enabled = settings.delete_finished
        self._waits_for_history = settings.ttl_waits_for_history

    def add(self, job: Job) -> None:
        """Enqueue a finished Job if it is to be deleted after its time to live."""
        if not self._enabled or job.is_being_deleted:
            return
        if job.spec.ttl_seconds_after_finished is not None:
            self.queue.add(job.metadata.key)

    async def observe(self, sync: Sync) -> Job | Result | None:
        """Return the Job if it has expired, else a Result with the seconds until it does.

        It is read from the API server before, because its time to live may have been changed.

        Raises:
            FinishTimeError: it is unknown when the Job finished.
            ApiError, ConnectionLostError: a request failed.
        """
        observed = self._jobs.informer.get(sync.key)
        if observed is None:
            return None
        remaining = self._remaining(observed)
        if remaining is None or remaining > 0:
            return Result(requeue_after=remaining)
        namespace, name = observed.metadata.namespace, observed.metadata.name
        try:
            job = await self._client.get(BATCH_JOBS, name, namespace=namespace, view=Job)
        except NotFoundError:
            return None
        remaining = self._remaining(job)
        if job.metadata.uid != observed.metadata.uid:
            return None
        return job if remaining is not None and remaining <= 0 else Result(requeue_after=remaining)

    def decide(self, view: Job) -> list[Job]:
        """Delete the Job."""
        return [view]

    async def execute(self, sync: Sync, view: Job, effect: Job) -> None:
        """Delete the Job, unless it was modified since it was read."""
        meta = effect.metadata
        try:
            deleted = await self._jobs.delete(meta, unmodified=True, propagation="Foreground")
        except RequeueError:
            sync.after(_RECHECK)  # its time to live may be another one now
            return
        if deleted:
            self._metrics.expired_job_deleted(delay=-(self._remaining(effect) or 0.0))
            log.info("expired job deleted", extra={"job": sync.key})

    def _remaining(self, job: Job) -> float | None:
        """Return the seconds until *job* expires; not positive once it has."""
        expires_at = expiry_time(job, waits_for_history=self._waits_for_history)
        if expires_at is None:
            return None
        now = self.clock.now().timestamp()
        ttl = job.spec.ttl_seconds_after_finished or 0
        if expires_at - ttl > now:
            log.warning("job finished in the future", extra={"job": job.metadata.key})
        return expires_at - now
