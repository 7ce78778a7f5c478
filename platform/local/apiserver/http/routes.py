"""Parse request paths."""

import functools
from typing import NamedTuple

from .requests import ObjectPath


class RequestInfo(NamedTuple):
    """Resource and object in a path under ``/api`` or ``/apis``."""

    group: str
    version: str
    plural: str
    object_path: ObjectPath
    watch: bool = False
    """Whether it is one of the deprecated ``/watch/`` paths."""


def parse_path(path: str, *, remote: bool = False) -> RequestInfo | None:
    """Return the collection, object or subresource in *path*; ``None`` for other paths.

    *remote*: another server has the path, of which a subresource may be only the beginning.
    """
    # Clients use the same paths again and again. Long ones are not kept.
    return (_parse_cached if len(path) <= _MAX_CACHED_LENGTH else _parse)(path, remote)


def _parse(path: str, remote: bool) -> RequestInfo | None:
    segments = path.strip("/").split("/")
    if segments[0] == "api":
        group, rest = "", segments[1:]
    elif segments[0] == "apis":
        group, rest = (segments[1], segments[2:]) if len(segments) > 1 else ("", [])
    else:
        return None
    if len(rest) < 2:
        return None
    version, *rest = rest
    watch = rest[0] == "watch" and len(rest) > 1
    if watch:
        rest = rest[1:]
    found = _parse_resource(group, rest, remote=remote)
    if found is None:
        return None
    plural, target = found
    return RequestInfo(group, version, plural, target, watch)


_MAX_CACHED_LENGTH = 256
_parse_cached = functools.lru_cache(maxsize=512)(_parse)


def _parse_resource(
    group: str, segments: list[str], *, remote: bool
) -> tuple[str, ObjectPath] | None:
    namespace = ""
    # /namespaces/x and /namespaces/x/status mean the namespace, longer paths objects in it.
    if (
        segments[0] == "namespaces"
        and len(segments) > 2
        and (group or segments[2] not in ("status", "finalize") or len(segments) > 3)
    ):
        namespace, segments = segments[1], segments[2:]
    if remote or (segments[2:3] == ["proxy"] and not group):
        segments = segments[:3]  # the rest is the path of the other server
    if len(segments) > 3 or not all(segments):
        return None
    plural, name, subresource = (*segments, "", "")[:3]
    return plural, ObjectPath(namespace=namespace, name=name, subresource=subresource)
