"""Executes effects: every write of the Job controller is here or in :mod:`.pod_writes`."""

import logging
from dataclasses import dataclass
from typing import Any, assert_never

from ..kube.client.client import Client
from ..machinery.batches import BatchResult
from ..machinery.claim import Claimer
from ..machinery.merge_patch import merge_patch
from ..machinery.pod_control import ObjectControl, Owner, is_namespace_terminating
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import RequeueAfter, Sync
from ..machinery.reconcile.events import Event, Events
from ..model.names import BATCH_JOBS
from .conditions import Outcome
from .core_types import Job, JobStatus, Pod
from .effects import (
    ClaimPods,
    CountPods,
    Effect,
    Finished,
    ManagePods,
    ReleasePods,
    SetStatus,
)
from .metrics import BatchJobMetrics
from .pod_writes import PodWrites
from .state import BatchJobState
from .status import normalized, to_json

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJobExecutor:
    """Executes the effects on one Job and its pods in their order."""

    client: Client
    jobs: WriteThroughCache[Job]
    control: ObjectControl[Pod]
    pod_writes: PodWrites
    events: Events
    """Events on Jobs."""
    metrics: BatchJobMetrics

    async def execute(self, sync: Sync, state: BatchJobState, effect: Effect) -> None:
        """Execute one effect; an error of one pod does not prevent the others, nor what follows.

        Raises:
            RequeueError: the Job was modified or deleted concurrently.
            ApiError, ConnectionLostError: a write was rejected, or may not have arrived.
        """
        match effect:
            case ClaimPods():
                await self._claim(state, effect)
            case ManagePods():
                await self._manage(sync, state, effect)
            case CountPods(status=status):
                await self._write(state, status)
                state.backoff = effect.backoff
                state.keep_indexes(status, effect.completed, effect.failed_indexes)
                self.metrics.policy_applied(effect.policy_actions)
            case ReleasePods(pods):
                _note_errors(sync, await self.pod_writes.remove_finalizers(state, pods))
            case SetStatus(status):
                await self._write(state, status)
            case Finished(outcome):
                self._finished(state.job, outcome)
            case RequeueAfter(seconds):
                if not sync.errors:  # else the key is retried with backoff
                    sync.after(seconds)
            case Event():
                self.events.record(state.job.metadata, effect)
            case _:
                assert_never(effect)

    async def _claim(self, state: BatchJobState, effect: ClaimPods) -> None:
        meta = state.job.metadata

        async def read_owner() -> Job:
            return await self.client.get(BATCH_JOBS, meta.name, namespace=meta.namespace, view=Job)

        claimer = Claimer(
            control=self.control,
            owner=Owner(resource=BATCH_JOBS, metadata=meta),
            selector=state.traits.selector,
            read_owner=read_owner,
            finalizer=effect.finalizer,
        )
        (await claimer.claim(effect.pods)).raise_for_errors()

    async def _manage(self, sync: Sync, state: BatchJobState, effect: ManagePods) -> None:
        state.action = effect.action
        result: BatchResult[Any]
        if effect.delete:
            result = await self.pod_writes.delete(
                state, effect.delete, counted=effect.counts_deleted
            )
        else:
            result = await self.pod_writes.create(state, effect.create)
            self.metrics.pods_created(
                effect.reason, created=len(result.succeeded), failed=len(result.failed)
            )
        _note_errors(sync, result)
        if not result.failed:
            sync.after(effect.requeue_after)

    async def _write(self, state: BatchJobState, status: JobStatus) -> None:
        """Write *status* unless the Job has it."""
        job, status = state.job, normalized(status)
        if status == job.status:  # as in most syncs; the patch costs more
            return
        patch = merge_patch(to_json(job.status), to_json(status))
        if patch:
            state.job = await self.jobs.patch_status(job.metadata, patch)
            self.metrics.status_written(job, status)

    def _finished(self, job: Job, outcome: Outcome) -> None:
        self.metrics.finished(job, outcome)
        fields = {"job": job.metadata.key, "reason": outcome.reason}
        log.info("job completed" if outcome.is_success else "job failed", extra=fields)


def _note_errors(sync: Sync, result: BatchResult[Any]) -> None:
    """Note for which error to retry; no retry can succeed in a namespace that is being deleted."""
    errors = [error for _, error in result.failed if not is_namespace_terminating(error)]
    sync.errors += errors[:1]
