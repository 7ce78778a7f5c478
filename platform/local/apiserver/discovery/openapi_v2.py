"""OpenAPI v2: one document of all kinds, which older clients read.

It is derived from what OpenAPI v3 describes. Version 2 has neither alternatives nor null, so these
are left out; where a schema allows unknown fields, kubectl accepts no list of the known ones.
"""

import functools
from collections.abc import Iterable
from typing import Any

from ..kinds.go_types import OBJECT_META, component
from ..kinds.info import KindInfo
from .descriptions import described
from .openapi import paths_of
from .openapi_schemas import (
    HEAD,
    METADATA_DESCRIPTION,
    PREFIX,
    components,
    group_version_kind,
    has_own_schema,
    kind_component,
)

Json = dict[str, Any]

_PREFIX = "#/definitions/"
_ALTERNATIVES = frozenset({"allOf", "anyOf", "oneOf", "not"})
_LEFT_OUT = _ALTERNATIVES | {"default"}
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED = "x-kubernetes-embedded-resource"


def document(kinds: Iterable[KindInfo]) -> Json:
    """Return ``/openapi/v2``."""
    members = tuple(kinds)
    schemas = components(members, described)
    own = {kind_component(kind): kind for kind in members if has_own_schema(kind)}
    paths: Json = {}
    for kind in members:
        paths |= _paths(kind)
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.36"},
        "paths": dict(sorted(paths.items())),
        "definitions": {
            name: _own(own[name]) if name in own else _converted(schema)
            for name, schema in schemas.items()
        },
    }


@functools.lru_cache(maxsize=1024)
def _own(kind: KindInfo) -> Json:
    schema = kind.openapi or {"type": "object"}
    if schema.get(_PRESERVE):
        found: Json = {"type": "object"}
    else:
        found = _structural(schema)
        found["properties"] = {**found.get("properties", {}), **_head()}
    gvk = [group_version_kind(kind.resource)]
    return {**found, "x-kubernetes-group-version-kind": gvk}


def _head() -> Json:
    metadata = {
        "description": METADATA_DESCRIPTION, "$ref": _PREFIX + component(OBJECT_META)
    }  # fmt: skip
    return {**HEAD, "metadata": metadata}


def _structural(schema: Any) -> Any:
    """Return the schema of a custom kind without what version 2 lacks."""
    if not isinstance(schema, dict):
        return schema
    found = {key: each for key, each in schema.items() if key not in _LEFT_OUT}
    preserves = found.get(_PRESERVE)
    dropped: tuple[str, ...] = ("items", "properties") if preserves else ()
    if found.pop("nullable", False):
        dropped = ("type", "items", "properties")
    for key in dropped:
        found.pop(key, None)
    if (found.get("type") == "array" and "items" not in found) or (
        preserves and found.get("type") == "object"
    ):
        found.pop("type")
    _convert_children(found)
    if found.get(_EMBEDDED) and not preserves:
        found["properties"] = {**_head(), **found.get("properties", {})}
    return found


def _convert_children(schema: Json) -> None:
    properties = schema.get("properties") or {}
    if schema.get("required"):
        absent = {name for name, each in properties.items() if each.get("nullable")}
        schema["required"] = [name for name in schema["required"] if name not in absent]
        if not schema["required"]:
            del schema["required"]
    if properties:
        schema["properties"] = {name: _structural(each) for name, each in properties.items()}
    for key in ("items", "additionalProperties"):
        if key in schema:
            schema[key] = _structural(schema[key])


def _converted(schema: Any) -> Any:
    """Return a schema of version 3 in version 2."""
    if isinstance(schema, list):
        return [_converted(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        return {"$ref": _PREFIX + reference.removeprefix(PREFIX)}
    if schema.get("format") == "int-or-string":
        return {"type": "string", "format": "int-or-string"}
    inherited: list[Any] = schema.get("allOf") or []
    if len(inherited) == 1 and "$ref" in inherited[0]:
        described = {key: schema[key] for key in ("description",) if key in schema}
        return described | _converted(inherited[0])
    return {
        key: {name: _converted(each) for name, each in value.items()}
        if key == "properties"
        else _converted(value)
        for key, value in schema.items()
        if key not in _LEFT_OUT and key != "nullable"
    }


@functools.lru_cache(maxsize=1024)
def _paths(kind: KindInfo) -> Json:
    return {path: _path_item(item) for path, item in paths_of(kind).items()}


def _path_item(item: Json) -> Json:
    return {
        key: [_parameter(each) for each in value] if key == "parameters" else _operation(value)
        for key, value in item.items()
    }


def _parameter(parameter: Json) -> Json:
    flat = {key: value for key, value in parameter.items() if key != "schema"}
    return {**flat, **parameter["schema"]}


def _operation(operation: Json) -> Json:
    found = {
        key: value
        for key, value in operation.items()
        if key not in ("parameters", "requestBody", "responses")
    }
    parameters = [_parameter(each) for each in operation.get("parameters", ())]
    if (body := operation.get("requestBody")) is not None:
        content = body["content"]
        found["consumes"] = list(content)
        schema = _converted(next(iter(content.values()))["schema"])
        parameter: Json = {"name": "body", "in": "body", "schema": schema}
        if body.get("required"):
            parameter["required"] = True
        parameters.append(parameter)
    if parameters:
        found["parameters"] = parameters
    content = operation["responses"]["200"]["content"]
    schema = _converted(next(iter(content.values()))["schema"])
    found["produces"] = list(content)
    found["responses"] = {"200": {"description": "OK", "schema": schema}}
    return found
