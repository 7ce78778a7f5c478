"""Events of the scheduler cache: what the scheduling loop applies between two cycles."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...model.podgroup import PodGroup
from ...model.queue import Queue
from .core_types import Node, PersistentVolumeClaim, Pod, PriorityClass
from .node_usage import NodeUsage
from .resource_quotas import ResourceQuota

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectEvent(Generic[T]):
    """An object was added (*old* is ``None``), updated or deleted (*new* is ``None``)."""

    old: T | None
    new: T | None


class PodEvent(ObjectEvent[Pod]):
    """A pod was added, updated or deleted."""


class NodeEvent(ObjectEvent[Node]):
    """A node was added, updated or deleted."""


class PodGroupEvent(ObjectEvent[PodGroup]):
    """A PodGroup was added, updated or deleted."""


class QueueEvent(ObjectEvent[Queue]):
    """A queue was added, updated or deleted."""


class PVCEvent(ObjectEvent[PersistentVolumeClaim]):
    """A PersistentVolumeClaim was added, updated or deleted."""


class ResourceQuotaEvent(ObjectEvent[ResourceQuota]):
    """A resource quota was added, updated or deleted."""


class PriorityClassEvent(ObjectEvent[PriorityClass]):
    """A priority class was added, updated or deleted."""


@dataclass(frozen=True, slots=True)
class PlacementForgotten:
    """The binder could not bind the pod with *uid*: its resources are free again."""

    uid: str


@dataclass(frozen=True, slots=True)
class NodesMeasured:
    """The utilization of nodes was measured, as it is every *interval* seconds."""

    by_node: Mapping[str, NodeUsage]
    interval: float


@dataclass(frozen=True, slots=True)
class Recheck:
    """The gang *key* is due for another report."""

    key: str


CacheEvent = (
    PodEvent
    | NodeEvent
    | PodGroupEvent
    | QueueEvent
    | PVCEvent
    | PriorityClassEvent
    | ResourceQuotaEvent
    | NodesMeasured
    | PlacementForgotten
    | Recheck
)
