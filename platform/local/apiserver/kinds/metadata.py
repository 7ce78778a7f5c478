"""Validation of ``metadata``, common to all kinds."""

from collections.abc import Callable
from typing import Any

from ....model import validation
from ..errors.fields import (
    IMMUTABLE,
    NOT_NEGATIVE,
    FieldError,
    forbidden,
    invalid,
    required,
    too_long,
)

TYPE_META = ("apiVersion", "kind")
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")

NameRule = Callable[[str], str]
"""Returns the error of a name, or ``""``."""

_EMPTY_OWNER_FIELD = {"apiVersion": "version must not be empty"}

ANNOTATION_LIMIT = 256 * 1024
"""Maximum bytes of all annotations of one object."""


def validate_labels(labels: Any, path: str) -> list[FieldError]:
    """Validate the keys and values of labels."""
    errors = []
    for key, value in (labels or {}).items():
        if problem := validation.qualified_name_error(key):
            errors.append(invalid(path, key, problem))
        if problem := validation.label_value_error(value):
            errors.append(invalid(path, value, problem))
    return errors


def validate_annotations(annotations: Any, path: str) -> list[FieldError]:
    """Validate the keys and the total size of annotations."""
    errors = []
    size = 0
    for key, value in (annotations or {}).items():
        size += len(key) + len(value)
        if problem := validation.qualified_name_error(key.lower()):
            errors.append(invalid(path, key, problem))
    if size > ANNOTATION_LIMIT:
        errors.append(too_long(path, ANNOTATION_LIMIT))
    return errors


def validate_metadata(
    metadata: dict[str, Any],
    name_rule: NameRule,
    *,
    namespaced: bool,
    old: dict[str, Any] | None = None,
) -> list[FieldError]:
    """Validate the metadata of an object; with *old*, also that immutable fields are unchanged."""
    if metadata == old:
        return []
    errors = [*_validate_name(metadata, name_rule)]
    if not namespaced and metadata.get("namespace"):
        errors.append(forbidden("metadata.namespace", "not allowed on this type"))
    if metadata.get("generation", 0) < 0:
        errors.append(invalid("metadata.generation", metadata["generation"], NOT_NEGATIVE))
    if labels := metadata.get("labels"):
        errors += validate_labels(labels, "metadata.labels")
    if annotations := metadata.get("annotations"):
        errors += validate_annotations(annotations, "metadata.annotations")
    if owners := metadata.get("ownerReferences"):
        errors += _validate_owners(owners)
    if finalizers := metadata.get("finalizers"):
        errors += _validate_finalizers(finalizers)
    if old is not None:
        errors += _validate_unchanged(metadata, old)
    return errors


def _validate_name(metadata: dict[str, Any], name_rule: NameRule) -> list[FieldError]:
    errors = []
    prefix = metadata.get("generateName")
    # A dash may end the prefix because more characters follow it.
    if prefix and (problem := name_rule(prefix.removesuffix("-") or "-")):
        errors.append(invalid("metadata.generateName", prefix, problem))
    name = metadata.get("name")
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    elif problem := name_rule(name):
        errors.append(invalid("metadata.name", name, problem))
    return errors


def _validate_owners(owners: list[dict[str, Any]]) -> list[FieldError]:
    path = "metadata.ownerReferences"
    errors = [
        invalid(f"{path}.{key}", "", _EMPTY_OWNER_FIELD.get(key, "must not be empty"))
        for owner in owners
        for key in ("apiVersion", "kind", "name", "uid")
        if not owner.get(key)
    ]
    names = [f"{o.get('kind')}/{o.get('name')}" for o in owners if o.get("controller")]
    if len(names) > 1:
        text = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{names[0]} and {names[1]}"
        )
        errors.append(invalid(path, owners, text))
    return errors


def _validate_finalizers(finalizers: list[str]) -> list[FieldError]:
    path = "metadata.finalizers"
    errors = [
        invalid(path, name, problem)
        for name in finalizers
        if (problem := validation.qualified_name_error(name))
    ]
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        text = "finalizers orphan and foregroundDeletion cannot be both set"
        errors.append(invalid(path, finalizers, text))
    return errors


def validate_known_finalizers(finalizers: list[str]) -> list[FieldError]:
    """Check that an unqualified finalizer is one of Kubernetes' own; not for custom kinds."""
    return [
        invalid(
            f"metadata.finalizers[{index}]",
            name,
            "name is neither a standard finalizer name nor is it fully qualified",
        )
        for index, name in enumerate(finalizers)
        if "/" not in name and name not in _STANDARD_FINALIZERS
    ]


def _validate_unchanged(metadata: dict[str, Any], old: dict[str, Any]) -> list[FieldError]:
    errors = [
        invalid(f"metadata.{key}", metadata.get(key, ""), IMMUTABLE)
        for key in (
            *("name", "namespace", "uid"),
            *("deletionTimestamp", "deletionGracePeriodSeconds"),
        )
        if metadata.get(key, "") != old.get(key, "")
    ]
    if old.get("deletionTimestamp"):
        before = set(old.get("finalizers") or ())
        added = [name for name in metadata.get("finalizers") or [] if name not in before]
        if added:
            text = (
                "no new finalizers can be added if the object is being deleted, found new "
                f"finalizers {added!r}"
            )
            errors.append(forbidden("metadata.finalizers", text.replace("'", '"')))
    return errors
