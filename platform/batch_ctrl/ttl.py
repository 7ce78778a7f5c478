"""Deletes finished Jobs after their time to live (``spec.ttlSecondsAfterFinished``)."""

import logging

from ..kube.client.client import Client
from ..kube.errors import ConflictError, NotFoundError
from ..kube.informer.informer import Informer
from ..machinery.clock import Clock
from ..model import times
from ..model.names import BATCH_JOBS
from ..model.recorded import seconds_to_wait
from .conditions import finished_condition
from .core_types import Job
from .metrics import BatchJobMetrics

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


class ExpiredJobs:
    """Processes the keys of finished Jobs with a time to live."""

    def __init__(
        self,
        client: Client,
        *,
        jobs: Informer[Job],
        clock: Clock,
        metrics: BatchJobMetrics,
        waits_for_history: bool = False,
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._clock = clock
        self._metrics = metrics
        self._waits_for_history = waits_for_history

    async def reconcile(self, key: str) -> float | None:
        """Delete the Job if it has expired; else return the seconds until it does.

        It is read from the API server before, because its time to live may have been changed.

        Raises:
            FinishTimeError: it is unknown when the Job finished.
            ApiError, ConnectionLostError: a request failed.
        """
        observed = self._jobs.get(key)
        if observed is None:
            return None
        remaining = self._remaining(observed)
        if remaining is None or remaining > 0:
            return remaining
        namespace, name = observed.metadata.namespace, observed.metadata.name
        try:
            job = await self._client.get(BATCH_JOBS, name, namespace=namespace, view=Job)
            remaining = self._remaining(job)
            if job.metadata.uid != observed.metadata.uid:
                return None
            if remaining is None or remaining > 0:
                return remaining
            await self._client.delete(
                BATCH_JOBS,
                name,
                namespace=namespace,
                uid=job.metadata.uid,
                resource_version=job.metadata.resource_version,
                propagation="Foreground",
            )
        except NotFoundError:
            return None
        except ConflictError:
            return _RECHECK  # modified since: its time to live may be another one
        self._metrics.expired_job_deleted(delay=-remaining)
        log.info("expired job deleted", extra={"job": key})
        return None

    def _remaining(self, job: Job) -> float | None:
        """Return the seconds until *job* expires; not positive once it has."""
        expires_at = expiry_time(job, waits_for_history=self._waits_for_history)
        if expires_at is None:
            return None
        now = self._clock.now().timestamp()
        ttl = job.spec.ttl_seconds_after_finished or 0
        if expires_at - ttl > now:
            log.warning("job finished in the future", extra={"job": job.metadata.key})
        return expires_at - now
