"""Events of the scheduler cache: what the scheduling loop applies between two cycles."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from ...model.podgroup import PodGroup
from ...model.queue import Queue
from .core_types import (
    CSINode,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PriorityClass,
    StorageClass,
)

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


class PVEvent(ObjectEvent[PersistentVolume]):
    """A PersistentVolume was added, updated or deleted."""


class StorageClassEvent(ObjectEvent[StorageClass]):
    """A storage class was added, updated or deleted."""


class CSINodeEvent(ObjectEvent[CSINode]):
    """A CSINode was added, updated or deleted."""


class NamespaceEvent(ObjectEvent[Namespace]):
    """A namespace was added, updated or deleted."""


class PriorityClassEvent(ObjectEvent[PriorityClass]):
    """A priority class was added, updated or deleted."""


@dataclass(frozen=True, slots=True)
class PlacementForgotten:
    """The binder could not bind the pod with *uid*: its resources are free again."""

    uid: str


@dataclass(frozen=True, slots=True)
class Recheck:
    """The gang *key* is due for another report."""

    key: str


ContextEvent = (
    PVCEvent | PVEvent | StorageClassEvent | CSINodeEvent | NamespaceEvent | PriorityClassEvent
)
"""Events of objects that pods or gangs only refer to."""

CacheEvent = (
    PodEvent | NodeEvent | PodGroupEvent | QueueEvent | PlacementForgotten | Recheck | ContextEvent
)
