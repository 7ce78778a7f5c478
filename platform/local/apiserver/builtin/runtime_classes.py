"""Validation of RuntimeClasses."""

from typing import Any

from ....model import validation
from ..errors.fields import IMMUTABLE, FieldError, duplicate, invalid, required
from ..kinds.metadata import validate_labels
from .resource_validation import validate_resources
from .scheduling_validation import validate_toleration

Json = dict[str, Any]


def validate_runtime_class(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a RuntimeClass, whose handler is immutable."""
    handler = obj.get("handler", "")
    errors = list[FieldError]()
    if not handler:
        errors.append(required("handler"))
    elif problem := validation.dns1123_label_error(handler):
        text = "must not contain dots" if "." in handler else problem
        errors.append(invalid("handler", handler, text))
    if old is not None and handler != old.get("handler"):
        errors.append(invalid("handler", handler, IMMUTABLE))
    if overhead := (obj.get("overhead") or {}).get("podFixed"):
        # As kube-apiserver, which validates them as limits.
        validate_resources({"limits": overhead}, "overhead", errors)
    scheduling = obj.get("scheduling") or {}
    errors += validate_labels(scheduling.get("nodeSelector"), "scheduling.nodeSelector")
    tolerations = scheduling.get("tolerations") or []
    for index, toleration in enumerate(tolerations):
        path = f"scheduling.tolerations[{index}]"
        validate_toleration(toleration, path, errors)
        if toleration in tolerations[:index]:
            errors.append(duplicate(path, toleration))
    return errors
