"""What the pods of a Job mean for it: which have ended, which indexes succeeded, whether the Job
ends. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from ..model import times
from ..model.run_times import deadline_of
from . import conditions, success_policy
from .backoff import BackoffRecord
from .batch_pod import BatchPod, JobTraits
from .conditions import Outcome
from .core_types import Job, PolicyAction
from .indexes import IndexSet
from .pod_tracker import BatchPodTracker
from .view import BatchJobView


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the state of the pods means for the Job."""

    ended: tuple[BatchPod, ...]
    """Pods with the finalizer that are finished or terminating, at the start of the sync."""
    succeeded: int
    failed: int
    new_succeeded: tuple[BatchPod, ...]
    """Succeeded pods that the status does not include yet."""
    new_failed: tuple[BatchPod, ...]
    start_time: str | None
    backoff: BackoffRecord
    succeeded_indexes: IndexSet
    failed_indexes: IndexSet | None
    """``None`` without a limit per index."""
    retained: dict[int, BatchPod]
    """By index, the failed pod from which the replacement takes the failure counts."""
    outcome: Outcome | None
    """How the Job ends once no pod is active, unless it continues."""
    deadline_in: float | None
    """Seconds until the deadline, if it has not passed."""


def evaluate(view: BatchJobView) -> Evaluation:
    """Evaluate the pods of a Job that has not finished."""
    job, traits, pods = view.job, view.traits, view.pods
    uncounted = job.status.uncounted_terminated_pods
    in_succeeded = frozenset(uncounted.succeeded if uncounted else ())
    in_failed = frozenset(uncounted.failed if uncounted else ())
    ended = tuple(pods.ended)
    countable = [pod for pod in ended if not traits.indexed or traits.has_index(pod.index)]
    new_succeeded = [one for one in countable if one.succeeded and one.uid not in in_succeeded]
    failed_pods = [one for one in countable if _has_failed(one, traits)]
    new_failed = [one for one in failed_pods if one.uid not in in_failed]
    succeeded = job.status.succeeded + len(new_succeeded) + len(in_succeeded)
    failed = job.status.failed + sum(one.match.counts for one in new_failed) + len(in_failed)
    succeeded_indexes, failed_indexes = view.completed, None
    retained: dict[int, BatchPod] = {}
    if traits.indexed:
        succeeded_indexes = view.completed.with_indexes(
            pod.index for pod in countable if pod.succeeded and pod.index is not None
        )
        succeeded = succeeded_indexes.total
    if traits.indexed and job.spec.backoff_limit_per_index is not None:
        limit = job.spec.backoff_limit_per_index
        failed_indexes = view.failed_indexes.with_indexes(
            pod.index for pod in failed_pods if pod.index is not None and _fails_index(pod, limit)
        )
        retained = _retained(failed_pods, pods, [succeeded_indexes, failed_indexes])
    start_time = _start_time(view)
    deadline_in = _deadline_in(job, start_time, view.now)
    outcome = _outcome(
        view,
        failed=failed,
        past_deadline=deadline_in is not None and deadline_in <= 0,
        succeeded_indexes=succeeded_indexes,
        failed_indexes=failed_indexes,
    )
    return Evaluation(
        ended=ended,
        succeeded=succeeded,
        failed=failed,
        start_time=start_time,
        new_succeeded=tuple(new_succeeded),
        new_failed=tuple(new_failed),
        backoff=_updated(view.backoff, new_succeeded, new_failed),
        succeeded_indexes=succeeded_indexes,
        failed_indexes=failed_indexes,
        retained=retained,
        outcome=outcome,
        deadline_in=None if outcome is not None else deadline_in,
    )


def backoff_after(
    view: BatchJobView, evaluation: Evaluation, counted: Iterable[BatchPod]
) -> BackoffRecord:
    """Return the record to keep once the pods *counted* are in the status."""
    uids = {pod.uid for pod in counted}
    return _updated(
        view.backoff,
        [pod for pod in evaluation.new_succeeded if pod.uid in uids],
        [pod for pod in evaluation.new_failed if pod.uid in uids],
    )


def _updated(
    backoff: BackoffRecord, succeeded: Iterable[BatchPod], failed: Iterable[BatchPod]
) -> BackoffRecord:
    return backoff.updated(
        succeeded=[pod.finished_at for pod in succeeded],
        failed=[pod.finished_at for pod in failed],
    )


def _has_failed(pod: BatchPod, traits: JobTraits) -> bool:
    return pod.has_failed(replaces_only_failed=traits.replaces_only_failed)


def _fails_index(pod: BatchPod, limit: int) -> bool:
    """Whether a failed pod is the last of its index."""
    if pod.match.action is PolicyAction.FAIL_INDEX:
        return True
    return pod.match.counts and pod.failures >= limit


def _retained(
    failed: Iterable[BatchPod], pods: BatchPodTracker, ended: Iterable[IndexSet]
) -> dict[int, BatchPod]:
    """Return the latest failed pod of each index that needs a replacement."""
    latest: dict[int, BatchPod] = {}
    for pod in failed:
        index = pod.index
        if index is None or index in pods.active_indexes or any(index in one for one in ended):
            continue
        if index not in latest or latest[index].failure_order < pod.failure_order:
            latest[index] = pod
    return latest


def _start_time(view: BatchJobView) -> str | None:
    """Return when the Job started: now, if it starts with this sync."""
    start_time = view.job.status.start_time
    return view.timestamp if start_time is None and not view.job.spec.suspend else start_time


def _deadline_in(job: Job, start_time: str | None, now: datetime) -> float | None:
    """Return the seconds until the deadline; not positive once it has passed."""
    seconds = deadline_of(job.spec.active_deadline_seconds, job.metadata.annotations)
    if seconds is None or start_time is None or job.spec.suspend:
        return None
    return times.parse(start_time).timestamp() + seconds - now.timestamp()


def _outcome(
    view: BatchJobView,
    *,
    failed: int,
    past_deadline: bool,
    succeeded_indexes: IndexSet,
    failed_indexes: IndexSet | None,
) -> Outcome | None:
    """Return how the Job ends; the first rule that applies decides.

    What was declared before is kept; then failures are examined, and success at last.
    """
    job = view.job
    declared = conditions.declared_outcome(job.status.conditions)
    if declared is not None:
        return declared
    if view.pods.failing:
        first = min(view.pods.failing, key=lambda pod: (pod.finished_at, pod.name))
        return conditions.pod_failure_policy(first.match.message)
    if failed > job.spec.failure_limit or _exceeds_restarts(view):
        return conditions.BACKOFF_LIMIT_EXCEEDED
    if past_deadline:
        return conditions.DEADLINE_EXCEEDED
    if not view.traits.indexed:
        return None
    if failed_indexes is not None:
        limit = job.spec.max_failed_indexes
        if limit is not None and failed_indexes.total > limit:
            return conditions.MAX_FAILED_INDEXES_EXCEEDED
        ended = failed_indexes.total + succeeded_indexes.total
        if failed_indexes.total and ended >= job.completions:
            return conditions.FAILED_INDEXES
    message = success_policy.match(
        job.spec.success_policy, succeeded_indexes, completions=job.completions
    )
    return None if message is None else conditions.success_policy(message)


def _exceeds_restarts(view: BatchJobView) -> bool:
    """Whether restarts of containers in their pods exceed the backoff limit."""
    if not view.traits.restarts_in_place:
        return False
    limit = view.job.spec.failure_limit
    return view.pods.restarts >= max(limit, 1)
