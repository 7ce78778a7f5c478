"""Events of the scheduler cache: what the scheduling loop applies between two cycles.

An event of an object has its *old* and its *new* version, as an informer delivers them: *old* is
``None`` for an added object, *new* for a deleted one.
"""

from dataclasses import dataclass

from ...model.podgroup import PodGroup
from ...model.queue import Queue
from .core_types import Node, PersistentVolumeClaim, Pod, PriorityClass


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A pod was added, updated or deleted."""

    old: Pod | None
    new: Pod | None


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A node was added, updated or deleted."""

    old: Node | None
    new: Node | None


@dataclass(frozen=True, slots=True)
class PodGroupEvent:
    """A PodGroup was added, updated or deleted."""

    old: PodGroup | None
    new: PodGroup | None


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """A queue was added, updated or deleted."""

    old: Queue | None
    new: Queue | None


@dataclass(frozen=True, slots=True)
class PVCEvent:
    """A PersistentVolumeClaim was added, updated or deleted."""

    old: PersistentVolumeClaim | None
    new: PersistentVolumeClaim | None


@dataclass(frozen=True, slots=True)
class PriorityClassEvent:
    """A priority class was added, updated or deleted."""

    old: PriorityClass | None
    new: PriorityClass | None


@dataclass(frozen=True, slots=True)
class PlacementForgotten:
    """The binder could not bind the pod with *uid*: its resources are free again."""

    uid: str


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
    | PlacementForgotten
    | Recheck
)
