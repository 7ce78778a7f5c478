"""Check whether the schema of a custom kind is structural.

That is: every node has a type, branches of logical junctors only restrict what the node declares,
and every keyword can be pruned, defaulted and validated node by node.
"""

from collections.abc import Mapping
from typing import Any

from ..errors.fields import FieldError, forbidden, invalid, not_supported, required
from .go_regex import check_pattern

Schema = Mapping[str, Any]

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_LOGICAL_KEYS = ("allOf", "anyOf", "oneOf")
_NOT_BELOW_LOGICAL = (
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "type",
)
_UNSUPPORTED = (
    "$ref",
    "additionalItems",
    "definitions",
    "dependencies",
    "id",
    "patternProperties",
)


def structural_errors(schema: Schema, path: str) -> list[FieldError]:
    """Return the errors that keep *schema* from being structural, which is at *path*."""
    errors: list[FieldError] = []
    if schema.get("type") != "object":
        if schema.get("type"):
            errors.append(invalid(f"{path}.type", schema["type"], "must be object at the root"))
        else:
            errors.append(required(f"{path}.type", "must not be empty at the root"))
    _walk(schema, path, errors)
    return errors


def _walk(schema: Schema, path: str, errors: list[FieldError]) -> None:
    """Check one node and everything below it."""
    errors += [
        forbidden(f"{path}.{key}", f"{key} is not supported")
        for key in _UNSUPPORTED
        if schema.get(key)
    ]
    if schema.get("uniqueItems"):
        text = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        errors.append(forbidden(f"{path}.uniqueItems", text))
    _validate_type(schema, path, errors)
    _validate_pattern(schema, path, errors)
    _validate_list_type(schema, path, errors)
    for name, branches in _branches(schema):
        for index, branch in enumerate(branches):
            field_path = f"{path}.{name}" if name == "not" else f"{path}.{name}[{index}]"
            _walk_logical(branch, schema, field_path, errors)
    _walk_children(schema, path, errors)


def _branches(schema: Schema) -> list[tuple[str, list[Schema]]]:
    found = [(name, list(schema[name])) for name in _LOGICAL_KEYS if schema.get(name)]
    return [*found, ("not", [schema["not"]])] if schema.get("not") else found


def _walk_children(schema: Schema, path: str, errors: list[FieldError]) -> None:
    properties = schema.get("properties", {})
    additional = schema.get("additionalProperties")
    if properties and additional is not None:
        text = "additionalProperties and properties are mutual exclusive"
        errors.append(forbidden(f"{path}.additionalProperties", text))
    for key, node in properties.items():
        field_path = f"{path}.properties[{key}]"
        _require_type(node, field_path, "must not be empty for specified object fields", errors)
        _walk(node, field_path, errors)
    if isinstance(additional, dict):
        field_path = f"{path}.additionalProperties"
        _require_type(
            additional, field_path, "must not be empty for specified object fields", errors
        )
        _walk(additional, field_path, errors)
    if isinstance(items := schema.get("items"), dict):
        field_path = f"{path}.items"
        _require_type(items, field_path, "must not be empty for specified array items", errors)
        _walk(items, field_path, errors)


def _require_type(node: Schema, path: str, text: str, errors: list[FieldError]) -> None:
    free = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
    if not node.get("type") and not any(node.get(key) for key in free):
        errors.append(required(f"{path}.type", text))


def _validate_type(schema: Schema, path: str, errors: list[FieldError]) -> None:
    kind = schema.get("type")
    if kind and kind not in _TYPES:
        errors.append(not_supported(f"{path}.type", kind, _TYPES))
    if kind == "array" and not schema.get("items"):
        errors.append(required(f"{path}.items", "must be specified"))
    if schema.get("x-kubernetes-int-or-string"):
        text = "must be false if x-kubernetes-int-or-string is true"
        errors += [
            invalid(f"{path}.{key}", True, text)
            for key in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource")
            if schema.get(key)
        ]
    if schema.get("x-kubernetes-embedded-resource"):
        if kind != "object":
            text = "must be object if x-kubernetes-embedded-resource is true"
            field_path = f"{path}.type"
            errors.append(invalid(field_path, kind, text) if kind else required(field_path, text))
        elif not schema.get("properties") and not schema.get(
            "x-kubernetes-preserve-unknown-fields"
        ):
            text = (
                "must not be empty if x-kubernetes-embedded-resource is true without "
                "x-kubernetes-preserve-unknown-fields"
            )
            errors.append(required(f"{path}.properties", text))


def _validate_pattern(schema: Schema, path: str, errors: list[FieldError]) -> None:
    if pattern := schema.get("pattern"):
        try:
            check_pattern(pattern)
        except ValueError as error:
            text = f"must be a valid regular expression, but isn't: {error}"
            errors.append(invalid(f"{path}.pattern", pattern, text))


def _validate_list_type(schema: Schema, path: str, errors: list[FieldError]) -> None:
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys")
    where = f"{path}.x-kubernetes-list-type"
    if kind and kind not in ("atomic", "set", "map"):
        errors.append(not_supported(where, kind, ("atomic", "map", "set")))
    if kind and schema.get("type") != "array":
        text = "must be array if x-kubernetes-list-type is specified"
        errors.append(invalid(f"{path}.type", schema.get("type", ""), text))
    where = f"{path}.x-kubernetes-list-map-keys"
    if keys and kind != "map":
        text = "must be map if x-kubernetes-list-map-keys is non-empty"
        errors.append(invalid(f"{path}.x-kubernetes-list-type", kind, text))
    if kind == "map":
        if not keys:
            text = "must not be empty if x-kubernetes-list-type is map"
            errors.append(required(where, text))
        else:
            _validate_map_keys(schema, path, errors)


def _validate_map_keys(schema: Schema, path: str, errors: list[FieldError]) -> None:
    keys = schema["x-kubernetes-list-map-keys"]
    items = schema.get("items") or {}
    properties = items.get("properties", {})
    where = f"{path}.x-kubernetes-list-map-keys"
    if not set(keys) <= properties.keys():
        errors.append(invalid(where, keys, "entries must all be names of item properties"))
        return
    for key in keys:
        if key not in items.get("required", ()) and "default" not in properties[key]:
            text = (
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be "
                "a required property"
            )
            errors.append(required(f"{path}.items.properties[{key}].default", text))


def _walk_logical(node: Schema, typed: Schema, path: str, errors: list[FieldError]) -> None:
    """Check a branch of a junctor: it may only restrict what *typed*, the node, declares."""
    # The only typed branches allowed are the two of int-or-string.
    allowed = ("type",) if typed.get("x-kubernetes-int-or-string") else ()
    errors += [
        forbidden(f"{path}.{key}", "must be empty to be structural")
        for key in _NOT_BELOW_LOGICAL
        if node.get(key) and key not in allowed
    ]
    properties = typed.get("properties", {})
    for key, child in node.get("properties", {}).items():
        field_path = f"{path}.properties[{key}]"
        if key in properties:
            _walk_logical(child, properties[key], field_path, errors)
        elif not isinstance(typed.get("additionalProperties"), dict):
            outer = field_path.replace(".allOf", "").replace(".anyOf", "").replace(".oneOf", "")
            errors.append(required(field_path, f"because it is defined in {outer}"))
    if isinstance(node.get("items"), dict):
        _walk_logical(node["items"], typed.get("items") or {}, f"{path}.items", errors)
    for name, branches in _branches(node):
        for index, branch in enumerate(branches):
            field_path = f"{path}.{name}" if name == "not" else f"{path}.{name}[{index}]"
            _walk_logical(branch, typed, field_path, errors)
