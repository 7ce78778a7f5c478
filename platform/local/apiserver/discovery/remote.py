"""Discovery and OpenAPI of other API servers, added to the documents of this one."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

Json = dict[str, Any]

_V2_PREFIX = "#/definitions/"


class RemoteVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One group and version of another API server."""

    group: str
    version: str
    available: bool
    resources: tuple[Json, ...]
    """As in aggregated discovery."""

    openapi_v3_url: str
    openapi_v2: Json
    """The whole document of its server."""

    @property
    def root(self) -> str:
        """Its path without the first slash."""
        return f"apis/{self.group}/{self.version}"


class _ApiResource(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    singular_name: str = ""
    namespaced: bool = False
    group: str = ""
    version: str = ""
    kind: str = ""
    verbs: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


class _ApiResourceList(msgspec.Struct, frozen=True):
    resources: tuple[_ApiResource, ...] = ()


def parse_resources(body: bytes, *, group: str, version: str) -> tuple[Json, ...]:
    """Return the resources of an APIResourceList in the form of aggregated discovery.

    Raises:
        msgspec.DecodeError: it is none.
    """
    found = msgspec.json.decode(body, type=_ApiResourceList).resources

    def kind_of(entry: _ApiResource) -> Json:
        return {
            "group": entry.group or group,
            "version": entry.version or version,
            "kind": entry.kind,
        }

    resources: dict[str, Json] = {}
    for entry in found:
        if "/" in entry.name:
            continue
        resources[entry.name] = {
            "resource": entry.name,
            "responseKind": kind_of(entry),
            "scope": "Namespaced" if entry.namespaced else "Cluster",
            "singularResource": entry.singular_name,
            "verbs": list(entry.verbs),
            **({"shortNames": list(entry.short_names)} if entry.short_names else {}),
            **({"categories": list(entry.categories)} if entry.categories else {}),
        }
    for entry in found:
        name, slash, subresource = entry.name.partition("/")
        if slash and name in resources:
            resources[name].setdefault("subresources", []).append(
                {
                    "subresource": subresource,
                    "responseKind": kind_of(entry),
                    "verbs": list(entry.verbs),
                }
            )
    return tuple(resources.values())


def add_aggregated(document: Json, remote: Sequence[RemoteVersion]) -> Json:
    """Return an APIGroupDiscoveryList with the remote versions, those of new groups at the end."""
    items = {each["metadata"].get("name", ""): dict(each) for each in document["items"]}
    for each in remote:
        item = items.setdefault(each.group, {"metadata": {"name": each.group}, "versions": []})
        version: Json = {
            "version": each.version,
            "freshness": "Current" if each.available else "Stale",
        }
        if each.resources:
            version["resources"] = list(each.resources)
        item["versions"] = [*item["versions"], version]
    return {**document, "items": list(items.values())}


def add_groups(document: Json, remote: Sequence[RemoteVersion]) -> Json:
    """Return an APIGroupList with the remote versions."""
    groups = {each["name"]: each for each in document["groups"]}
    for name in dict.fromkeys(each.group for each in remote):
        groups[name] = add_versions(groups.get(name), name, remote)
    return {**document, "groups": list(groups.values())}


def add_versions(group: Json | None, name: str, remote: Iterable[RemoteVersion]) -> Json:
    """Return an APIGroup with the remote versions of the group *name*."""
    entries = [
        {"groupVersion": f"{name}/{each.version}", "version": each.version}
        for each in remote
        if each.group == name
    ]
    if group is None:
        return {"name": name, "versions": entries, "preferredVersion": entries[0]}
    return {**group, "versions": [*group["versions"], *entries]}


def add_openapi_v3(document: Json, remote: Iterable[RemoteVersion]) -> Json:
    """Return an index of OpenAPI v3 with the documents of other servers."""
    paths = {
        each.root: {"serverRelativeURL": each.openapi_v3_url}
        for each in remote
        if each.openapi_v3_url
    }
    return {"paths": document["paths"] | paths}


def add_openapi_v2(document: Json, remote: Iterable[RemoteVersion]) -> Json:
    """Return the OpenAPI v2 document with the paths of other servers, and what they refer to.

    A definition with the name of one of this server's is not replaced by that of another.
    """
    paths, definitions = dict(document["paths"]), dict(document["definitions"])
    for each in remote:
        theirs = each.openapi_v2.get("definitions") or {}
        added = {
            path: item
            for path, item in (each.openapi_v2.get("paths") or {}).items()
            if path.startswith(f"/{each.root}/")
        }
        paths |= added
        left = list(_references(added))
        # The kinds themselves: clients find them by their group, version and kind.
        left += [name for name, schema in theirs.items() if _has_kind_of(schema, each)]
        while left:
            name = left.pop()
            if name not in definitions and name in theirs:
                definitions[name] = theirs[name]
                left += _references(theirs[name])
    return {**document, "paths": dict(sorted(paths.items())), "definitions": definitions}


def _has_kind_of(schema: Any, version: RemoteVersion) -> bool:
    kinds = schema.get("x-kubernetes-group-version-kind") if isinstance(schema, dict) else None
    return isinstance(kinds, list) and any(
        isinstance(each, dict)
        and (each.get("group"), each.get("version")) == (version.group, version.version)
        for each in kinds
    )


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _references(each)
    elif isinstance(value, dict):
        target = value.get("$ref")
        if isinstance(target, str) and target.startswith(_V2_PREFIX):
            yield target.removeprefix(_V2_PREFIX)
        for each in value.values():
            yield from _references(each)
