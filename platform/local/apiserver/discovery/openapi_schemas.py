"""OpenAPI v3 schemas of kinds; those of built-in types are Kubernetes' own."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ....model.names import Resource
from ..kinds import go_types
from ..kinds.info import KindInfo

Json = dict[str, Any]

PREFIX = "#/components/schemas/"


_METADATA = go_types.component(go_types.OBJECT_META)
_METADATA_FIELDS: Mapping[str, str] = {
    "annotations": "Annotations are data of any tools, by key; they select nothing.",
    "creationTimestamp": "CreationTimestamp is a timestamp of when the server created the object.",
    "deletionGracePeriodSeconds": "DeletionGracePeriodSeconds is the time that the object has to "
    "end after a deletion. Set by the server.",
    "deletionTimestamp": "DeletionTimestamp is when the object will be removed. Set by the server "
    "when a client deletes the object.",
    "finalizers": "Finalizers are the names of what must be done before a deleted object is "
    "removed. Each is removed by the one who has done it.",
    "generateName": "GenerateName is the prefix of a name that the server generates, if the name "
    "is empty.",
    "generation": "Generation counts the changes of the desired state. Set by the server.",
    "labels": "Labels are keys and values by which objects are selected.",
    "managedFields": "ManagedFields are the owners of fields, for server-side apply.",
    "name": "Name is unique among the objects of a resource in a namespace, and does not change.",
    "namespace": "Namespace is the one that the object is in. It does not change.",
    "ownerReferences": "OwnerReferences are the objects that this one depends on. It is deleted "
    "with the last of them.",
    "resourceVersion": "ResourceVersion is the version of the stored object, which clients "
    "compare and send back unchanged. Set by the server.",
    "selfLink": "SelfLink is not set any more.",
    "uid": "UID differs from that of every other object, of other times, too. Set by the server.",
}


def group_version_kind(resource: Resource) -> Json:
    """Return the ``x-kubernetes-group-version-kind`` of a resource."""
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def reference(name: str) -> Json:
    """Return a reference to the component *name*."""
    return {"$ref": PREFIX + name}


def kind_component(kind: KindInfo) -> str:
    """Return the component name of a kind; a custom kind's has its group reversed."""
    resource = kind.resource
    if not kind.custom:
        return go_types.component(go_types.message_name(resource.api_version, resource.kind))
    group = ".".join(reversed(resource.group.split(".")))
    return f"{group}.{resource.version}.{resource.kind}"


def components(kinds: Iterable[KindInfo], more: Iterable[str] = ()) -> Json:
    """Return all schemas that *kinds* need, with those of their lists, sorted by name.

    *more* are the names of further messages.
    """
    found: Json = {}
    for message in ("meta.ListMeta", go_types.OBJECT_META, *more):
        _add(go_types.component(message), found)
    for kind in kinds:
        name = kind_component(kind)
        if kind.custom:
            found[name] = _custom(kind)
            found[f"{name}List"] = _list_of(kind, name)
        else:
            _add(name, found)
            _add(f"{name}List", found)
        for subresource in kind.subresources.values():
            version = (
                f"{subresource.group}/{subresource.version}"
                if subresource.group
                else subresource.version
            )
            _add(go_types.component(go_types.name_of(version, subresource.kind)), found)
    return dict(sorted(found.items()))


def _add(name: str, found: Json) -> None:
    """Add a component and everything that it refers to; reviews have no lists."""
    if name in found or name not in go_types.schemas():
        return
    found[name] = _described_metadata() if name == _METADATA else go_types.schemas()[name]
    for each in _references(name):
        _add(each, found)


@functools.cache
def _described_metadata() -> Json:
    schema = go_types.schemas()[_METADATA]
    properties = {
        name: {"description": _METADATA_FIELDS[name], **each}
        for name, each in schema["properties"].items()
    }
    return {**schema, "properties": properties}


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
            "items": {"type": "array", "items": reference(name)},
            "metadata": reference(go_types.component("meta.ListMeta")),
        },
        "x-kubernetes-group-version-kind": [
            {"group": resource.group, "kind": kind.list_kind, "version": resource.version}
        ],
    }
