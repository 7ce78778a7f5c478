"""Types common to all kinds (``meta/v1``). Times are RFC 3339 text, as on the wire."""

from collections.abc import Mapping
from typing import Protocol

from .base import ApiStruct


class OwnerReference(ApiStruct, frozen=True):
    """Owner of an object; the garbage collector matches it by uid."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiStruct, frozen=True):
    """``metadata`` of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return ``namespace/name``, or ``name`` for a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def controller(self) -> OwnerReference | None:
        """Return the owner that controls the object, if any."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None

    @property
    def identity(self) -> str:
        """Return ``namespace/name/uid``, which a reference to this object names in full."""
        return f"{self.namespace}/{self.name}/{self.uid}"

    def owner_identity(self, owner: OwnerReference) -> str:
        """Return the :attr:`identity` of the object that *owner*, a reference of this one, names.

        The API server stores references unchecked. A uid alone would also join objects of another
        namespace, whose authors may not even read the owner.
        """
        return f"{self.namespace}/{owner.name}/{owner.uid}"

    def controls(self, child: "ObjectMeta") -> bool:
        """Whether *child* is controlled by this object: in its namespace, by its name and uid."""
        owner = child.controller
        return owner is not None and child.owner_identity(owner) == self.identity

    def owns(self, child: "ObjectMeta") -> bool:
        """Whether *child* has a reference to this object: in its namespace, by its name and uid."""
        return any(child.owner_identity(each) == self.identity for each in child.owner_references)


def preconditions(meta: ObjectMeta) -> dict[str, str]:
    """Return the ``metadata`` of a patch that applies to this object and version only."""
    return {"uid": meta.uid, "resourceVersion": meta.resource_version}


class MetadataOnly(ApiStruct, frozen=True):
    """An object of which only the metadata is read."""

    metadata: ObjectMeta = ObjectMeta()


class HasMeta(Protocol):
    """Any typed object that carries metadata."""

    @property
    def metadata(self) -> ObjectMeta:
        """The object's metadata."""
        ...


class Condition(ApiStruct, frozen=True):
    """One entry of ``status.conditions``, as in core kinds."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_probe_time: str | None = None


class ObjectReference(ApiStruct, frozen=True):
    """Reference to the object that an Event regards."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class LabelSelector(ApiStruct, frozen=True):
    """``matchLabels`` and ``matchExpressions``, all of which must hold."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple["LabelRequirement", ...] = ()


class LabelRequirement(ApiStruct, frozen=True):
    """One expression of a label selector; *operator* is In, NotIn, Exists or DoesNotExist."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


ResourceList = Mapping[str, str | int | float]
"""Quantities by resource name, as on the wire (text or a bare number)."""
