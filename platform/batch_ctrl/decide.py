"""What a Job and its pods need: the order of one sync, and what to do with the pods. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..machinery.reconcile.controller import RequeueAfter
from ..machinery.reconcile.events import Event
from ..model.pod import FINISHED
from . import accounting, conditions
from .backoff import remaining_delay
from .batch_pod import BatchPod
from .conditions import Change, Outcome
from .core_types import TRACKING_FINALIZER, Job, JobStatus, Pod
from .effects import (
    ClaimPods,
    Creation,
    CreationReason,
    Effect,
    Finished,
    ManagePods,
    ReleasePods,
    SetStatus,
    SyncAction,
)
from .evaluation import Evaluation, evaluate
from .view import BatchJobView

MAX_PODS_PER_SYNC = 500
"""Maximum number of pods that one sync creates, or deletes because they are too many."""

_MIN_RETRY_DELAY = 1.0
"""Minimum delay in seconds of a sync that creates a replacement."""

_ADOPTION_RECHECK = 1.0
"""Seconds until the sync after an adoption, unless the informer reports the pods before."""

_UNREPORTED_RECHECK = 3.0
"""Seconds until the next sync of a Job with created pods that the informer has not reported. One
that was deleted while a watch was broken is never reported."""


def decide(view: BatchJobView) -> Iterator[Effect]:
    """Yield what the Job needs.

    Each effect is executed before the next one is computed: the numbers in the status, and whether
    the Job may end, depend on the pods that were created, deleted and released so far, which the
    view shows. A sync that is interrupted after any effect is repeated from the start, with the
    same result.
    """
    claims = _claims(view)
    if claims:
        yield from claims
        yield RequeueAfter(_ADOPTION_RECHECK)
        return
    evaluation = evaluate(view)
    if evaluation.deadline_in is not None:
        yield RequeueAfter(evaluation.deadline_in)
    managed = manage(view, evaluation)
    yield managed
    yield from _count(view, evaluation, managed)
    if view.unconfirmed:
        until = min(each.until for each in view.unconfirmed.values())
        yield RequeueAfter(until - view.monotonic)
    if view.pods.has_unreported:
        yield RequeueAfter(_UNREPORTED_RECHECK)


# Claiming.


def _claims(view: BatchJobView) -> list[ClaimPods]:
    """Return the pods to adopt and to release; the informer will report them."""
    job, selector = view.job, view.traits.selector
    if job.is_being_deleted:
        return []
    # A pod that this Job created is counted already if it ended and has no finalizer any more.
    counted, others = list[Pod](), list[Pod]()
    for pod in view.orphans:
        meta = pod.metadata
        if meta.deletion_timestamp is None and selector.matches(meta.labels):
            (counted if job.selects_own_uid and _is_released(pod) else others).append(pod)
    tracked = ClaimPods((*others, *view.mismatched), TRACKING_FINALIZER)
    return [claim for claim in (tracked, ClaimPods((*counted,), "")) if claim.pods]


def _is_released(pod: Pod) -> bool:
    """Whether *pod* has ended without the tracking finalizer."""
    return pod.status.phase in FINISHED and TRACKING_FINALIZER not in pod.metadata.finalizers


# Creating and deleting pods.


def manage(view: BatchJobView, evaluation: Evaluation) -> ManagePods:
    """Return which pods to delete or to create."""
    job, pods = view.job, view.pods
    if evaluation.outcome is not None:
        delete = tuple(pods.active)
        return ManagePods(action=SyncAction.RECONCILING, delete=delete, counts_deleted=True)
    if job.is_being_deleted:
        return ManagePods(action=SyncAction.RECONCILING)
    if job.spec.suspend:
        return ManagePods(action=SyncAction.PODS_DELETED, delete=tuple(pods.active), managed=True)
    wanted = wanted_pods(job, active=len(pods.active), succeeded=evaluation.succeeded)
    excess = _excess(view, len(pods.active) - wanted)
    if excess:
        return ManagePods(
            action=SyncAction.PODS_DELETED,
            delete=tuple(excess[:MAX_PODS_PER_SYNC]),
            managed=True,
            requeue_after=0.0 if len(excess) > MAX_PODS_PER_SYNC else None,
        )
    missing = wanted - len(pods.active)
    if view.traits.replaces_only_failed:
        missing -= pods.awaited
    if missing <= 0:
        return ManagePods(managed=True)
    found = _creations(view, evaluation, min(missing, MAX_PODS_PER_SYNC))
    capped = missing > MAX_PODS_PER_SYNC and found.create
    return replace(found, requeue_after=0.0) if capped else found


def wanted_pods(job: Job, *, active: int, succeeded: int) -> int:
    """Return the number of active pods that the Job needs.

    Without completions the first success ends the creation of pods, and the others may finish.
    """
    if job.spec.completions is None:
        return active if succeeded > 0 else job.spec.parallelism
    return max(0, min(job.spec.completions - succeeded, job.spec.parallelism))


def _excess(view: BatchJobView, surplus: int) -> list[BatchPod]:
    """Return the pods to delete: misplaced ones, duplicates, and at least *surplus*."""
    pods = view.pods
    excess: list[BatchPod] = []
    if view.traits.indexed:
        excess = sorted(pods.misplaced, key=lambda pod: pod.key_in_order)
        for same in pods.duplicated:
            excess += view.deletion_order(same)[:-1]
    if len(excess) < surplus:
        chosen = {pod.uid for pod in excess}
        left = [pod for pod in pods.active if pod.uid not in chosen]
        excess += view.deletion_order(left)[: surplus - len(excess)]
    return excess


def _creations(view: BatchJobView, evaluation: Evaluation, missing: int) -> ManagePods:
    """Return the creation of *missing* pods, of which some may have to wait."""
    now, per_index = view.now.timestamp(), evaluation.failed_indexes is not None
    create, delays = list[Creation](), list[float]()
    if not per_index and (delay := evaluation.backoff.remaining(now)) > 0:
        delays.append(delay)
    elif not view.traits.indexed:
        create = [Creation()] * missing
    else:
        for index in _pending_indexes(view, evaluation, missing):
            last = evaluation.retained.get(index)
            delay = _index_delay(last, now=now) if per_index else 0.0
            if delay > 0:
                delays.append(delay)
            else:
                create.append(_creation(index, last) if per_index else Creation(index))
    return ManagePods(
        action=SyncAction.PODS_CREATED,
        create=tuple(create),
        reason=_creation_reason(view, evaluation),
        requeue_after=max(min(delays), _MIN_RETRY_DELAY) if delays else None,
        managed=True,
    )


def _creation_reason(view: BatchJobView, evaluation: Evaluation) -> CreationReason:
    if view.job.spec.pod_replacement_policy == "Failed" and evaluation.failed:
        return CreationReason.RECREATE_FAILED
    if evaluation.failed or view.pods.stopping:
        return CreationReason.RECREATE_TERMINATING_OR_FAILED
    return CreationReason.NEW


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


# Counting pods, and the end.


def _count(view: BatchJobView, evaluation: Evaluation, managed: ManagePods) -> Iterator[Effect]:
    """Yield the status with the ended pods, then their release, then the status without lists."""
    outcome = _outcome(view, evaluation)
    counting = accounting.count(view, evaluation, outcome)
    change = suspension(view, managed, outcome)
    effect = counting.effect
    if change is not None:
        status = accounting.suspend_or_resume(effect.status, change, now=view.timestamp)
        effect = replace(effect, status=status)
    yield effect
    if change is not None and effect.status.conditions != view.job.status.conditions:
        yield Event("Suspended" if change.status else "Resumed", change.message)
    if counting.release:
        yield ReleasePods(counting.release)
    status = accounting.settle(effect.status, view.has_finalizer)
    if counting.capped:
        yield RequeueAfter(0.0)
    elif outcome is not None and not _any_unreleased(view, counting.release):
        status = accounting.finish(status, outcome, now=view.timestamp)
    yield SetStatus(status)
    if outcome is not None and conditions.is_finished(status.conditions):
        yield Finished(outcome)
        yield from _events_at_end(view.job, status, outcome)


def _any_unreleased(view: BatchJobView, pods: Iterable[BatchPod]) -> bool:
    return any(view.pods.has_finalizer(pod.uid) for pod in pods)


def _outcome(view: BatchJobView, evaluation: Evaluation) -> Outcome | None:
    """Return how the Job ends; ``None`` while pods are active or may appear."""
    if view.pods.active or view.unconfirmed:
        return None
    if evaluation.outcome is not None:
        return evaluation.outcome
    return conditions.COMPLETIONS_REACHED if completes(view.job, evaluation) else None


def completes(job: Job, evaluation: Evaluation) -> bool:
    """Whether all completions of a Job without active pods are reached."""
    if job.spec.completions is None:
        return evaluation.succeeded > 0
    return evaluation.succeeded >= job.spec.completions


def suspension(view: BatchJobView, managed: ManagePods, outcome: Outcome | None) -> Change | None:
    """Return the Suspended condition that a sync sets, if it may: a completed Job has none."""
    if not managed.managed or outcome is not None:
        return None
    return conditions.SUSPENDED if view.job.spec.suspend else conditions.RESUMED


def _events_at_end(job: Job, status: JobStatus, outcome: Outcome) -> Iterator[Event]:
    if not outcome.is_success:
        yield Event(outcome.reason, outcome.message, warning=True)
        return
    completions = job.spec.completions
    if completions is not None and status.succeeded > completions:
        text = "Too many succeeded pods running after completion count reached"
        yield Event("TooManySucceededPods", text, warning=True)
    yield Event("Completed", "Job completed")
