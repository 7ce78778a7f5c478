"""From a path to what it names."""

from typing import NamedTuple

from .requests import ObjectPath


class RequestInfo(NamedTuple):
    """A path under ``/api`` or ``/apis`` that names a resource."""

    group: str
    version: str
    plural: str
    object_path: ObjectPath
    watch: bool = False
    """It is one of the old paths that always watch."""


def parse_path(path: str) -> RequestInfo | None:
    """What *path* names: a collection, an object or a part of one; ``None`` if none of these."""
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        group, rest = "", parts[1:]
    elif parts[0] == "apis":
        group, rest = (parts[1], parts[2:]) if len(parts) > 1 else ("", [])
    else:
        return None
    if len(rest) < 2:
        return None
    version, *rest = rest
    watch = rest[0] == "watch" and len(rest) > 1
    if watch:
        rest = rest[1:]
    found = _parse_resource(group, rest)
    if found is None:
        return None
    plural, target = found
    return RequestInfo(group, version, plural, target, watch)


def _parse_resource(group: str, parts: list[str]) -> tuple[str, ObjectPath] | None:
    namespace = ""
    # /namespaces/x and /namespaces/x/status are about the namespace, anything longer is in it.
    if (
        parts[0] == "namespaces"
        and len(parts) > 2
        and (group or parts[2] not in ("status", "finalize") or len(parts) > 3)
    ):
        namespace, parts = parts[1], parts[2:]
    if len(parts) > 3 or not all(parts):
        return None
    plural, name, subresource = (*parts, "", "")[:3]
    return plural, ObjectPath(namespace=namespace, name=name, subresource=subresource)
