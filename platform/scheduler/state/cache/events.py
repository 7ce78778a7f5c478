"""Events of the scheduler cache: what the scheduling loop applies between two cycles."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ....model.hypernode import HyperNode
from ....model.names import Resource
from ....model.native_podgroup import NativePodGroup
from ....model.podgroup import PodGroup
from ....model.queue import Queue
from ..core_types import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PriorityClass,
    StorageClass,
    VolumeAttachment,
)
from ..devices.types import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from ..gangs.disruption_budgets import PodDisruptionBudget
from ..nodes.node_usage import NodeUsage, UsedAmounts
from ..nodes.numa_topology import Numatopology
from ..podinfo.default_spread import PodOwner
from .resource_quotas import ResourceQuota

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectEvent(Generic[T]):
    """An object was added (*old* is ``None``), updated or deleted (*new* is ``None``)."""

    old: T | None
    new: T | None


class DeviceEvent(ObjectEvent[T]):
    """An object that describes devices, or a claim of some, was added, updated or deleted."""


class PodEvent(ObjectEvent[Pod]):
    """A pod was added, updated or deleted."""


class NodeEvent(ObjectEvent[Node]):
    """A node was added, updated or deleted."""


class PodGroupEvent(ObjectEvent[PodGroup]):
    """A PodGroup was added, updated or deleted."""


@dataclass(frozen=True, slots=True)
class NativePodGroupEvent:
    """A PodGroup of Kubernetes itself was added, updated or deleted in one of its versions."""

    resource: Resource
    old: NativePodGroup | None
    new: NativePodGroup | None


class QueueEvent(ObjectEvent[Queue]):
    """A queue was added, updated or deleted."""


class PVCEvent(ObjectEvent[PersistentVolumeClaim]):
    """A PersistentVolumeClaim was added, updated or deleted."""


class PVEvent(ObjectEvent[PersistentVolume]):
    """A PersistentVolume was added, updated or deleted."""


class StorageClassEvent(ObjectEvent[StorageClass]):
    """A storage class was added, updated or deleted."""


class CSIDriverEvent(ObjectEvent[CSIDriver]):
    """A CSI driver was added, updated or deleted."""


class CSIStorageCapacityEvent(ObjectEvent[CSIStorageCapacity]):
    """What is free of a storage class was added, updated or deleted."""


class ResourceClaimEvent(DeviceEvent[ResourceClaim]):
    """A claim of devices was added, updated or deleted."""


class ResourceSliceEvent(DeviceEvent[ResourceSlice]):
    """A ResourceSlice was added, updated or deleted."""


class DeviceClassEvent(DeviceEvent[DeviceClass]):
    """A device class was added, updated or deleted."""


class DeviceTaintRuleEvent(DeviceEvent[DeviceTaintRule]):
    """A rule that taints devices was added, updated or deleted."""


class VolumeAttachmentEvent(ObjectEvent[VolumeAttachment]):
    """A VolumeAttachment was added, updated or deleted."""


class CSINodeEvent(ObjectEvent[CSINode]):
    """A CSINode was added, updated or deleted."""


@dataclass(frozen=True, slots=True)
class PodOwnerEvent:
    """A Service, or a controller of pods, of *kind* was added, updated or deleted."""

    kind: str
    old: PodOwner | None
    new: PodOwner | None


class NamespaceEvent(ObjectEvent[Namespace]):
    """A namespace was added, updated or deleted."""


class ResourceQuotaEvent(ObjectEvent[ResourceQuota]):
    """A resource quota was added, updated or deleted."""


class PodDisruptionBudgetEvent(ObjectEvent[PodDisruptionBudget]):
    """A PodDisruptionBudget was added, updated or deleted."""


class HyperNodeEvent(ObjectEvent[HyperNode]):
    """A HyperNode was added, updated or deleted."""


class NumatopologyEvent(ObjectEvent[Numatopology]):
    """The NUMA nodes of a node were added, updated or deleted."""


class PriorityClassEvent(ObjectEvent[PriorityClass]):
    """A priority class was added, updated or deleted."""


@dataclass(frozen=True, slots=True)
class PlacementForgotten:
    """The binder could not bind the pod with *uid*: its resources are free again."""

    uid: str


@dataclass(frozen=True, slots=True)
class EvictionForgotten:
    """The evictor could not evict the pod with *uid*: it keeps its resources."""

    uid: str
    until: float
    """Until when it is not chosen again, as Unix time."""


@dataclass(frozen=True, slots=True)
class NodesMeasured:
    """The utilization of nodes was measured, in percent or as amounts."""

    by_node: Mapping[str, NodeUsage] = field(default_factory=dict)
    amounts: Mapping[str, UsedAmounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeclarationsChanged:
    """Plugins read other fields of *pod* than before, or its default constraints differ."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Recheck:
    """The gang *key* is due for another report."""

    key: str


CacheEvent = (
    PodEvent
    | NodeEvent
    | PodGroupEvent
    | NativePodGroupEvent
    | QueueEvent
    | PVCEvent
    | PodDisruptionBudgetEvent
    | PVEvent
    | StorageClassEvent
    | CSINodeEvent
    | CSIDriverEvent
    | CSIStorageCapacityEvent
    | VolumeAttachmentEvent
    | ResourceClaimEvent
    | ResourceSliceEvent
    | DeviceClassEvent
    | DeviceTaintRuleEvent
    | NamespaceEvent
    | PriorityClassEvent
    | ResourceQuotaEvent
    | HyperNodeEvent
    | NumatopologyEvent
    | NodesMeasured
    | PlacementForgotten
    | EvictionForgotten
    | DeclarationsChanged
    | PodOwnerEvent
    | Recheck
)
