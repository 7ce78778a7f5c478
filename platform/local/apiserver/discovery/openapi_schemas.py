"""OpenAPI v3 schemas of kinds; those of built-in types are Kubernetes' own."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ....model.names import Resource
from ..kinds import go_types
from ..kinds.info import KindInfo

Json = dict[str, Any]
SchemaOf = Callable[[str], Mapping[str, Any]]

PREFIX = "#/components/schemas/"

_METRICS = "io.k8s.metrics.pkg.apis.metrics"
"""Package of the kinds of metrics.k8s.io."""

_SHARED = ("meta.DeleteOptions", "meta.ListMeta", "meta.Status", go_types.OBJECT_META)
"""Messages that operations of all kinds refer to."""


def undescribed(name: str) -> Mapping[str, Any]:
    """Return the schema of the built-in component *name* without descriptions."""
    return go_types.schemas()[name]


def group_version_kind(resource: Resource) -> Json:
    """Return the ``x-kubernetes-group-version-kind`` of a resource."""
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def reference(name: str) -> Json:
    """Return a reference to the component *name*."""
    return {"$ref": PREFIX + name}


def kind_component(kind: KindInfo) -> str:
    """Return the component name of a kind; a custom kind's has its group reversed."""
    resource = kind.resource
    if kind.computed:
        return f"{_METRICS}.{resource.version}.{resource.kind}"
    if not kind.custom:
        return go_types.component(go_types.message_name(resource.api_version, resource.kind))
    group = ".".join(reversed(resource.group.split(".")))
    return f"{group}.{resource.version}.{resource.kind}"


def has_own_schema(kind: KindInfo) -> bool:
    """Return whether the schema of a kind is its own instead of a type of kube-apiserver."""
    return kind.custom or kind.computed


def components(kinds: Collection[KindInfo], schema_of: SchemaOf = undescribed) -> Json:
    """Return all schemas that *kinds* need, with those of their lists, sorted by name.

    *schema_of* returns those of built-in components.
    """
    names = {go_types.component(message) for message in _SHARED}
    for kind in kinds:
        names |= _names_of(kind)
    found: Json = {name: schema_of(name) for name in _with_references(names)}
    for kind in kinds:
        if has_own_schema(kind):
            name = kind_component(kind)
            found[name] = _custom(kind)
            found[f"{name}List"] = _list_of(kind, name)
    return dict(sorted(found.items()))


def _names_of(kind: KindInfo) -> set[str]:
    """Return the built-in components of the objects and lists of a kind, and its subresources."""
    name = kind_component(kind)
    names = set() if has_own_schema(kind) else {name, f"{name}List"}
    for each in kind.subresources.values():
        version = f"{each.group}/{each.version}" if each.group else each.version
        names.add(go_types.component(go_types.name_of(version, each.kind)))
    return names


def _with_references(names: Iterable[str]) -> set[str]:
    """Return the components with all that they refer to; reviews have no lists."""
    left, found = list(names), set[str]()
    while left:
        name = left.pop()
        if name not in found and name in go_types.schemas():
            found.add(name)
            left += _references(name)
    return found


@functools.cache
def _references(name: str) -> frozenset[str]:
    return frozenset(_walk(go_types.schemas()[name]))


def _walk(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _walk(item)
    elif isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.removeprefix(PREFIX)
        for item in schema.values():
            yield from _walk(item)


HEAD: Mapping[str, Json] = {
    "apiVersion": {
        "description": "APIVersion defines the group and the version of the object's schema.",
        "type": "string",
    },
    "kind": {
        "description": "Kind is the name of the type that the object has.",
        "type": "string",
    },
}
"""Properties of all objects."""

METADATA_DESCRIPTION = "Standard object's metadata: name, namespace, labels, owners and others."


def _with_head(schema: Json, kind: KindInfo) -> Json:
    properties = dict(sorted({**HEAD, **schema["properties"]}.items()))
    gvk = [group_version_kind(kind.resource)]
    return {**schema, "properties": properties, "x-kubernetes-group-version-kind": gvk}


def _custom(kind: KindInfo) -> Json:
    schema = dict(kind.openapi or {"type": "object"})
    metadata = {
        "description": METADATA_DESCRIPTION,
        "allOf": [reference(go_types.component(go_types.OBJECT_META))],
    }
    properties = {**schema.get("properties", {}), **HEAD, "metadata": metadata}
    return _with_head({**schema, "properties": properties}, kind)


def _list_of(kind: KindInfo, name: str) -> Json:
    resource = kind.resource
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            **HEAD,
            "items": {
                "description": f"Items are the objects, of kind {resource.kind}.",
                "type": "array",
                "items": reference(name),
            },
            "metadata": {
                "description": "Metadata of the list: its version, and where it continues.",
                "allOf": [reference(go_types.component("meta.ListMeta"))],
            },
        },
        "x-kubernetes-group-version-kind": [
            {"group": resource.group, "kind": kind.list_kind, "version": resource.version}
        ],
    }
