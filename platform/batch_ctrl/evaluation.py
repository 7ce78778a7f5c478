"""The first half of a sync: evaluate the Job, then plan what to do with its pods. Pure.

:func:`evaluate` computes what the pods mean: which of them have ended, which indexes succeeded or
failed, and whether the Job ends. :func:`plan` returns the pods to delete or to create. The second
half, which counts the ended pods in the status, is in :mod:`.accounting`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from ..model import times
from . import conditions, success_policy
from .backoff import BackoffRecord, remaining_delay
from .batch_pod import BatchPod, JobTraits
from .conditions import Change, Outcome
from .core_types import Job, PolicyAction
from .indexes import IndexSet
from .pod_tracker import BatchPodTracker

MAX_PODS_PER_SYNC = 500
"""Maximum number of pods that one sync creates, or deletes because they are too many."""

DeletionOrder = Callable[[Iterable[BatchPod]], Sequence[BatchPod]]
"""Sorts pods in the order of deletion."""


HasFinalizer = Callable[[str], bool]
"""Whether the pod with this uid exists with the tracking finalizer."""


def _no_pod(_uid: str) -> bool:
    return False


class SyncAction(StrEnum):
    """What a sync did with pods; a label of metrics."""

    RECONCILING = "reconciling"
    TRACKING = "tracking"
    PODS_CREATED = "pods_created"
    PODS_DELETED = "pods_deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJobView:
    """Input of a sync."""

    job: Job
    traits: JobTraits
    pods: BatchPodTracker
    completed: IndexSet
    """``status.completedIndexes``."""
    failed_indexes: IndexSet
    """``status.failedIndexes``."""
    backoff: BackoffRecord
    now: datetime
    is_orphan: HasFinalizer = _no_pod
    """Whether the pod with this uid has the finalizer, and lost the Job as its owner, which adopts
    it again."""

    def has_finalizer(self, uid: str) -> bool:
        """Whether the pod with this uid exists with the finalizer, or may be the Job's again."""
        return self.pods.has_finalizer(uid) or self.is_orphan(uid)

    @property
    def timestamp(self) -> str:
        """The time as conditions have it."""
        return times.format(self.now)


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
    """How the Job ends, unless it continues."""
    deadline_in: float | None
    """Seconds until the deadline, if it has not passed."""


@dataclass(frozen=True, slots=True)
class Creation:
    """A pod to create."""

    index: int | None = None
    failures: int | None = None
    """Counted failures of the index, with a limit per index."""
    ignored_failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do with the pods."""

    action: SyncAction = SyncAction.TRACKING
    delete: tuple[BatchPod, ...] = ()
    counts_deleted: bool = False
    """Deleted pods keep the finalizer until they are counted."""
    create: tuple[Creation, ...] = ()
    retry_in: float | None = None
    """Seconds until a replacement may be created."""
    managed: bool = False
    """The number of pods was decided on, so that the Suspended condition may change."""
    capped: bool = False
    """More pods are to be created or deleted in the next sync."""


# Evaluation.


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
    seconds = job.spec.active_deadline_seconds
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


# Plan.


def plan(view: BatchJobView, evaluation: Evaluation, order: DeletionOrder) -> Plan:
    """Return what to do with the pods; *order* chooses the pods to delete if there are too many."""
    job, pods = view.job, view.pods
    if evaluation.outcome is not None:
        return Plan(action=SyncAction.RECONCILING, delete=tuple(pods.active), counts_deleted=True)
    if job.is_being_deleted:
        return Plan(action=SyncAction.RECONCILING)
    if job.spec.suspend:
        return Plan(action=SyncAction.PODS_DELETED, delete=tuple(pods.active), managed=True)
    wanted = wanted_pods(job, active=len(pods.active), succeeded=evaluation.succeeded)
    excess = _excess(view, len(pods.active) - wanted, order)
    if excess:
        return Plan(
            action=SyncAction.PODS_DELETED,
            delete=tuple(excess[:MAX_PODS_PER_SYNC]),
            managed=True,
            capped=len(excess) > MAX_PODS_PER_SYNC,
        )
    missing = wanted - len(pods.active)
    if view.traits.replaces_only_failed:
        missing -= pods.awaited
    if missing <= 0:
        return Plan(managed=True)
    creations = _plan_creations(view, evaluation, min(missing, MAX_PODS_PER_SYNC))
    return replace(creations, capped=missing > MAX_PODS_PER_SYNC and bool(creations.create))


def wanted_pods(job: Job, *, active: int, succeeded: int) -> int:
    """Return the number of active pods that the Job needs.

    Without completions the first success ends the creation of pods, and the others may finish.
    """
    if job.spec.completions is None:
        return active if succeeded > 0 else job.spec.parallelism
    return max(0, min(job.spec.completions - succeeded, job.spec.parallelism))


def _excess(view: BatchJobView, surplus: int, order: DeletionOrder) -> list[BatchPod]:
    """Return the pods to delete: misplaced ones, duplicates, and at least *surplus*."""
    pods = view.pods
    excess: list[BatchPod] = []
    if view.traits.indexed:
        excess = sorted(pods.misplaced, key=lambda pod: pod.key_in_order)
        for same in pods.duplicated:
            excess += order(same)[:-1]
    if len(excess) < surplus:
        chosen = {pod.uid for pod in excess}
        left = [pod for pod in pods.active if pod.uid not in chosen]
        excess += order(left)[: surplus - len(excess)]
    return excess


def _plan_creations(view: BatchJobView, evaluation: Evaluation, missing: int) -> Plan:
    per_index = evaluation.failed_indexes is not None
    now = view.now.timestamp()
    delay = 0.0 if per_index else evaluation.backoff.remaining(now)
    if delay > 0:
        return Plan(action=SyncAction.PODS_CREATED, retry_in=delay, managed=True)
    if not view.traits.indexed:
        create = (Creation(),) * missing
        return Plan(action=SyncAction.PODS_CREATED, create=create, managed=True)
    ready, delays = list[Creation](), list[float]()
    for index in _pending_indexes(view, evaluation, missing):
        last = evaluation.retained.get(index)
        delay = _index_delay(last, now=now) if per_index else 0.0
        if delay > 0:
            delays.append(delay)
        else:
            ready.append(_creation(index, last) if per_index else Creation(index))
    retry_in = min(delays, default=None)
    return Plan(
        action=SyncAction.PODS_CREATED, create=tuple(ready), retry_in=retry_in, managed=True
    )


def _pending_indexes(view: BatchJobView, evaluation: Evaluation, count: int) -> list[int]:
    """Return the first *count* indexes that have neither an active pod nor ended."""
    succeeded, failed = evaluation.succeeded_indexes, evaluation.failed_indexes

    def has_ended(index: int) -> bool:
        return index in succeeded or (failed is not None and index in failed)

    return view.pods.first_free(count, is_excluded=has_ended)


def _index_delay(last: BatchPod | None, *, now: float) -> float:
    """Return the seconds until the replacement of *last* may be created."""
    if last is None:
        return 0.0
    failures = last.failures + last.ignored_failures + 1
    return remaining_delay(failures, last.finished_at, now=now)


def _creation(index: int, last: BatchPod | None) -> Creation:
    """Return the replacement of *last*, with the failures of its index so far."""
    if last is None:
        return Creation(index, failures=0)
    return Creation(
        index,
        failures=last.failures + last.match.counts,
        ignored_failures=last.ignored_failures + (not last.match.counts),
    )


# The end.


def suspension(view: BatchJobView, plan: Plan, outcome: Outcome | None) -> Change | None:
    """Return the Suspended condition that a sync sets, if it may: a completed Job has none."""
    if not plan.managed or outcome is not None:
        return None
    return conditions.SUSPENDED if view.job.spec.suspend else conditions.RESUMED


def completes(view: BatchJobView, evaluation: Evaluation, *, active: int) -> bool:
    """Whether all completions are reached and no pod is active."""
    if active:
        return False
    completions = view.job.spec.completions
    if completions is None:
        return evaluation.succeeded > 0
    return evaluation.succeeded >= completions
