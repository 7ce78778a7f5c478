"""One sync of one Job: decide, write the pods, count the ended ones, write the status.

The decisions are in :mod:`.evaluation` and :mod:`.accounting`; this module executes them in order. A
sync that is interrupted at any request is repeated from the start, with the same result.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ..kube.errors import ConflictError, NotFoundError
from ..kube.informer.informer import Informer
from ..machinery.clock import Clock
from ..machinery.controller import RequeueError
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.pod_ranking import deletion_order
from ..machinery.status_writer import StatusWriter, merge_patch
from ..model.names import BATCH_JOBS
from . import accounting, conditions
from . import evaluation as decide
from .accounting import Accounting, PodNumbers
from .batch_pod import BatchPod
from .conditions import Outcome
from .core_types import Job, JobStatus, Pod
from .evaluation import BatchJobView, Evaluation, Plan, SyncAction
from .metrics import BatchJobMetrics
from .pod_lookups import adoptable_with_finalizer
from .pod_writes import PodWrites, WriteResult
from .state import BatchJobState
from .status import normalized, to_json

log = logging.getLogger(__name__)

_MIN_RETRY_DELAY = 1.0
"""Minimum delay in seconds of a sync that creates a replacement."""


_UNREPORTED_RECHECK = 3.0
"""Seconds until the next sync of a Job with created pods that the informer has not reported. One
that was deleted while a watch was broken is never reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncDeps:
    """Dependencies of syncs."""

    clock: Clock
    pods: Informer[Pod]
    pod_writes: PodWrites
    status_writer: StatusWriter[Job]
    metrics: BatchJobMetrics
    recorder: Recorder | None


class Sync:
    """A sync of a Job that is to be reconciled and has not finished."""

    def __init__(self, deps: SyncDeps, job: Job, info: BatchJobState) -> None:
        self.action = SyncAction.RECONCILING
        """What was done with pods."""
        self._deps = deps
        self._job = job
        self._info = info
        self._delays: list[float] = []

    async def run(self) -> float | None:
        """Sync; return the seconds until the next sync, if no event precedes it.

        Raises:
            RequeueError: a conflict.
            ApiError, ConnectionLostError: a write failed; everything else was done.
        """
        view = self._view()
        evaluation = decide.evaluate(view)
        if evaluation.deadline_in is not None:
            self._delays.append(evaluation.deadline_in)
        plan = decide.plan(view, evaluation, self._order)
        result = await self._manage(view, evaluation, plan)
        outcome = self._outcome(view, evaluation, result)
        await self._count(view, evaluation, plan, outcome)
        if result.error is not None:
            raise result.error
        if self._info.unconfirmed:
            until = min(each.until for each in self._info.unconfirmed.values())
            self._delays.append(until - self._deps.clock.monotonic())
        if self._info.pods.has_unreported:
            self._delays.append(_UNREPORTED_RECHECK)
        return min(self._delays, default=None)

    def _view(self) -> BatchJobView:
        job, info, now = self._job, self._info, self._deps.clock.monotonic()
        info.refresh(job)
        info.drop_expired(now)
        info.pods.remove_unreported(int(self._deps.pods.resource_version or 0))
        return BatchJobView(
            job=job,
            traits=info.traits,
            pods=info.pods,
            completed=info.completed_indexes(job),
            failed_indexes=info.failed_indexes(job),
            backoff=info.backoff,
            now=self._deps.clock.now(),
            is_orphan=self._is_orphan,
        )

    def _is_orphan(self, uid: str) -> bool:
        """Whether the Job is about to adopt the pod again, which therefore is not counted yet."""
        if self._info.pods.get(uid) is not None:
            return False
        found = adoptable_with_finalizer(self._deps.pods, self._job, self._info.traits.selector)
        return any(pod.metadata.uid == uid for pod in found)

    def _order(self, pods: Iterable[BatchPod]) -> list[BatchPod]:
        """Sort pods for deletion; first those that the informer has not reported yet."""
        namespace = self._job.metadata.namespace
        by_uid = {pod.uid: pod for pod in pods}
        known = [
            found
            for pod in by_uid.values()
            if (found := self._deps.pods.get(f"{namespace}/{pod.name}")) is not None
            and found.metadata.uid == pod.uid
        ]
        ordered = [by_uid.pop(pod.metadata.uid) for pod in deletion_order(known)]
        return [*by_uid.values(), *ordered]

    # Pods.

    async def _manage(self, view: BatchJobView, evaluation: Evaluation, plan: Plan) -> WriteResult:
        """Create or delete the pods of *plan*."""
        self.action = plan.action
        if plan.retry_in is not None:
            self._delays.append(max(plan.retry_in, _MIN_RETRY_DELAY))
        if plan.capped:
            self._delays.append(0.0)
        writes = self._deps.pod_writes
        if plan.delete:
            return await writes.delete(self._job, self._info, plan)
        if not plan.create:
            return WriteResult()
        terminating = len(view.pods.stopping)
        result = await writes.create(self._job, self._info, plan.create)
        self._deps.metrics.pods_created(
            self._job,
            evaluation,
            created=result.succeeded,
            failed=result.failed,
            terminating=terminating,
        )
        return result

    def _outcome(
        self, view: BatchJobView, evaluation: Evaluation, result: WriteResult
    ) -> Outcome | None:
        """Return how the Job ends; ``None`` while pods are active or may appear."""
        if view.pods.active or self._info.unconfirmed:
            return None
        if evaluation.outcome is not None:
            return evaluation.outcome if result.error is None else None
        if decide.completes(view, evaluation, active=len(view.pods.active)):
            return conditions.COMPLETIONS_REACHED
        return None

    # Status.

    async def _count(
        self, view: BatchJobView, evaluation: Evaluation, plan: Plan, outcome: Outcome | None
    ) -> None:
        """Write the status, remove the finalizers of counted pods, and write the status again."""
        counted = accounting.account(view, evaluation, outcome, self._numbers())
        status = counted.status
        suspension = decide.suspension(view, plan, outcome)
        if suspension is not None:
            status = accounting.suspend_or_resume(status, suspension, now=view.timestamp)
        await self._write(status)
        self._info.backoff = decide.backoff_after(view, evaluation, counted.release)
        self._info.keep_indexes(status, counted.completed, evaluation.failed_indexes)
        self._deps.metrics.policy_applied(counted.policy_actions)
        if suspension is not None and status.conditions != view.job.status.conditions:
            reason = "Suspended" if suspension.status else "Resumed"
            self._record(reason, suspension.message)
        released = await self._deps.pod_writes.remove_finalizers(
            self._job, self._info, counted.release
        )
        await self._settle(view, counted, None if released.error else outcome)
        if released.error is not None:
            raise released.error

    async def _settle(
        self, view: BatchJobView, counted: Accounting, outcome: Outcome | None
    ) -> None:
        """Move the counted pods to the counters; end the Job once nothing of it is left."""
        status = accounting.settle(self._job.status, view.has_finalizer)
        if counted.capped:
            self._delays.append(0.0)
        elif outcome is not None:
            status = accounting.finish(status, outcome, now=view.timestamp)
        await self._write(status)
        if outcome is not None and conditions.is_finished(status.conditions):
            self._finished(outcome)

    def _numbers(self) -> PodNumbers:
        pods = self._info.pods
        return PodNumbers(active=len(pods.active), ready=pods.ready, terminating=len(pods.stopping))

    async def _write(self, status: JobStatus) -> None:
        """Write *status* unless the Job has it.

        Raises:
            RequeueError: the Job was modified or deleted.
        """
        job = self._job
        patch = merge_patch(to_json(job.status), to_json(normalized(status)))
        if not patch:
            return
        try:
            written = await self._deps.status_writer.write(job.metadata, patch)
        except ConflictError as error:
            raise RequeueError("Job was modified concurrently") from error
        except NotFoundError as error:
            raise RequeueError("Job not found") from error
        self._deps.metrics.status_written(job, status)
        self._job = msgspec.structs.replace(
            job, metadata=written.metadata, status=normalized(status)
        )
        self._info.keep_written(self._job)

    def _finished(self, outcome: Outcome) -> None:
        """Record the end of the Job."""
        job = self._job
        self._deps.metrics.finished(job, outcome)
        fields = {"job": job.metadata.key, "reason": outcome.reason}
        log.info("job completed" if outcome.is_success else "job failed", extra=fields)
        if not outcome.is_success:
            self._record(outcome.reason, outcome.message, warning=True)
            return
        completions = job.spec.completions
        if completions is not None and job.status.succeeded > completions:
            text = "Too many succeeded pods running after completion count reached"
            self._record("TooManySucceededPods", text, warning=True)
        self._record("Completed", "Job completed")

    def _record(self, reason: str, message: str, *, warning: bool = False) -> None:
        if self._deps.recorder is not None:
            self._deps.recorder.record(
                object_reference(BATCH_JOBS, self._job.metadata),
                type="Warning" if warning else "Normal",
                reason=reason,
                message=message,
            )
