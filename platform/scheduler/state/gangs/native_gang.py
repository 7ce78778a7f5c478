"""PodGroups of Kubernetes itself as the PodGroups that gangs have.

The gang is named after neither kind alone: both may have a PodGroup of one name in a namespace.
"""

import msgspec

from ....model import names
from ....model.meta import Condition
from ....model.names import Resource
from ....model.native_podgroup import NativePodGroup
from ....model.podgroup import PodGroup, PodGroupCondition, PodGroupSpec, PodGroupStatus
from ..core_types import Pod

_PREFIX = "native:"
"""Part of the keys of gangs; no name contains a colon."""

_SCHEDULED = "Scheduled"
_NOT_READ = frozenset((names.MEMBERS, names.PLAN, names.WHY, names.ALLOCATED_HYPERNODE))
"""Annotations that components of Batholith exchange on PodGroups of Volcano."""


class NativeSpec(PodGroupSpec, frozen=True):
    """The spec of a gang, with what PodGroups of Volcano do not have."""

    priority: int | None = None
    """Its priority, if that is not the one of its pods."""

    topology_key: str = ""
    is_evicted_whole: bool = False
    never_preempts: bool = False
    unsupported: str = ""
    """The field for which no pod may start, and why."""


class TranslatedPodGroup(PodGroup, frozen=True):
    """The PodGroup of a gang that has one of Kubernetes itself."""

    resource: Resource = names.NATIVE_PODGROUPS
    """The version in which it was read."""

    observed: Condition | None = None
    """Its condition of whether it was scheduled."""

    @property
    def is_stored(self) -> bool:
        """Whether it is an object of Volcano's kind; its status is written by other means."""
        return False


def native_key(pod: Pod) -> str:
    """Return the key of the gang of *pod*; empty if it names no PodGroup of Kubernetes itself."""
    group = pod.spec.scheduling_group
    if group is None or not group.pod_group_name:
        return ""
    return key_of(pod.metadata.namespace, group.pod_group_name)


def key_of(namespace: str, name: str) -> str:
    """Return the key of the gang of the PodGroup of that name."""
    return f"{namespace}/{_PREFIX}{name}"


def podgroup_key(podgroup: PodGroup) -> str:
    """Return the key of the gang of *podgroup*."""
    meta = podgroup.metadata
    if isinstance(podgroup, TranslatedPodGroup):
        return key_of(meta.namespace, meta.name)
    return meta.key


def podgroup_name(name: str) -> str:
    """Return the name of the PodGroup by the *name* in the key of a gang."""
    return name.removeprefix(_PREFIX)


def translate(native: NativePodGroup, resource: Resource, *, phase: str) -> TranslatedPodGroup:
    """Return the PodGroup of the gang of *native*, which was read as *resource*.

    It has no phase: *phase* is what its pods show.
    """
    meta, spec = native.metadata, native.spec
    gang = spec.scheduling_policy.gang
    kept = {name: text for name, text in meta.annotations.items() if name not in _NOT_READ}
    found = native.scheduled_condition(resource)
    scheduled = found is not None and found.status == "True"
    conditions = (PodGroupCondition(type=_SCHEDULED, status="True"),) if scheduled else ()
    return TranslatedPodGroup(
        metadata=msgspec.structs.replace(meta, annotations=kept),
        spec=NativeSpec(
            min_member=gang.min_count if gang is not None else 1,
            queue=kept.get(names.PODGROUP_QUEUE, ""),
            priority=spec.priority,
            topology_key=spec.topology_key,
            is_evicted_whole=spec.is_evicted_whole,
            never_preempts=spec.preemption_policy == "Never",
            unsupported=spec.unsupported(),
        ),
        status=PodGroupStatus(phase=phase, conditions=conditions),
        resource=resource,
        observed=found,
    )
