"""What a grouper knows: the PodGroup of a pod, and the gang that the pod's owner describes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...model.base import ApiStruct
from ...model.meta import ObjectMeta, OwnerReference
from ...model.names import PODGROUP_MIN_MEMBER, Resource
from ...model.pod_resources import PodResources
from ...model.podgroup import min_member
from ...model.validation import dns1123_subdomain_error
from ..core_types import Pod


class RoleSpec(PodResources, frozen=True):
    """Fields of a pod template's spec."""

    scheduler_name: str = ""
    priority_class_name: str = ""


class RoleTemplate(ApiStruct, frozen=True):
    """A pod template in an owner's spec."""

    metadata: ObjectMeta = ObjectMeta()
    spec: RoleSpec = RoleSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Equal pods of a gang."""

    name: str
    count: int
    """How many must run for the gang to start."""
    spec: PodResources
    labels: Mapping[str, str]
    """Labels of these pods alone."""
    unit: int = 0
    """Pods of one sub-group; 0 if all are one."""
    unit_labels: tuple[str, ...] = ()
    """Labels whose values distinguish the sub-groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """The gang that an owner describes."""

    owner: OwnerReference | None
    """Owner of the PodGroup; ``None``: it is deleted with the last pod."""
    roles: Sequence[Role] = ()
    min_member: int | None = None
    """``None``: all pods of the roles."""
    reserves_all: bool = False
    """Whether the queue must have capacity for all pods of the roles, not for the minimum alone."""
    queue: str = ""
    priority_class_name: str = ""
    annotations: Mapping[str, str]
    """Annotations of the owner, which the PodGroup inherits."""

    @property
    def size(self) -> int:
        """How many pods must run together: as in the annotation of the owner, or its fields."""
        if PODGROUP_MIN_MEMBER in self.annotations:
            return min_member(self.annotations)
        if self.min_member is not None:
            return max(self.min_member, 1)
        return max(self.total, 1)

    @property
    def total(self) -> int:
        """Number of the pods of all roles."""
        return sum(role.count for role in self.roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The PodGroup of a pod, and the object that describes the gang."""

    podgroup: str
    owner: str = ""
    """Name of the object; empty if there is none to read."""
    owner_uid: str = ""
    """Its uid, if the pod has that."""


class Described(ApiStruct, frozen=True):
    """An owner of pods; each grouper adds the fields of its spec."""

    metadata: ObjectMeta = ObjectMeta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouper:
    """Gangs of one kind; all functions are pure."""

    name: str
    """Of the flag ``--groupers``."""
    membership: Callable[[Pod], Membership | None]
    """Returns ``None`` for a pod of other kinds."""
    gang: Callable[[Any, Sequence[Pod]], Gang]
    """Takes the owner, as a :attr:`view`, and the unfinished pods of the PodGroup.

    Without a :attr:`resource` the owner is ``None``."""
    resource: Resource | None = None
    view: type[Described] = Described


def owner_reference(owner: Described, resource: Resource) -> OwnerReference:
    """Return a reference to *owner*; its deletion does not wait for the PodGroup."""
    return OwnerReference(
        api_version=resource.api_version,
        kind=resource.kind,
        name=owner.metadata.name,
        uid=owner.metadata.uid,
        controller=True,
    )


def podgroup_name(*names: str) -> str:
    """Return the name of a PodGroup; empty if labels of a pod, which users write, are no names."""
    name = "-".join(("podgroup", *names))
    return "" if not all(names) or dns1123_subdomain_error(name) else name
