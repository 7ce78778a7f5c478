"""The pods of one Job, in groups that events keep up to date: no sync has to read all pods.

The tracker shows what the informer reported, overlaid with this controller's own writes as soon as
the API server has accepted them: created pods, deletions, and removed finalizers. So a sync never
repeats a write that no informer has reported yet. Deleted pods are shown as terminating until they
are reported as deleted, as kube-controller-manager counts them.

The kernel's ``WriteThroughCache`` does not replace the overlay. It applies own writes when it is
read and does not report when it drops one, so that the groups could not follow it unless each
sync reads all pods. It shows a write after its response, but a finalizer counts as removed as soon
as its removal is requested: a pod that the informer reports before the response is not counted
twice.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from ..model.pod import PodPhase
from .batch_pod import BatchPod, JobTraits

_RESTARTING = frozenset({PodPhase.PENDING, PodPhase.RUNNING})
"""Phases in which restarts of containers count towards the backoff limit."""


class FreeIndexes:
    """Finds the lowest free indexes. One that is occupied is examined again once it is released.

    Every free index below ``_next`` is in the heap, which may also contain occupied ones.
    """

    def __init__(self) -> None:
        self._next = 0
        self._heap: list[int] = []
        self._queued: set[int] = set()

    def release(self, index: int) -> None:
        """Examine *index* again: it may be free now."""
        if index < self._next and index not in self._queued:
            self._queued.add(index)
            heapq.heappush(self._heap, index)

    def first(self, count: int, *, limit: int, is_occupied: Callable[[int], bool]) -> list[int]:
        """Return the *count* lowest free indexes below *limit*, in order."""
        found: list[int] = []
        while self._heap and len(found) < count:
            index = heapq.heappop(self._heap)
            self._queued.discard(index)
            if not is_occupied(index):
                found.append(index)
        while self._next < limit and len(found) < count:
            if not is_occupied(self._next):
                found.append(self._next)
            self._next += 1
        for index in found:
            self.release(index)
        return found


_GROUPS: Mapping[str, Callable[[BatchPod, JobTraits], bool]] = {
    "active": lambda pod, _: pod.active,
    "stopping": lambda pod, _: pod.stopping,
    "ended": lambda pod, _: pod.finalizer and not pod.active,
    "failing": lambda pod, _: pod.phase is PodPhase.FAILED and pod.match.message != "",
    "mismatched": lambda pod, _: not pod.matches,
    "misplaced": lambda pod, traits: (
        traits.indexed and pod.active and not traits.has_index(pod.index)
    ),
}
"""Whether a pod belongs to a group; each is a property of the tracker."""


class BatchPodTracker:
    """The pods that a Job controls."""

    def __init__(self, traits: JobTraits) -> None:
        self.traits = traits
        self.ready = 0
        """Active pods that are ready."""
        self.restarts = 0
        """Restarts of the containers of running and pending pods."""
        self.awaited = 0
        """Terminating pods that are replaced later, if the Job replaces only failed ones."""
        self._pods: dict[str, BatchPod] = {}
        self._groups: dict[str, dict[str, BatchPod]] = {name: {} for name in _GROUPS}
        self._by_index: dict[int, dict[str, BatchPod]] = {}
        """Active pods of the Job's indexes."""
        self._awaited_by_index: dict[int, int] = {}
        self._duplicated: set[int] = set()
        """Indexes with several active pods."""
        self._free = FreeIndexes()
        # Own writes that no informer has reported yet, by uid.
        self._created: dict[str, str] = {}
        """Created pods: resourceVersion."""
        self._deleted: set[str] = set()
        self._finalizer_removed: set[str] = set()

    # What the informer reports.

    def observe(self, pod: BatchPod) -> None:
        """Add or update a pod that the informer reports."""
        self._created.pop(pod.uid, None)
        if pod.terminating:
            self._deleted.discard(pod.uid)
        if not pod.finalizer:
            self._finalizer_removed.discard(pod.uid)
        self._put(self._with_own_writes(pod))

    def remove(self, uid: str) -> None:
        """Remove a pod that is deleted, or that another controller owns."""
        for own_writes in (self._deleted, self._finalizer_removed):
            own_writes.discard(uid)
        self._created.pop(uid, None)
        old = self._pods.pop(uid, None)
        if old is not None:
            self._discard(old)

    def remove_unreported(self, synced_version: int) -> None:
        """Remove created pods that were deleted before the informer could report them.

        *synced_version*: the informer has reported all changes up to this version.
        """
        for uid, version in list(self._created.items()):
            if int(version or 0) <= synced_version:
                self.remove(uid)

    @property
    def has_unreported(self) -> bool:
        """Whether the informer has not reported some created pods yet; it may never do so."""
        return bool(self._created)

    # Own writes.

    def add_created(self, pod: BatchPod) -> None:
        """Add a created pod, unless the informer has reported it before."""
        if pod.uid not in self._pods:
            self._created[pod.uid] = pod.resource_version
            self._put(pod)

    def mark_deleted(self, uid: str) -> None:
        """Record that a pod was deleted: it is terminating, or does not exist any more."""
        pod = self._pods.get(uid)
        if pod is not None and not pod.terminating:
            self._deleted.add(uid)
            self._put(self._with_own_writes(pod))

    def expect_finalizer_removed(self, uid: str) -> None:
        """Record that the finalizer of a pod is being removed: it counts as accounted for."""
        pod = self._pods.get(uid)
        if pod is not None and pod.finalizer:
            self._finalizer_removed.add(uid)
            self._put(self._with_own_writes(pod))

    def restore_finalizer(self, uid: str) -> None:
        """Undo :meth:`expect_finalizer_removed` after a failed request."""
        if uid in self._finalizer_removed:
            self._finalizer_removed.discard(uid)
            self._put(replace(self._pods[uid], finalizer=True))

    def with_traits(self, traits: JobTraits) -> "BatchPodTracker":
        """Return a tracker of the same pods after the Job's completions have changed."""
        tracker = BatchPodTracker(traits)
        tracker._created = self._created
        tracker._deleted = self._deleted
        tracker._finalizer_removed = self._finalizer_removed
        for pod in self._pods.values():
            tracker._put(pod)
        return tracker

    # Reads.

    def __len__(self) -> int:
        """Number of pods."""
        return len(self._pods)

    def get(self, uid: str) -> BatchPod | None:
        """Return a pod."""
        return self._pods.get(uid)

    def has_finalizer(self, uid: str) -> bool:
        """Whether the pod exists with the finalizer, which is not being removed."""
        pod = self._pods.get(uid)
        return pod is not None and pod.finalizer

    @property
    def active(self) -> Collection[BatchPod]:
        """Pods that are neither finished nor terminating."""
        return self._groups["active"].values()

    @property
    def stopping(self) -> Collection[BatchPod]:
        """Pods that are terminating and not finished."""
        return self._groups["stopping"].values()

    @property
    def ended(self) -> Collection[BatchPod]:
        """Pods with the finalizer that are finished or terminating."""
        return self._groups["ended"].values()

    @property
    def failing(self) -> Collection[BatchPod]:
        """Failed pods that match a FailJob rule."""
        return self._groups["failing"].values()

    @property
    def mismatched(self) -> Collection[BatchPod]:
        """Pods that the selector does not match any more."""
        return self._groups["mismatched"].values()

    @property
    def misplaced(self) -> Collection[BatchPod]:
        """Active pods of an Indexed Job without one of its indexes."""
        return self._groups["misplaced"].values()

    @property
    def duplicated(self) -> list[tuple[BatchPod, ...]]:
        """The active pods of each index that has several."""
        return [tuple(self._by_index[index].values()) for index in sorted(self._duplicated)]

    @property
    def active_indexes(self) -> Mapping[int, Mapping[str, BatchPod]]:
        """Active pods by index and uid."""
        return MappingProxyType(self._by_index)

    def with_finalizer(self) -> Iterator[BatchPod]:
        """Iterate over all pods that are not accounted for."""
        return (pod for pod in self._pods.values() if pod.finalizer)

    def first_free(self, count: int, *, is_excluded: Callable[[int], bool]) -> list[int]:
        """Return the *count* lowest indexes that need a pod.

        They have no active pod (nor a terminating one, if the Job waits for those) and are not
        excluded. An excluded index must stay excluded while its pods do not change.
        """
        waits = self.traits.replaces_only_failed

        def is_occupied(index: int) -> bool:
            if index in self._by_index or (waits and index in self._awaited_by_index):
                return True
            return is_excluded(index)

        return self._free.first(count, limit=self.traits.completions, is_occupied=is_occupied)

    def examine_all_indexes(self) -> None:
        """Examine every index again: excluded ones may be free now."""
        self._free = FreeIndexes()

    def __iter__(self) -> Iterator[BatchPod]:
        """Iterate over all pods."""
        return iter(self._pods.values())

    # Bookkeeping.

    def _with_own_writes(self, pod: BatchPod) -> BatchPod:
        deleted = pod.uid in self._deleted and not pod.terminating
        removed = pod.uid in self._finalizer_removed and pod.finalizer
        if not deleted and not removed:
            return pod
        return replace(
            pod,
            terminating=pod.terminating or deleted,
            finalizer=pod.finalizer and not removed,
        )

    def _put(self, pod: BatchPod) -> None:
        old = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        if old is not None:
            self._discard(old)
        self._include(pod)

    def _include(self, pod: BatchPod) -> None:
        """Add *pod* to every group and number that it belongs to."""
        for name, belongs in _GROUPS.items():
            if belongs(pod, self.traits):
                self._groups[name][pod.uid] = pod
        self._count(pod, 1)
        if pod.index is not None and self._has_index(pod):
            same = self._by_index.setdefault(pod.index, {})
            same[pod.uid] = pod
            if len(same) > 1:
                self._duplicated.add(pod.index)

    def _discard(self, pod: BatchPod) -> None:
        """Remove *pod* from every group and number that it belongs to."""
        for pods in self._groups.values():
            pods.pop(pod.uid, None)
        self._count(pod, -1)
        if pod.index is not None and self._has_index(pod):
            same = self._by_index[pod.index]
            del same[pod.uid]
            if len(same) < 2:
                self._duplicated.discard(pod.index)
            if not same:
                del self._by_index[pod.index]
        if pod.index is not None:
            self._free.release(pod.index)

    def _has_index(self, pod: BatchPod) -> bool:
        """Whether *pod* is active, and has an index of the Job."""
        return self.traits.indexed and pod.active and self.traits.has_index(pod.index)

    def _count(self, pod: BatchPod, number: int) -> None:
        """Add *number* times what *pod* contributes to the numbers."""
        if pod.active:
            self.ready += number * pod.ready
        if pod.phase in _RESTARTING:
            self.restarts += number * pod.restarts
        if pod.may_run:
            self.awaited += number
            if pod.index is not None:
                count = self._awaited_by_index.pop(pod.index, 0) + number
                if count:
                    self._awaited_by_index[pod.index] = count
