"""OpenAPI v3: one document per group and version, and their index.

kubectl reads from it whether PATCH supports ``fieldValidation``, which kinds support strategic
merge, by which keys their lists are merged, and what ``explain`` shows. The documents depend only
on the kinds, so they are cached by hash without expiry.
"""

import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..kinds.go_types import component
from ..kinds.info import KindInfo
from ..media_types import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    PROTOBUF,
    STRATEGIC_PATCH,
    YAML,
)
from .descriptions import described, source_version
from .openapi_schemas import (
    SchemaOf,
    components,
    group_version_kind,
    kind_component,
    reference,
    undescribed,
)

Json = dict[str, Any]


def index(kinds: Sequence[KindInfo]) -> Json:
    """Return ``/openapi/v3``: the URL of each document, with a hash that follows its content.

    The version of the descriptions is hashed instead of them: the index does not need to read them.
    """
    descriptions = source_version().encode()
    paths = {}
    for root in dict.fromkeys(_root(kind) for kind in kinds):
        members = tuple(kind for kind in kinds if _root(kind) == root)
        digest = hashlib.sha512(_encoded(members) + descriptions).hexdigest().upper()
        paths[root] = {"serverRelativeURL": f"/openapi/v3/{root}?hash={digest}"}
    return {"paths": paths}


def document(group_version: str, kinds: Sequence[KindInfo]) -> Json | None:
    """Return the document of *group_version* with descriptions; ``None`` if it is not served.

    *group_version* is as in its path: ``api/v1``, ``apis/apps/v1``.
    """
    members = tuple(kind for kind in kinds if _root(kind) == group_version)
    return _document(members, described) if members else None


@functools.lru_cache(maxsize=128)
def _encoded(members: tuple[KindInfo, ...]) -> bytes:
    return msgspec.json.encode(_document(members, undescribed))


def _root(kind: KindInfo) -> str:
    resource = kind.resource
    return f"apis/{resource.group}/{resource.version}" if resource.group else "api/v1"


def _document(members: tuple[KindInfo, ...], schema_of: SchemaOf) -> Json:
    paths: Json = {}
    for kind in members:
        paths |= paths_of(kind)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36"},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": _schemas(members, schema_of)},
    }


def _schemas(members: tuple[KindInfo, ...], schema_of: SchemaOf) -> Json:
    """Return the schemas of a document, in which ``DeleteOptions`` is of its group, too."""
    schemas = components(members, schema_of)
    name = component("meta.DeleteOptions")
    resource = members[0].resource
    groups = dict.fromkeys([("", "v1"), (resource.group, resource.version)])
    kinds = [{"group": group, "kind": "DeleteOptions", "version": each} for group, each in groups]
    schemas[name] = {**schemas[name], "x-kubernetes-group-version-kind": kinds}
    return schemas


def paths_of(kind: KindInfo) -> Json:
    """Return the paths of one kind with their operations."""
    resource = kind.resource
    base = f"/{_root(kind)}/"
    home = f"{base}namespaces/{{namespace}}/" if resource.namespaced else base
    found: Json = {}
    if resource.namespaced and "list" in kind.verbs:
        found[base + resource.plural] = _item([_operation(kind, "list")], namespaced=False)
    collection = [verb for verb in ("list", "create", "deletecollection") if verb in kind.verbs]
    if collection:
        found[home + resource.plural] = _item(
            [_operation(kind, verb) for verb in collection], namespaced=resource.namespaced
        )
    single = [verb for verb in ("get", "update", "patch", "delete") if verb in kind.verbs]
    item_path = f"{home}{resource.plural}/{{name}}"
    if single:
        found[item_path] = _item(
            [_operation(kind, verb) for verb in single], namespaced=resource.namespaced, named=True
        )
    for subresource in kind.subresources.values():
        operations = [_operation(kind, verb, subresource.name) for verb in subresource.verbs]
        found[f"{item_path}/{subresource.name}"] = _item(
            operations, namespaced=resource.namespaced, named=True
        )
    return found


_METHODS = {
    "list": "get",
    "get": "get",
    "create": "post",
    "update": "put",
    "patch": "patch",
    "delete": "delete",
    "deletecollection": "delete",
}
_ACTIONS = {"create": "post", "update": "put"}
_WRITES = frozenset({"create", "update", "patch"})


def _item(operations: Iterable[Json], *, namespaced: bool, named: bool = False) -> Json:
    item = {_METHODS[each.pop("verb")]: each for each in operations}
    names = ["name"] * named + ["namespace"] * namespaced
    text = {"type": "string", "uniqueItems": True}
    in_path = [{"name": n, "in": "path", "required": True, "schema": text} for n in names]
    return {**item, "parameters": [*in_path, _query("pretty")]}


def _query(name: str, kind: str = "string") -> Json:
    return {"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": True}}


def _operation(kind: KindInfo, verb: str, subresource_name: str = "") -> Json:
    resource, subresource = kind.resource, kind.subresources.get(subresource_name)
    gvk = group_version_kind(resource)
    schema = reference(kind_component(kind))
    if subresource is not None and subresource.kind != resource.kind:
        gvk = {"group": subresource.group, "kind": subresource.kind, "version": subresource.version}
        schema = {"type": "string" if subresource.connects else "object"}
    if verb == "list":
        schema = reference(f"{kind_component(kind)}List")
    if verb in ("delete", "deletecollection"):
        schema = reference(component("meta.Status"))
    connects = subresource is not None and subresource.connects
    types = ("*/*",) if connects else (JSON, YAML)
    operation: Json = {
        "verb": verb,
        "tags": [f"{resource.group or 'core'}_{resource.version}"],
        "responses": {"200": {"description": "OK", "content": _content(types, schema)}},
        "x-kubernetes-action": "connect" if connects else _ACTIONS.get(verb, verb),
        "x-kubernetes-group-version-kind": gvk,
    }
    # Without its empty lists a document equals what typed clients write of it.
    if parameters := [] if connects else _parameters(verb):
        operation["parameters"] = parameters
    if body := None if connects else _body(kind, verb, schema):
        operation["requestBody"] = body
    return operation


_SELECTION = (_query("fieldSelector"), _query("labelSelector"), _query("limit", "integer"))
_LIST = (
    _query("allowWatchBookmarks", "boolean"),
    _query("continue"),
    _query("resourceVersion"),
    _query("resourceVersionMatch"),
    _query("sendInitialEvents", "boolean"),
    _query("timeoutSeconds", "integer"),
    _query("watch", "boolean"),
)
_DELETE = (
    _query("dryRun"),
    _query("gracePeriodSeconds", "integer"),
    _query("orphanDependents", "boolean"),
    _query("propagationPolicy"),
)


def _parameters(verb: str) -> list[Json]:
    if verb == "list":
        return [*_SELECTION, *_LIST]
    if verb == "deletecollection":
        return [*_SELECTION, *_DELETE]
    if verb == "delete":
        return [*_DELETE]
    if verb not in _WRITES:
        return []
    found = [_query(name) for name in ("dryRun", "fieldManager", "fieldValidation")]
    return [*found, _query("force", "boolean")] if verb == "patch" else found


def _body(kind: KindInfo, verb: str, schema: Json) -> Json | None:
    # Custom kinds have neither protobuf nor merge keys.
    if verb in ("create", "update"):
        types = [JSON, YAML] + [PROTOBUF] * (not kind.custom)
        return {"required": True, "content": _content(types, schema)}
    if verb == "patch":
        types = [JSON_PATCH, MERGE_PATCH, APPLY_PATCH] + [STRATEGIC_PATCH] * (not kind.custom)
        return {"required": True, "content": _content(types, {"type": "object"})}
    if verb == "delete":
        return {"content": _content((JSON,), reference(component("meta.DeleteOptions")))}
    return None


def _content(types: Iterable[str], schema: Json) -> Json:
    return {media_type: {"schema": schema} for media_type in types}
