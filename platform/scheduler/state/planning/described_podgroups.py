"""PodGroups that are not stored, but described by their only pod.

A gang has the PodGroup that is stored, or else the described one, which exists as long as the pod
that describes it. Its status is kept in memory: a pod with a node has a running group, one with a
nominated node an admitted one. Where one replaces the other, the status continues.
"""

from typing import NamedTuple

from ....model import names
from ....model.described_podgroup import podgroup_of
from ....model.pod import FINISHED
from ....model.podgroup import PodGroup, PodGroupPhase, PodGroupStatus
from ..core_types import Pod
from ..gangs.gang import Gang
from .cache_protocol import PlanningCache


class _Described(NamedTuple):
    """A PodGroup, the text that describes it, and the uid of the pod with that text."""

    podgroup: PodGroup
    text: str
    uid: str


class DescribedPodGroups:
    """The described PodGroups of a scheduler cache; applies the events of pods and PodGroups."""

    def __init__(self, cache: PlanningCache) -> None:
        """Start without any."""
        self._cache = cache
        self._by_gang: dict[str, _Described] = {}
        """By the key of the gang."""

    def __len__(self) -> int:
        """Number of gangs with a description."""
        return len(self._by_gang)

    def update_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Add, update or delete a pod."""
        if new is not None and names.PODGROUP in new.metadata.annotations:
            self._add(new)
        self._cache.update_pod(old, new)
        if old is not None and self._by_gang and (new is None or _key(new) != _key(old)):
            self._discard(old)

    def update_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """Add, update or delete a stored PodGroup."""
        key = (new or old or PodGroup()).metadata.key
        gang = self._cache.gangs.get(key) if key in self._by_gang else None
        if gang is None:
            self._cache.update_podgroup(old, new)
            return
        before, phase, status = gang.podgroup, gang.phase, gang.last_status
        self._cache.update_podgroup(old, new)
        if new is None:
            self._cache.update_podgroup(None, self._by_gang[key].podgroup)
        if before is not None and before.is_stored is (new is not None):
            return
        if new is None or not new.status.phase:
            gang.phase, gang.last_status = phase, status

    def _add(self, pod: Pod) -> None:
        key, text, uid = _key(pod), pod.metadata.annotations[names.PODGROUP], pod.metadata.uid
        known = self._by_gang.get(key)
        if known and (known.text, known.uid) == (text, uid):
            return
        if not self._cache.is_of_gang_scheduler(pod):
            return
        podgroup = podgroup_of(pod.metadata, _initial_status(pod))
        if podgroup is None:
            return
        self._by_gang[key] = _Described(podgroup, text, uid)
        gang = self._cache.gangs.get(key)
        if gang is None or gang.podgroup is None or not gang.podgroup.is_stored:
            self._cache.update_podgroup(None, podgroup)
        elif not gang.phase:  # stored, and not reported on before a restart
            gang.phase, gang.last_status = podgroup.status.phase, podgroup.status

    def _discard(self, pod: Pod) -> None:
        """Drop the description with its pod."""
        key = _key(pod)
        known = self._by_gang.get(key)
        if known is None or known.uid != pod.metadata.uid:
            return
        del self._by_gang[key]
        gang = self._cache.gangs.get(key)
        if gang is not None and _is_described(gang):
            self._cache.update_podgroup(known.podgroup, None)


def _key(pod: Pod) -> str:
    meta = pod.metadata
    return f"{meta.namespace}/{meta.annotations.get(names.GROUP_NAME, '')}"


def _is_described(gang: Gang) -> bool:
    return gang.podgroup is not None and not gang.podgroup.is_stored


def _initial_status(pod: Pod) -> PodGroupStatus:
    if not pod.spec.node_name:
        # Pods were evicted for one that has a nominated node, so it was admitted.
        nominated = pod.status.nominated_node_name
        return PodGroupStatus(phase=PodGroupPhase.INQUEUE if nominated else "")
    finished = pod.status.phase in FINISHED
    return PodGroupStatus(phase=PodGroupPhase.COMPLETED if finished else PodGroupPhase.RUNNING)
