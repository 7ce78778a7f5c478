"""PodGroups that are not stored, but described by their pod, as the counts of queues see them.

Such a PodGroup is pending or running, as its pod has a node or not. It is not counted if the pod
has finished, or if the PodGroup is stored after all.
"""

from collections.abc import Callable
from functools import lru_cache

from ..model.base import ApiStruct
from ..model.described_podgroup import decode, podgroup_of
from ..model.meta import ObjectMeta
from ..model.names import GROUP_NAME, NO_PODGROUP, PODGROUP
from ..model.pod import FINISHED, PodPhaseStatus
from ..model.podgroup import PodGroup, PodGroupPhase, PodGroupStatus
from .counts import QueueCounts, queue_of

SELECTOR = f"{PODGROUP}={NO_PODGROUP}"
"""Label selector of the pods."""


class PodSpec(ApiStruct, frozen=True):
    """The node of a pod."""

    node_name: str = ""


class Pod(ApiStruct, frozen=True):
    """A pod that describes its PodGroup."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodPhaseStatus = PodPhaseStatus()


def queue_of_pod(pod: Pod) -> str | None:
    """Return the name of the queue that counts *pod*, not by its label: users may change that."""
    return _queue_of_description(pod.metadata.annotations.get(PODGROUP, ""))


@lru_cache(maxsize=256)
def _queue_of_description(text: str) -> str | None:
    """Return the queue of a description; each shard asks, and equal jobs have equal ones."""
    described = decode(text)
    return queue_of(PodGroup(spec=described.spec)) if described is not None else None


class DescribedCounts:
    """Counts described PodGroups in the counts of their queues."""

    def __init__(self, counts: QueueCounts, is_stored: Callable[[str], bool]) -> None:
        """*is_stored* returns whether the PodGroup with a key exists."""
        self._counts = counts
        self._is_stored = is_stored
        self._pods: dict[str, dict[str, Pod]] = {}
        """Pods by the key of their PodGroup and by uid."""
        self._counted: dict[str, PodGroup] = {}

    def observe_pod(self, old: Pod | None, new: Pod | None) -> set[str]:
        """Apply a change of a pod; return the queues whose counts changed."""
        changed: set[str] = set()
        if old is not None:
            key = _key(old)
            pods = self._pods.get(key, {})
            pods.pop(old.metadata.uid, None)
            if not pods:
                self._pods.pop(key, None)
            if new is None or _key(new) != key:
                changed |= self.update(key)
        if new is not None:
            key = _key(new)
            self._pods.setdefault(key, {})[new.metadata.uid] = new
            changed |= self.update(key)
        return changed

    def update(self, key: str) -> set[str]:
        """Count the PodGroup with *key* as it is now; return the queues whose counts changed."""
        before, after = self._counted.pop(key, None), self._podgroup(key)
        if after is not None:
            self._counted[key] = after
        return self._counts.observe(before, after)

    def __len__(self) -> int:
        """Number of counted PodGroups."""
        return len(self._counted)

    def _podgroup(self, key: str) -> PodGroup | None:
        """Return the described PodGroup with *key*: that of its newest unfinished pod."""
        pods = [pod for pod in self._pods.get(key, {}).values() if pod.status.phase not in FINISHED]
        if not pods or self._is_stored(key):
            return None
        newest = max(pods, key=lambda pod: pod.metadata.creation_timestamp or "")
        phase = PodGroupPhase.RUNNING if newest.spec.node_name else PodGroupPhase.PENDING
        return podgroup_of(newest.metadata, PodGroupStatus(phase=phase))


def _key(pod: Pod) -> str:
    meta = pod.metadata
    return f"{meta.namespace}/{meta.annotations.get(GROUP_NAME, '')}"
