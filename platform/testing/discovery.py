"""The resources that a server has, by the names that ``kubectl`` accepts."""

from collections.abc import Iterable

from ..kube.client.client import Client
from ..model.base import ApiStruct
from ..model.names import Resource
from ..model.spelling import hint


def find_resource(name: str, served: Iterable[Resource]) -> Resource:
    """Return a resource by its kind or plural, with or without its group.

    Raises:
        ValueError: there is no such resource, or several.
    """
    served = list(served)
    first, _, group = name.partition(".")
    found = {
        each for each in served if first in (each.kind, each.plural) and group in ("", each.group)
    }
    if len(found) == 1:
        return found.pop()
    if found:
        names = sorted(f"{each.plural}.{each.group}".rstrip(".") for each in found)
        raise ValueError(f"{name!r} is ambiguous: {', '.join(names)}")
    known = {text for each in served for text in (each.kind, each.plural)}
    raise ValueError(f"no resource {name!r} is served; {hint(first, known)}")


class _Named(ApiStruct, frozen=True):
    """A group's version in the list of groups."""

    group_version: str = ""
    version: str = ""


class _Group(ApiStruct, frozen=True):
    name: str = ""
    preferred_version: _Named = _Named()


class _Groups(ApiStruct, frozen=True):
    groups: tuple[_Group, ...] = ()


class _ServedResource(ApiStruct, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False


class _Resources(ApiStruct, frozen=True):
    resources: tuple[_ServedResource, ...] = ()


async def served_resources(client: Client) -> list[Resource]:
    """Return the resources of the preferred versions of all groups, without subresources."""
    groups = await client.get_path("/apis", view=_Groups)
    found = await _in_group(client, "/api/v1", "", "v1")
    for group in groups.groups:
        version = group.preferred_version
        path = f"/apis/{version.group_version}"
        found += await _in_group(client, path, group.name, version.version)
    return found


async def _in_group(client: Client, path: str, group: str, version: str) -> list[Resource]:
    listed = await client.get_path(path, view=_Resources)
    return [
        Resource(group, version, each.name, each.kind, namespaced=each.namespaced)
        for each in listed.resources
        if "/" not in each.name
    ]
