"""The schemas of kinds as OpenAPI v3 shows them: built-in types from the table of their fields."""

from collections.abc import Iterable, Mapping
from typing import Any

from ....model.names import Resource
from ..kinds import go_types
from ..kinds.info import KindInfo
from ..kinds.strategic_merge import MERGE_KEYS, PRIMITIVES

Json = dict[str, Any]

_PACKAGES = {
    "meta": "io.k8s.apimachinery.pkg.apis.meta.v1",
    "runtime": "io.k8s.apimachinery.pkg.runtime",
    "apiextensions.v1": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
}
_SPECIAL: Mapping[str, tuple[str, Json]] = {
    "Quantity": (
        "io.k8s.apimachinery.pkg.api.resource.Quantity",
        {"oneOf": [{"type": "string"}, {"type": "number"}]},
    ),
    "IntOrString": (
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
        {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    ),
    "meta.Time": (f"{_PACKAGES['meta']}.Time", {"type": "string", "format": "date-time"}),
    "meta.MicroTime": (f"{_PACKAGES['meta']}.MicroTime", {"type": "string", "format": "date-time"}),
    "meta.Duration": (f"{_PACKAGES['meta']}.Duration", {"type": "string"}),
    "meta.FieldsV1": (f"{_PACKAGES['meta']}.FieldsV1", {"type": "object"}),
    "runtime.RawExtension": ("io.k8s.apimachinery.pkg.runtime.RawExtension", {"type": "object"}),
}
_SCALARS: Mapping[str, Json] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "double": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
}
_RETAIN_KEYS = frozenset(
    {
        ("core.v1.PodSpec", "volumes"),
        ("core.v1.PodSpec", "resourceClaims"),
        ("core.v1.PodStatus", "resourceClaimStatuses"),
        ("apps.v1.DeploymentSpec", "strategy"),
    }
)
_PREFIX = "#/components/schemas/"


def group_version_kind(resource: Resource) -> Json:
    """Return what tells a reader of the document which kind something is about."""
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def reference(name: str) -> Json:
    """Return a reference to the component *name*."""
    return {"$ref": _PREFIX + name}


def message_component(message: str) -> str:
    """Return the component name of a built-in message."""
    if message in _SPECIAL:
        return _SPECIAL[message][0]
    package, _, name = message.rpartition(".")
    return f"{_PACKAGES.get(package, f'io.k8s.api.{package}')}.{name}"


def kind_component(kind: KindInfo) -> str:
    """Return the component name of a kind; custom ones are named by their group reversed."""
    resource = kind.resource
    if not kind.custom:
        return message_component(go_types.message_name(resource.api_version, resource.kind))
    group = ".".join(reversed(resource.group.split(".")))
    return f"{group}.{resource.version}.{resource.kind}"


def components(kinds: Iterable[KindInfo], more: Iterable[str] = ()) -> Json:
    """Return all schemas that *kinds* need, their lists among them, sorted by name.

    *more* are messages that are wanted besides.
    """
    found: Json = {}
    for message in ("meta.ListMeta", go_types.OBJECT_META, *more):
        _add(message, found)
    for kind in kinds:
        name = kind_component(kind)
        if kind.custom:
            found[name] = _custom(kind)
        else:
            message = go_types.message_name(kind.resource.api_version, kind.resource.kind)
            _add(message, found)
            found[name] = _with_head(found[name], kind)
        if "list" in kind.verbs:
            found[f"{name}List"] = _list_of(kind, name)
        for part in kind.subresources.values():
            version = f"{part.group}/{part.version}" if part.group else part.version
            _add(go_types.message_name(version, part.kind), found)
    return dict(sorted(found.items()))


def _add(message: str, found: Json) -> None:
    """Add the component of *message* and of all that it refers to."""
    if not message:
        return
    name = message_component(message)
    if name in found:
        return
    if message in _SPECIAL:
        found[name] = _SPECIAL[message][1]
        return
    schema: Json = {"type": "object", "properties": {}}
    found[name] = schema
    for key, field in sorted(go_types.json_fields(message).items()):
        schema["properties"][key] = _property(message, key, field)
        if not _inline(field.type):
            _add(field.type, found)


def _inline(type_name: str) -> Json | None:
    """Return the schema of a type that has no component of its own."""
    if type_name in _SCALARS:
        return _SCALARS[type_name]
    if type_name.endswith(".ExtraValue"):
        return {"type": "array", "items": _SCALARS["string"]}
    if type_name in go_types.SPECIAL and type_name not in _SPECIAL:
        # Schemas inside of schemas, and JSON of any shape.
        return {"x-kubernetes-preserve-unknown-fields": True}
    return None


def _type(type_name: str) -> Json:
    schema = _inline(type_name)
    return reference(message_component(type_name)) if schema is None else dict(schema)


def _property(message: str, key: str, field: go_types.WireField) -> Json:
    inner = _type(field.type)
    if field.shape == "map":
        return {"type": "object", "additionalProperties": inner}
    retain = (message, key) in _RETAIN_KEYS
    if field.shape == "opt":
        if not retain:
            return inner
        # Words beside a reference are lost to some readers.
        return {"allOf": [inner], "x-kubernetes-patch-strategy": "retainKeys"}
    schema: Json = {"type": "array", "items": inner}
    merge_key = MERGE_KEYS.get(message, {}).get(key)
    if merge_key is not None:
        schema["x-kubernetes-patch-strategy"] = "merge,retainKeys" if retain else "merge"
        if merge_key != PRIMITIVES:
            schema["x-kubernetes-patch-merge-key"] = merge_key
    return schema


_HEAD: Mapping[str, Json] = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}


def _with_head(schema: Json, kind: KindInfo) -> Json:
    properties = dict(sorted({**_HEAD, **schema["properties"]}.items()))
    gvk = [group_version_kind(kind.resource)]
    return {**schema, "properties": properties, "x-kubernetes-group-version-kind": gvk}


def _custom(kind: KindInfo) -> Json:
    schema = dict(kind.openapi or {"type": "object"})
    metadata = {"allOf": [reference(message_component(go_types.OBJECT_META))]}
    properties = {**schema.get("properties", {}), **_HEAD, "metadata": metadata}
    return _with_head({**schema, "properties": properties}, kind)


def _list_of(kind: KindInfo, name: str) -> Json:
    resource = kind.resource
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            **_HEAD,
            "items": {"type": "array", "items": reference(name)},
            "metadata": reference(message_component("meta.ListMeta")),
        },
        "x-kubernetes-group-version-kind": [
            {"group": resource.group, "kind": kind.list_kind, "version": resource.version}
        ],
    }
