"""The fields of core objects that the scheduler reads; others are not decoded, which keeps decoding
a pod at microseconds."""

import msgspec

from ...model.base import ApiStruct
from ...model.meta import Condition, ObjectMeta
from ...model.pod_resources import ContainerResources, Resources

Quantities = dict[str, str | int | float]


class Toleration(ApiStruct, frozen=True):
    """A tolerated taint; an empty *key* with ``Exists`` tolerates every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeSelectorRequirement(ApiStruct, frozen=True):
    """A requirement on a label or field of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Requirements that are ANDed; a term without any matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(ApiStruct, frozen=True):
    """Terms that are ORed."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(ApiStruct, frozen=True):
    """A term that adds *weight* to the score of a matching node."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ApiStruct, frozen=True):
    """Required and preferred node affinity."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(ApiStruct, frozen=True):
    """A term of pod affinity or anti-affinity; its selectors are not decoded yet."""

    topology_key: str = ""


class PodAffinity(ApiStruct, frozen=True):
    """Required affinity or anti-affinity between pods."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()


class Affinity(ApiStruct, frozen=True):
    """``spec.affinity``, without preferences between pods."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(ApiStruct, frozen=True):
    """A constraint on the spread of pods; its selectors are not decoded yet."""

    topology_key: str = ""
    when_unsatisfiable: str = ""


class PodSchedulingGate(ApiStruct, frozen=True):
    """A gate; the pod is not scheduled before all its gates are removed."""

    name: str = ""


class PersistentVolumeClaimVolumeSource(ApiStruct, frozen=True):
    """A reference to a PVC."""

    claim_name: str = ""


class Volume(ApiStruct, frozen=True):
    """A volume, if it limits the nodes of its pod."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    ephemeral: dict[str, object] | None = None
    aws_elastic_block_store: dict[str, object] | None = None
    gce_persistent_disk: dict[str, object] | None = None
    iscsi: dict[str, object] | None = None
    rbd: dict[str, object] | None = None


class ContainerPort(ApiStruct, frozen=True):
    """A port of a container; without *host_port* it does not concern the scheduler."""

    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


class Container(ContainerResources, frozen=True):
    """A container or init container."""

    ports: tuple[ContainerPort, ...] = ()


class PodResourceClaim(ApiStruct, frozen=True):
    """A claim of devices."""

    name: str = ""


class PodSchedulingGroup(ApiStruct, frozen=True):
    """The PodGroup of Kubernetes itself that a pod belongs to."""

    pod_group_name: str = ""


class PodSpec(ApiStruct, frozen=True):
    """The spec of a pod."""

    scheduler_name: str = ""
    node_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources = Resources()
    overhead: Quantities = {}
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    volumes: tuple[Volume, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    scheduling_group: PodSchedulingGroup | None = None


class PodStatus(ApiStruct, frozen=True):
    """The status of a pod."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    nominated_node_name: str = ""


class Pod(ApiStruct, frozen=True):
    """A pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(ApiStruct, frozen=True):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(ApiStruct, frozen=True):
    """The spec of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(ApiStruct, frozen=True):
    """The status of a node."""

    allocatable: Quantities = {}


class Node(ApiStruct, frozen=True):
    """A node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PersistentVolumeClaimSpec(ApiStruct, frozen=True):
    """The spec of a PVC."""

    volume_name: str = ""


class PersistentVolumeClaimStatus(ApiStruct, frozen=True):
    """The status of a PVC."""

    phase: str = ""


class PersistentVolumeClaim(ApiStruct, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class PriorityClass(ApiStruct, frozen=True):
    """A priority class; PodGroups without one have the *global_default*."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
