"""Validation of the fields of a custom kind that field selectors may name."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors.fields import FieldError, duplicate, invalid, required, too_many

_MAX_FIELDS = 8
_TYPES = ("boolean", "integer", "string")


def validate(
    fields: Sequence[Mapping[str, Any]], schema: Mapping[str, Any], path: str
) -> list[FieldError]:
    """Validate the selectable fields at *path* of a version with a *schema*."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, field in enumerate(fields):
        where, text = f"{path}[{index}].jsonPath", field.get("jsonPath") or ""
        if not text:
            errors.append(required(where))
            continue
        try:
            found = _field_at(text, schema)
        except ValueError as error:
            errors.append(invalid(where, text, f"is an invalid path: {error}"))
            continue
        if text.split(".")[1] == "metadata":
            errors.append(invalid(where, text, "must not point to fields in metadata"))
        if found.get("type") not in _TYPES:
            why = (
                "must point to a field of type string, boolean or integer. Enum string fields and "
                "strings with formats are allowed."
            )
            errors.append(invalid(where, text, why))
        if text in seen:
            errors.append(duplicate(where, text))
        seen.add(text)
    if len(seen) > _MAX_FIELDS:
        errors.append(too_many(path, len(seen), _MAX_FIELDS))
    return errors


def _field_at(path: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of the field at a path such as ``.spec.color``.

    Raises:
        ValueError: there is none.
    """
    if "[" in path:
        raise ValueError("array notation is not allowed")
    first, *names = path.split(".")
    if first:
        raise ValueError(f"expected [ or . but got: {first}")
    if not names[-1]:
        raise ValueError("unexpected end of JSON path")
    for name in names:
        known = schema.get("properties")
        below = known.get(name) if known else schema.get("additionalProperties")
        if not isinstance(below, Mapping):
            raise ValueError("does not refer to a valid field")
        schema = below
    return schema
