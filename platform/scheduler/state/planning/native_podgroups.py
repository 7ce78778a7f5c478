"""PodGroups of Kubernetes itself, which are scheduled like any other gang.

They name no scheduler, so a gang has its PodGroup while pods of it name this one. Nothing else is
admitted to a queue, reserved or reported. Where an API server serves two versions, the later one is
read.
"""

from typing import NamedTuple

from ....model.names import NATIVE_PODGROUPS_BETA, Resource
from ....model.native_podgroup import NativePodGroup
from ....model.podgroup import PodGroup, PodGroupPhase
from ..core_types import Pod
from ..gangs.native_gang import key_of, native_key, translate
from .cache_protocol import PlanningCache
from .described_podgroups import DescribedPodGroups


class _Stored(NamedTuple):
    resource: Resource
    podgroup: NativePodGroup


class NativePodGroups:
    """Applies the events of these PodGroups, and of all pods, to the scheduler cache."""

    def __init__(self, cache: PlanningCache, described: DescribedPodGroups) -> None:
        """Start without any; *described* gets the events of pods without such a PodGroup."""
        self._cache = cache
        self._described = described
        self._stored: dict[str, _Stored] = {}
        """By the key of the gang."""
        self._members: dict[str, set[str]] = {}
        """The uids of its pods of this scheduler."""
        self._given: dict[str, PodGroup] = {}
        """What the gangs have."""

    def update_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Add, update or delete a pod."""
        pod = new or old
        key = native_key(pod) if pod is not None else ""
        if pod is None or not key or not self._cache.schedules(pod):
            self._described.update_pod(old, new)
            return
        uid = pod.metadata.uid
        members = self._members.setdefault(key, set())
        if new is not None:
            members.add(uid)
            if key in self._stored and key not in self._given:
                self._give(key, is_admitted=_has_node(new))
        self._cache.update_pod(old, new)
        if new is None:
            members.discard(uid)
            if not members:
                del self._members[key]
                self._take(key)

    def update_podgroup(
        self, resource: Resource, old: NativePodGroup | None, new: NativePodGroup | None
    ) -> None:
        """Add, update or delete a PodGroup in the version of *resource*."""
        meta = (new or old or NativePodGroup()).metadata
        key = key_of(meta.namespace, meta.name)
        known = self._stored.get(key)
        is_same = known is not None and known.podgroup.metadata.uid == meta.uid
        if is_same and known is not None and known.resource == NATIVE_PODGROUPS_BETA != resource:
            return
        if new is None:
            if is_same:
                del self._stored[key]
                self._take(key)
            return
        self._stored[key] = _Stored(resource, new)
        if not is_same:
            self._take(key)
        if key in self._members:
            gang = self._cache.gangs.get(key)
            tasks = gang.tasks.values() if gang is not None else ()
            self._give(key, is_admitted=any(task.node for task in tasks))

    def _give(self, key: str, *, is_admitted: bool) -> None:
        """Let the gang have its PodGroup, or the new state of it."""
        stored, before = self._stored[key], self._given.get(key)
        phase = PodGroupPhase.INQUEUE if is_admitted else ""
        given = translate(stored.podgroup, stored.resource, phase=phase)
        self._given[key] = given
        self._cache.update_podgroup(before, given)

    def _take(self, key: str) -> None:
        given = self._given.pop(key, None)
        if given is not None:
            self._cache.update_podgroup(given, None)


def _has_node(pod: Pod) -> bool:
    """Return whether *pod* was scheduled, or pods were evicted for it: its gang was admitted."""
    return bool(pod.spec.node_name or pod.status.nominated_node_name)
