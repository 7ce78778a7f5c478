"""Validation of VolumeAttachments and CSIStorageCapacities."""

from typing import Any

from ....model import quantity, validation
from ..errors.fields import (
    IMMUTABLE,
    NOT_NEGATIVE,
    FieldError,
    forbidden,
    invalid,
    required,
    too_long,
)
from .scheduling_validation import validate_selector

Json = dict[str, Any]

_MAX_DRIVER_NAME = 63
_ONE_SOURCE = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"


def validate_volume_attachment(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a VolumeAttachment, whose spec is immutable."""
    spec = obj.get("spec") or {}
    errors = _driver_errors(spec.get("attacher", ""), "spec.attacher")
    source = spec.get("source") or {}
    volume = source.get("persistentVolumeName")
    has_inline = source.get("inlineVolumeSpec") is not None
    if volume is None and not has_inline:
        errors.append(required("spec.source", _ONE_SOURCE))
    elif volume is not None and has_inline:
        errors.append(forbidden("spec.source", _ONE_SOURCE))
    elif volume == "":
        text = "must specify non empty persistentVolumeName"
        where = "spec.source.persistentVolumeName"
        # As kube-apiserver, which checks it twice.
        errors += [required(where, text), invalid(where, volume, text)]
    node = spec.get("nodeName", "")
    if problem := validation.dns1123_subdomain_error(node):
        errors.append(invalid("spec.nodeName", node, problem))
    if old is not None and spec != old.get("spec"):
        errors.append(invalid("spec", spec, IMMUTABLE))
    return errors


def _driver_errors(name: str, path: str) -> list[FieldError]:
    errors = [] if name else [required(path)]
    if len(name) > _MAX_DRIVER_NAME:
        errors.append(too_long(path, _MAX_DRIVER_NAME))
    problem = validation.dns1123_subdomain_error(name.lower())
    if name and problem:
        errors.append(invalid(path, name, problem))
    return errors


def validate_storage_capacity(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a CSIStorageCapacity, whose class and topology are immutable."""
    if old is not None:
        return [
            invalid(key, obj.get(key), IMMUTABLE)
            for key in ("nodeTopology", "storageClassName")
            if obj.get(key) != old.get(key)
        ]
    errors: list[FieldError] = []
    if topology := obj.get("nodeTopology"):
        validate_selector(topology, "nodeTopology", errors)
    name = obj.get("storageClassName", "")
    if problem := validation.dns1123_subdomain_error(name):
        errors.append(invalid("storageClassName", name, problem))
    amount = obj.get("capacity")
    if amount is not None and quantity.parse(amount) < quantity.ZERO:
        errors.append(invalid("capacity", amount, NOT_NEGATIVE))
    return errors
