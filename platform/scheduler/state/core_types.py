"""What the scheduler reads of core objects; nothing else of them is decoded.

Parts that are only ever looked at as a whole stay raw or plain, so that decoding a pod costs
microseconds.
"""

from ...model.base import ApiStruct
from ...model.meta import Condition, ObjectMeta
from ...model.pod_resources import ContainerResources

Quantities = dict[str, str | int | float]


class Toleration(ApiStruct, frozen=True):
    """A taint that the pod puts up with; an empty *key* with ``Exists`` means every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class NodeSelectorRequirement(ApiStruct, frozen=True):
    """One test of a label or field of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Requirements that must all hold; a term without any matches nothing."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(ApiStruct, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(ApiStruct, frozen=True):
    """A term that a node gets *weight* points for."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ApiStruct, frozen=True):
    """What nodes the pod must, and would like to, run on."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class Affinity(ApiStruct, frozen=True):
    """The part of ``spec.affinity`` that speaks of nodes."""

    node_affinity: NodeAffinity | None = None


class PodSchedulingGate(ApiStruct, frozen=True):
    """Something that holds the pod back; it is not placed before the last one is gone."""

    name: str = ""


class PersistentVolumeClaimVolumeSource(ApiStruct, frozen=True):
    """A claim that the pod names."""

    claim_name: str = ""


class Volume(ApiStruct, frozen=True):
    """A volume, as far as a claim stands behind it."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    ephemeral: dict[str, object] | None = None


class PodSpec(ApiStruct, frozen=True):
    """What the pod asks for."""

    scheduler_name: str = ""
    node_name: str = ""
    priority: int | None = None
    containers: tuple[ContainerResources, ...] = ()
    init_containers: tuple[ContainerResources, ...] = ()
    overhead: Quantities = {}
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    volumes: tuple[Volume, ...] = ()


class PodStatus(ApiStruct, frozen=True):
    """How far the pod is."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class Pod(ApiStruct, frozen=True):
    """A pod as the scheduler sees it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(ApiStruct, frozen=True):
    """What keeps pods off a node unless they tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(ApiStruct, frozen=True):
    """Who may run on the node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(ApiStruct, frozen=True):
    """What the node has to give."""

    allocatable: Quantities = {}


class Node(ApiStruct, frozen=True):
    """A node as the scheduler sees it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PersistentVolumeClaimSpec(ApiStruct, frozen=True):
    """What a claim is bound to."""

    volume_name: str = ""


class PersistentVolumeClaimStatus(ApiStruct, frozen=True):
    """How far a claim is."""

    phase: str = ""


class PersistentVolumeClaim(ApiStruct, frozen=True):
    """A PersistentVolumeClaim as the scheduler sees it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class PriorityClass(ApiStruct, frozen=True):
    """A name for a priority; *global_default* makes it that of groups that name none."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
