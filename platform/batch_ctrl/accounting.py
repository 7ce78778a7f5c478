"""Counts each pod that has ended exactly once in the status of its Job. Pure.

A pod keeps the tracking finalizer until it is counted:

1. :func:`count` lists the uids of ended pods as uncounted; a completion index needs no list. This
   status is written first.
2. The controller removes the finalizers.
3. :func:`settle` moves the uids of pods without the finalizer from the list to the counters, and
   :func:`finish` adds the terminal condition once nothing is left. This status is written, too.

A controller that is killed in between continues from the lists in the status.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from . import conditions
from .batch_pod import BatchPod
from .conditions import Change, Outcome
from .core_types import JobStatus, PolicyAction, UncountedPods
from .effects import CountPods
from .evaluation import Evaluation, backoff_after
from .view import BatchJobView, HasFinalizer

MAX_UNCOUNTED_PODS = 500
"""Maximum number of pods that one sync counts: limits the size of the status, and lets the pods of
other Jobs be counted in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """Pods to count in a sync."""

    effect: CountPods
    """Writes the status that includes them."""
    release: tuple[BatchPod, ...]
    """Pods whose finalizer is to be removed then."""
    capped: bool
    """More pods are to be counted in the next sync."""


def count(view: BatchJobView, evaluation: Evaluation, outcome: Outcome | None) -> Counting:
    """Return the status with all pods that can be counted, and with what announces *outcome*."""
    pods, active = view.pods, len(view.pods.active)
    status = msgspec.structs.replace(
        view.job.status,
        start_time=evaluation.start_time,
        active=active,
        ready=min(pods.ready, active),
        terminating=len(pods.stopping),
    )
    status = settle(status, view.has_finalizer)
    counting = _Counting(view, evaluation, outcome, status.uncounted_terminated_pods)
    counting.count(_candidates(view, evaluation, outcome))
    changes: dict[str, object] = {"uncounted_terminated_pods": counting.uncounted}
    completed = view.completed
    if view.traits.indexed:
        completed = view.completed.with_indexes(counting.new_indexes)
        changes["succeeded"] = completed.total
        changes["completed_indexes"] = str(completed)
        failed = evaluation.failed_indexes
        changes["failed_indexes"] = None if failed is None else str(failed)
    if outcome is not None:
        changes["conditions"] = conditions.upsert(
            status.conditions, conditions.interim(outcome), now=view.timestamp
        )
    effect = CountPods(
        status=msgspec.structs.replace(status, **changes),
        completed=completed,
        failed_indexes=evaluation.failed_indexes,
        backoff=backoff_after(view, evaluation, counting.release),
        policy_actions=counting.policy_actions,
    )
    return Counting(effect=effect, release=tuple(counting.release), capped=counting.capped)


def _candidates(
    view: BatchJobView, evaluation: Evaluation, outcome: Outcome | None
) -> list[BatchPod]:
    """Return the pods with the finalizer that may be counted, in order."""
    if outcome is not None or view.job.is_being_deleted:
        found = list(view.pods.with_finalizer())
    else:
        found = [one for one in evaluation.ended if view.pods.has_finalizer(one.uid)]
    return sorted(found, key=lambda pod: pod.key_in_order)


class _Counting:
    """Collects the pods that are counted, up to the limit."""

    def __init__(
        self,
        view: BatchJobView,
        evaluation: Evaluation,
        outcome: Outcome | None,
        uncounted: UncountedPods | None,
    ) -> None:
        self._view = view
        self._outcome = outcome
        self._ended = {pod.uid for pod in evaluation.ended}
        self._declared = conditions.declared_outcome(view.job.status.conditions) is not None
        self._retained = {pod.uid for pod in evaluation.retained.values()}
        uncounted = uncounted or UncountedPods()
        self._succeeded = dict.fromkeys(uncounted.succeeded)
        self._failed = dict.fromkeys(uncounted.failed)
        self.new_indexes: dict[int, None] = {}
        self.release: list[BatchPod] = []
        self.capped = False
        self.policy_actions: Counter[PolicyAction] = Counter()

    @property
    def uncounted(self) -> UncountedPods:
        """The uids to be written."""
        return UncountedPods(succeeded=tuple(self._succeeded), failed=tuple(self._failed))

    def count(self, pods: Iterable[BatchPod]) -> None:
        """Count *pods* until the limit is reached."""
        for pod in pods:
            failed = self._has_failed(pod)
            if not self._can_release(pod, failed):
                continue
            self.release.append(pod)
            if pod.succeeded and pod.uid not in self._failed:
                self._count_success(pod)
            elif failed or (self._outcome is not None and not self._outcome.is_success):
                self._count_failure(pod)
            pending = len(self.new_indexes) + len(self._succeeded) + len(self._failed)
            if pending >= MAX_UNCOUNTED_PODS:
                self.capped = True
                return

    def _has_failed(self, pod: BatchPod) -> bool:
        """Whether *pod* has failed; one that was deleted because the Job succeeded has not."""
        succeeds = self._outcome is not None and self._outcome.is_success
        if succeeds and pod.stopping and (self._declared or pod.uid not in self._ended):
            return False
        return pod.has_failed(replaces_only_failed=self._view.traits.replaces_only_failed)

    def _can_release(self, pod: BatchPod, failed: bool) -> bool:
        """Whether the finalizer of *pod* may be removed."""
        if self._view.job.is_being_deleted or self._outcome is not None or pod.succeeded:
            return True
        return failed and pod.uid not in self._retained

    def _count_success(self, pod: BatchPod) -> None:
        if not self._view.traits.indexed:
            self._succeeded[pod.uid] = None
        elif pod.index is not None and self._is_new_index(pod.index):
            self.new_indexes[pod.index] = None

    def _is_new_index(self, index: int) -> bool:
        return self._view.traits.has_index(index) and index not in self._view.completed

    def _count_failure(self, pod: BatchPod) -> None:
        traits = self._view.traits
        if pod.uid in self._failed or (traits.indexed and not traits.has_index(pod.index)):
            return
        if pod.match.action is not None:
            self.policy_actions[pod.match.action] += 1
        if pod.match.counts:
            self._failed[pod.uid] = None


def settle(status: JobStatus, has_finalizer: HasFinalizer) -> JobStatus:
    """Move the uncounted pods without the finalizer to the counters."""
    uncounted = status.uncounted_terminated_pods or UncountedPods()
    succeeded = tuple(uid for uid in uncounted.succeeded if has_finalizer(uid))
    failed = tuple(uid for uid in uncounted.failed if has_finalizer(uid))
    return msgspec.structs.replace(
        status,
        succeeded=status.succeeded + len(uncounted.succeeded) - len(succeeded),
        failed=status.failed + len(uncounted.failed) - len(failed),
        uncounted_terminated_pods=UncountedPods(succeeded=succeeded, failed=failed),
    )


def suspend_or_resume(status: JobStatus, change: Change, *, now: str) -> JobStatus:
    """Set the Suspended condition; a Job that is resumed starts again."""
    changed = conditions.upsert(status.conditions, change, now=now)
    if changed is status.conditions:
        return status
    start_time = None if change.status else now
    return msgspec.structs.replace(status, conditions=changed, start_time=start_time)


def finish(status: JobStatus, outcome: Outcome, *, now: str) -> JobStatus:
    """Return the status with the terminal condition; unchanged while pods are left."""
    uncounted = status.uncounted_terminated_pods
    if status.active or status.terminating or (uncounted is not None and len(uncounted)):
        return status
    ended = conditions.upsert(status.conditions, conditions.terminal(outcome), now=now)
    completed_at = now if outcome.is_success else status.completion_time
    return msgspec.structs.replace(status, conditions=ended, completion_time=completed_at)
