"""The fields of core objects that the scheduler reads; others are not decoded, which keeps decoding
a pod at microseconds."""

import msgspec

from ...model.base import ApiStruct
from ...model.meta import Condition, LabelSelector, ObjectMeta, ObjectReference
from ...model.native_podgroup import PodSchedulingGroup
from ...model.node_selectors import NodeSelector, NodeSelectorTerm
from ...model.pod_resources import ContainerResources, Resources

Quantities = dict[str, str | int | float]


class Toleration(ApiStruct, frozen=True):
    """A tolerated taint; an empty *key* with ``Exists`` tolerates every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class PreferredSchedulingTerm(ApiStruct, frozen=True):
    """A term that adds *weight* to the score of a matching node."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ApiStruct, frozen=True):
    """Required and preferred node affinity."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(ApiStruct, frozen=True):
    """Pods of some namespaces with some labels, in the same domain of *topology_key*.

    The namespaces are *namespaces* and those whose labels match *namespace_selector*; without
    either, that of the pod with the term.
    """

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(ApiStruct, frozen=True):
    """A term that adds *weight* to the score of the nodes of its domains."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(ApiStruct, frozen=True):
    """Required and preferred affinity or anti-affinity between pods."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(ApiStruct, frozen=True):
    """``spec.affinity``."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(ApiStruct, frozen=True):
    """A constraint on the spread of pods over the domains of *topology_key*."""

    topology_key: str = ""
    max_skew: int = 1
    min_domains: int | None = None
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


class PodSchedulingGate(ApiStruct, frozen=True):
    """A gate; the pod is not scheduled before all its gates are removed."""

    name: str = ""


class PersistentVolumeClaimVolumeSource(ApiStruct, frozen=True):
    """A reference to a PVC."""

    claim_name: str = ""


class ImageVolumeSource(ApiStruct, frozen=True):
    """An image that is mounted."""

    reference: str = ""


class Volume(ApiStruct, frozen=True):
    """A volume, if it limits the nodes of its pod."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    ephemeral: dict[str, object] | None = None
    aws_elastic_block_store: dict[str, object] | None = None
    gce_persistent_disk: dict[str, object] | None = None
    iscsi: dict[str, object] | None = None
    rbd: dict[str, object] | None = None
    image: ImageVolumeSource | None = None


class ContainerPort(ApiStruct, frozen=True):
    """A port of a container; without *host_port* it does not concern the scheduler."""

    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


class Container(ContainerResources, frozen=True):
    """A container or init container."""

    name: str = ""
    image: str = ""
    ports: tuple[ContainerPort, ...] = ()


class PodResourceClaim(ApiStruct, frozen=True):
    """A claim of devices: one that exists, or a template for one of the pod."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodResourceClaimStatus(ApiStruct, frozen=True):
    """The claim that was created for a pod from a template."""

    name: str = ""
    resource_claim_name: str = ""


class PodSpec(ApiStruct, frozen=True):
    """The spec of a pod."""

    scheduler_name: str = ""
    node_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
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


class ContainerStatus(ApiStruct, frozen=True):
    """What the kubelet has allocated to a container, and what is in effect."""

    name: str = ""
    allocated_resources: Quantities = {}
    resources: Resources | None = None


class PodStatus(ApiStruct, frozen=True):
    """The status of a pod; its resources are those of the pod as a whole."""

    phase: str = ""
    reason: str = ""
    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    nominated_node_name: str = ""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: Quantities = {}
    resources: Resources | None = None


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


class ContainerImage(ApiStruct, frozen=True):
    """An image that a node has."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeStatus(ApiStruct, frozen=True):
    """The status of a node."""

    allocatable: Quantities = {}
    images: tuple[ContainerImage, ...] = ()


class Node(ApiStruct, frozen=True):
    """A node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PersistentVolumeClaimSpec(ApiStruct, frozen=True):
    """The spec of a PVC."""

    volume_name: str = ""
    storage_class_name: str = ""
    access_modes: tuple[str, ...] = ()
    resources: Resources = Resources()
    selector: LabelSelector | None = None
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str = ""


class PersistentVolumeClaimStatus(ApiStruct, frozen=True):
    """The status of a PVC."""

    phase: str = ""


class PersistentVolumeClaim(ApiStruct, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class CSIVolumeSource(ApiStruct, frozen=True):
    """The volume of a CSI driver."""

    driver: str = ""
    volume_handle: str = ""


class VolumeNodeAffinity(ApiStruct, frozen=True):
    """The nodes that a volume can be used on."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(ApiStruct, frozen=True):
    """The spec of a PV."""

    csi: CSIVolumeSource | None = None
    node_affinity: VolumeNodeAffinity | None = None
    claim_ref: ObjectReference | None = None
    capacity: Quantities = {}
    access_modes: tuple[str, ...] = ()
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str = ""


class PersistentVolumeStatus(ApiStruct, frozen=True):
    """The status of a PV."""

    phase: str = ""


class PersistentVolume(ApiStruct, frozen=True):
    """A PersistentVolume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class TopologyRequirement(ApiStruct, frozen=True):
    """A node label, and the values of which a node has one."""

    key: str = ""
    values: tuple[str, ...] = ()


class TopologyTerm(ApiStruct, frozen=True):
    """Requirements that are ANDed; a term without any matches no node."""

    match_label_expressions: tuple[TopologyRequirement, ...] = ()


class StorageClass(ApiStruct, frozen=True):
    """A storage class."""

    metadata: ObjectMeta = ObjectMeta()
    volume_binding_mode: str = ""
    provisioner: str = ""
    allowed_topologies: tuple[TopologyTerm, ...] = ()


class CSIDriverSpec(ApiStruct, frozen=True):
    """The spec of a CSI driver."""

    storage_capacity: bool = False
    """Whether it publishes how much storage is free."""


class CSIDriver(ApiStruct, frozen=True):
    """A CSI driver."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(ApiStruct, frozen=True):
    """How much storage of a class is free, and for which nodes."""

    metadata: ObjectMeta = ObjectMeta()
    storage_class_name: str = ""
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None
    node_topology: LabelSelector | None = None


class VolumeAttachmentSource(ApiStruct, frozen=True):
    """The volume that is attached."""

    persistent_volume_name: str = ""


class VolumeAttachmentSpec(ApiStruct, frozen=True):
    """The spec of a VolumeAttachment."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(ApiStruct, frozen=True):
    """A volume that is attached, or is to be attached, to a node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


class CSIVolumeLimit(ApiStruct, frozen=True):
    """How many volumes of a driver may be attached to a node."""

    count: int | None = None


class CSINodeDriver(ApiStruct, frozen=True):
    """A CSI driver on a node."""

    name: str = ""
    allocatable: CSIVolumeLimit | None = None


class CSINodeSpec(ApiStruct, frozen=True):
    """The spec of a CSINode."""

    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(ApiStruct, frozen=True):
    """The CSI drivers on the node of the same name."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()


class Namespace(ApiStruct, frozen=True):
    """A namespace; terms on other pods may refer to its labels."""

    metadata: ObjectMeta = ObjectMeta()


class PriorityClass(ApiStruct, frozen=True):
    """A priority class; PodGroups without one have the *global_default*."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
