"""The PodGroup of Kubernetes itself (``scheduling.k8s.io``).

Pods name it in ``spec.schedulingGroup``.

Version v1alpha2 is that of Kubernetes 1.36, v1beta1 that of 1.37. They differ in the name of the
condition, in ``disruptionMode``, and in fields of v1beta1 alone; one type reads both.
"""

from .base import ApiStruct
from .meta import Condition, ObjectMeta
from .names import NATIVE_PODGROUPS, NATIVE_PODGROUPS_BETA, Resource

SCHEDULED_CONDITIONS = {
    NATIVE_PODGROUPS: "PodGroupScheduled",
    NATIVE_PODGROUPS_BETA: "PodGroupInitiallyScheduled",
}
"""By version, the condition of whether the group was scheduled once."""

_Mode = str | dict[str, object]
_ALL: tuple[_Mode, ...] = ("PodGroup", {"all": {}})
_SINGLE: tuple[_Mode, ...] = ("", "Pod", {"single": {}}, {})


class PodSchedulingGroup(ApiStruct, frozen=True):
    """``spec.schedulingGroup`` of a pod: the PodGroup that it belongs to."""

    pod_group_name: str = ""


class GangPolicy(ApiStruct, frozen=True):
    """At least *min_count* pods start together."""

    min_count: int = 1


class SchedulingPolicy(ApiStruct, frozen=True):
    """Either *basic*, each pod alone, or *gang*."""

    basic: dict[str, object] | None = None
    gang: GangPolicy | None = None


class TopologyKey(ApiStruct, frozen=True):
    """A label of nodes: all pods of the group run on nodes with one value of it."""

    key: str = ""


class SchedulingConstraints(ApiStruct, frozen=True):
    """Constraints on the nodes of the group."""

    topology: tuple[TopologyKey, ...] = ()


class GroupResourceClaim(ApiStruct, frozen=True):
    """A claim that the pods of the group share."""

    name: str = ""


class NativePodGroupSpec(ApiStruct, frozen=True):
    """What the group needs to start, and what may be evicted of it."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    resource_claims: tuple[GroupResourceClaim, ...] = ()
    disruption_mode: str | dict[str, object] = ""
    priority: int | None = None
    preemption_policy: str = ""
    parent_composite_pod_group_name: str = ""

    @property
    def topology_key(self) -> str:
        """The label whose value all nodes of the group have in common; empty for any nodes."""
        constraints = self.scheduling_constraints
        return constraints.topology[0].key if constraints and constraints.topology else ""

    @property
    def is_evicted_whole(self) -> bool:
        """Whether all pods are evicted if one is."""
        return self.disruption_mode in _ALL

    def unsupported(self) -> str:
        """Return which field is not implemented, so that the pods may not start; or nothing."""
        if self.resource_claims:
            return "spec.resourceClaims: dynamic resource allocation is not supported"
        if self.parent_composite_pod_group_name:
            return "spec.parentCompositePodGroupName: groups of groups are not supported"
        constraints = self.scheduling_constraints
        if constraints is not None and len(constraints.topology) > 1:
            return "spec.schedulingConstraints.topology: one key is supported"
        if self.disruption_mode not in _ALL and self.disruption_mode not in _SINGLE:
            return "spec.disruptionMode: the mode is not known"
        policy = self.scheduling_policy
        if policy.gang is None and policy.basic is None:
            return "spec.schedulingPolicy: the policy is not known"
        return ""


class NativePodGroupStatus(ApiStruct, frozen=True):
    """What schedulers report."""

    conditions: tuple[Condition, ...] = ()


class NativePodGroup(ApiStruct, frozen=True):
    """A group of pods that are scheduled together."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NativePodGroupSpec = NativePodGroupSpec()
    status: NativePodGroupStatus = NativePodGroupStatus()

    def scheduled_condition(self, resource: Resource) -> Condition | None:
        """Return the condition of whether the group was scheduled, in the version of *resource*."""
        kind = SCHEDULED_CONDITIONS[resource]
        return next((each for each in self.status.conditions if each.type == kind), None)
