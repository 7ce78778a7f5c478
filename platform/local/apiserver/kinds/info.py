"""Descriptions of kinds.

A description drives discovery, routing, selection, printing and validation. The built-in kinds
are listed in :mod:`..builtin.kinds`; custom kinds are built from their definition, see
:mod:`..custom.kinds`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ....model.names import Resource
from ..errors.fields import FieldError
from .conversion import ConversionWebhook, Convert
from .typed_json import decode_metadata

OFFLOAD_THRESHOLD = 64 * 1024
"""Bytes from which an object is handled off the event loop, unless its kind needs a lower limit."""

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CUSTOM_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
"""The same verbs in the order in which kube-apiserver lists them for custom kinds."""


@dataclass(frozen=True, slots=True)
class SubresourceStrategy:
    """How a write of a subresource, whose body is the whole object, changes part of the object."""

    prepare_for_update: Callable[[dict[str, Any], dict[str, Any]], None]
    """Restores in the first object, from the second, what a write may not change in the spec."""

    validate: Callable[[dict[str, Any], dict[str, Any]], list[FieldError]]
    """Validates the first object as an update of the second."""


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource of a kind."""

    name: str
    kind: str
    """Kind of its request and response bodies; often not the object's own."""

    verbs: tuple[str, ...]
    group: str = ""
    version: str = "v1"
    connects: bool = False
    """Whether requests switch to another protocol; those of *kind* are parameters then."""

    status_strategy: "RestStrategy | None" = None
    """How the status is written here, if it is another part of it than through ``status``."""

    strategy: SubresourceStrategy | None = None
    """Of one with the verbs of an object, but for the status."""


def common_subresources(resource: Resource) -> dict[str, Subresource]:
    """Return the subresources that many kinds have, by name."""
    verbs = ("get", "patch", "update")
    return {
        "status": Subresource("status", resource.kind, verbs, resource.group, resource.version),
        "scale": Subresource("scale", "Scale", verbs, "autoscaling"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A printer column, as a custom resource definition declares it."""

    name: str
    type: str = "string"
    json_path: str
    format: str = ""
    description: str = ""
    priority: int = 0


class RestStrategy(Protocol):
    """How objects of one kind are pruned, defaulted and validated."""

    def prune(self, obj: dict[str, Any]) -> list[str]:
        """Remove unknown fields and return their paths.

        Raises:
            MalformedError: a field has a type that cannot be decoded.
        """
        ...

    def default(self, obj: dict[str, Any]) -> None:
        """Set defaults."""
        ...

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[FieldError]:
        """Validate *obj*, and with *old* the update from it; including the metadata."""
        ...

    def validate_status(self, obj: dict[str, Any], old: dict[str, Any]) -> list[FieldError]:
        """Validate a write of ``/status``, which has changed nothing else but metadata."""
        ...

    def warnings(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[str]:
        """Return warnings for a valid *obj*, and with *old* for the update from it."""
        ...

    def prepare_for_create(self, obj: dict[str, Any]) -> None:
        """Set initial values beyond the defaults, e.g. the first phase."""
        ...

    def prepare_for_update(self, obj: dict[str, Any], old: dict[str, Any]) -> None:
        """Restore fields in *obj* that an update may omit but not change."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KindInfo:
    """Description of one kind in one version."""

    resource: Resource
    strategy: RestStrategy
    singular: str
    list_kind: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = VERBS
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    field_labels: Mapping[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    """Field labels other than name and namespace: label to (path, value of a missing field)."""

    fallback_labels: Mapping[str, str] = field(default_factory=dict)
    """Field labels whose value is that of another one while their own field is empty."""

    stored_labels: Mapping[str, str] = field(default_factory=dict)
    """Field labels with another name in the stored objects' kind, and that name."""

    update_needs_rv: bool = False
    """Whether a PUT must have ``metadata.resourceVersion``."""

    orphan_by_default: bool = False
    """Whether a deletion without a propagation policy keeps the dependents."""

    delete_returns_object: bool = False
    """Whether an immediate deletion returns the object."""

    custom: bool = False
    columns: tuple[Column, ...] = ()
    """Printer columns of a custom kind; for built-in kinds see :mod:`..printing`."""

    openapi: Mapping[str, Any] | None = None
    """Schema of a custom kind, as in its definition."""

    scale_paths: Mapping[str, str] = field(default_factory=dict)
    """For a custom kind with ``/scale``: the JSON paths by their names in the definition."""

    storage_version: str = ""
    """Storage version of a custom kind; all others are served from it."""

    offload_threshold: int = OFFLOAD_THRESHOLD
    """Bytes of a body from which validation takes too long for the event loop."""

    generation: str = "never"
    """When ``metadata.generation`` increases: ``spec`` changed, ``all`` but metadata and status
    changed, or ``never``."""

    generation_metadata: str = ""
    """Metadata of which a change increases the generation, too: ``labels`` or ``annotations``."""

    computed: bool = False
    """Whether objects are computed for each request instead of stored; they can only be read."""

    status_on_create: bool = False
    """Whether a create may set the status: kubelets register their node with one."""

    stored_as: Resource | None = None
    """Resource that stores the objects, if this one is a second representation of them."""

    conversion: tuple[Convert, Convert] | None = None
    """Conversion of an object to its stored form, and back, if more than the version differs."""

    conversion_webhook: ConversionWebhook | None = None
    """The webhook of a custom kind without which :attr:`conversion` is not possible."""

    @property
    def has_status(self) -> bool:
        """Whether status is a subresource, so that main resource writes ignore it."""
        return "status" in self.subresources

    def field_value(self, obj: dict[str, Any], label: str) -> str | None:
        """Return the value of *obj* for the field selector *label*.

        ``None`` if the kind has no such label; the value of a missing field is an empty string or
        the zero value of its type.
        """
        metadata = obj.get("metadata", {})
        if label == "metadata.name":
            return str(metadata.get("name", ""))
        if label == "metadata.namespace" and self._selects_namespaces:
            return str(metadata.get("namespace", ""))
        entry = self.field_labels.get(label)
        if entry is None:
            return None
        path, missing = entry
        value: Any = obj
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if not value and label in self.fallback_labels:
            return self.field_value(obj, self.fallback_labels[label])
        if value is None:
            return missing
        return ("true" if value else "false") if isinstance(value, bool) else str(value)

    @property
    def stored_api_version(self) -> str:
        """API version in which objects are stored."""
        resource = self.stored_as or self.resource
        version = self.storage_version or resource.version
        return f"{resource.group}/{version}" if resource.group else version

    @property
    def _selects_namespaces(self) -> bool:
        """Whether ``metadata.namespace`` is a field label; of kinds without one it is empty."""
        own_labels = self.custom or self.field_labels or not self.resource.group
        return self.resource.namespaced or not own_labels

    def to_stored(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return *obj* in the storage version; may modify it."""
        if self.conversion is not None:
            return self.conversion[0](obj)
        obj["apiVersion"] = self.stored_api_version
        return obj

    def from_stored(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return the stored *obj* in this version; may modify it."""
        if self.conversion is not None:
            return self.conversion[1](obj)
        obj["apiVersion"] = self.resource.api_version
        return obj

    def prepare(self, obj: dict[str, Any], *, applied: bool = False) -> list[str]:
        """Prune and default *obj* in place; return the paths of unknown fields.

        As kube-apiserver: a custom object that results from an apply keeps its nulls, which
        validation then rejects; it has no unknown fields.

        Raises:
            MalformedError: the object cannot be decoded as this kind.
        """
        if applied and self.custom:
            unknown = decode_metadata(obj.get("metadata"), self.resource)
        else:
            unknown = self.strategy.prune(obj)
        self.strategy.default(obj)
        return unknown

    def normalize_stored(self, stored: dict[str, Any]) -> None:
        """Add always encoded fields to an object that an older version of Batholith stored.

        Otherwise an update would seem to change fields that its client never sent.
        """
        if not self.custom:
            self.strategy.prune(stored)

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None = None) -> list[FieldError]:
        """Validate a prepared object; with *old* also the update from it."""
        return self.strategy.validate(obj, old)

    def validate_status(
        self, obj: dict[str, Any], old: dict[str, Any], subresource: str = "status"
    ) -> list[FieldError]:
        """Validate a prepared write of ``/status``, or of a part of it."""
        return self._status_strategy(subresource).validate_status(obj, old)

    def warnings(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[str]:
        """Return kube-apiserver's warnings for a valid object, or for an update to it."""
        return self.strategy.warnings(obj, old)

    def before_create(self, obj: dict[str, Any]) -> None:
        """Set the generation and the initial status of a prepared new object.

        It is called after mutations, which do not see these, as in kube-apiserver. Its name and uid
        must be set: generated labels and selectors depend on them. The result may depend on nothing
        but the object and the time, since a write that waits for a webhook is planned again.
        """
        if self.has_status and not self.status_on_create:
            obj.pop("status", None)
        if self.generation != "never":
            obj["metadata"]["generation"] = 1
        self.strategy.prepare_for_create(obj)

    def before_update(self, obj: dict[str, Any], old: dict[str, Any]) -> None:
        """Keep what a write of the main resource may not change, and update the generation."""
        if self.has_status:
            _restore(obj, old, "status")
        _keep_metadata(obj["metadata"], old["metadata"])
        self.strategy.prepare_for_update(obj, old)
        self.update_generation(obj, old)

    def update_generation(self, obj: dict[str, Any], old: dict[str, Any]) -> None:
        """Increase the generation if the desired state of *obj* differs from that of *old*."""
        generation = old["metadata"].get("generation", 0) + self._is_generation_change(obj, old)
        if generation:
            obj["metadata"]["generation"] = generation

    def writes_status(self, subresource: str) -> bool:
        """Whether a write of *subresource* is one of the status, or of a part of it."""
        found = self.subresources.get(subresource)
        return subresource == "status" or (found is not None and found.status_strategy is not None)

    def _status_strategy(self, subresource: str) -> RestStrategy:
        found = self.subresources.get(subresource)
        return (found and found.status_strategy) or self.strategy

    def before_status_update(
        self, obj: dict[str, Any], old: dict[str, Any], subresource: str = "status"
    ) -> None:
        """Keep everything that a write of ``/status``, or of a part of it, may not change."""
        for key in (*old, *obj):
            if key not in _STATUS_WRITE_FIELDS:
                _restore(obj, old, key)
        metadata = obj["metadata"]
        if self.custom:
            fields = metadata.get("managedFields")
            version = metadata.get("resourceVersion")
            obj["metadata"] = metadata = dict(old["metadata"])
            if fields is not None:
                metadata["managedFields"] = fields
            if version is not None:
                metadata["resourceVersion"] = version
        else:
            _keep_metadata(metadata, old["metadata"])
            resource = self.resource.group, self.resource.plural
            for key in _KEPT_BY_STATUS.get(resource, ("ownerReferences",)):
                _restore(metadata, old["metadata"], key)
        self._status_strategy(subresource).prepare_for_update(obj, old)

    def before_subresource_update(
        self, obj: dict[str, Any], old: dict[str, Any], strategy: SubresourceStrategy
    ) -> None:
        """Keep everything that a write of a subresource may not change."""
        sent = obj["metadata"]
        for key in (*old, *obj):
            if key != "spec":
                _restore(obj, old, key)
        obj["metadata"] = metadata = dict(old["metadata"])
        for key in ("resourceVersion", "managedFields"):
            _restore(metadata, sent, key)
        strategy.prepare_for_update(obj, old)
        self.update_generation(obj, old)

    def _is_generation_change(self, obj: dict[str, Any], old: dict[str, Any]) -> bool:
        if self.generation == "never":
            return False
        if metadata := self.generation_metadata:
            before = old["metadata"].get(metadata) or {}
            if (obj["metadata"].get(metadata) or {}) != before:
                return True
        if self.generation == "spec":
            return obj.get("spec") != old.get("spec")
        apart = {"metadata", "apiVersion", "kind"} | ({"status"} if self.has_status else set())
        return any(obj.get(key) != old.get(key) for key in (obj.keys() | old.keys()) - apart)


_STATUS_WRITE_FIELDS = frozenset({"status", "metadata", "apiVersion", "kind"})
"""Fields that a write of ``/status`` may change; all others are kept."""


_ALL_METADATA = ("ownerReferences", "labels", "annotations", "finalizers", "deletionTimestamp")
_KEPT_BY_STATUS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"): _ALL_METADATA,
    ("apiextensions.k8s.io", "customresourcedefinitions"): _ALL_METADATA,
    ("apiregistration.k8s.io", "apiservices"): _ALL_METADATA[:-1],
    ("apps", "deployments"): ("ownerReferences", "labels"),
    ("resource.k8s.io", "devicetaintrules"): _ALL_METADATA,
    ("resource.k8s.io", "resourceclaims"): _ALL_METADATA,
    ("scheduling.k8s.io", "podgroups"): _ALL_METADATA,
    ("storage.k8s.io", "volumeattachments"): _ALL_METADATA,
}
"""Metadata that a write of the status does not change, where it is not the owners alone."""


def _restore(obj: dict[str, Any], old: dict[str, Any], key: str) -> None:
    """Set *key* of *obj* to its value in *old*, or remove it."""
    if key in old:
        obj[key] = old[key]
    else:
        obj.pop(key, None)


def _keep_metadata(metadata: dict[str, Any], old: dict[str, Any]) -> None:
    for key in ("generation", "creationTimestamp", "selfLink"):
        _restore(metadata, old, key)
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        if key in old:
            metadata[key] = old[key]
    for key in ("uid", "namespace", "name"):
        if not metadata.get(key):
            _restore(metadata, old, key)
