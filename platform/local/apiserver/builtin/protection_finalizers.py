"""Finalizers that keep deleted objects while something uses them."""

from collections.abc import Mapping
from typing import Any

from ....model.names import (
    NATIVE_PODGROUPS,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    Resource,
)
from ..kinds.groups import STORAGE

Json = dict[str, Any]

ATTRIBUTES_CLASSES = Resource(
    STORAGE, "v1", "volumeattributesclasses", "VolumeAttributesClass", namespaced=False
)

PROTECTION_FINALIZERS: Mapping[Resource, str] = {
    ATTRIBUTES_CLASSES: "kubernetes.io/vac-protection",
    NATIVE_PODGROUPS: "scheduling.k8s.io/podgroup-protection",
    PERSISTENTVOLUMECLAIMS: "kubernetes.io/pvc-protection",
    PERSISTENTVOLUMES: "kubernetes.io/pv-protection",
}
"""What admission adds to new objects, and the controllers of protection remove."""


def add_finalizer(obj: Json, finalizer: str) -> None:
    """Add *finalizer* to an object that lacks it."""
    metadata = obj["metadata"]
    finalizers = metadata.get("finalizers") or []
    if finalizer not in finalizers:
        metadata["finalizers"] = [*finalizers, finalizer]
