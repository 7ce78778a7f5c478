"""Strategic merge patch: a merge patch with list maps.

The merge keys of lists are in the published schemas, see :mod:`.go_types`. Directives of a patch:
``$patch`` (replace, delete, merge), ``$retainKeys``, ``$setElementOrder/<list>`` and
``$deleteFromPrimitiveList/<list>``.
"""

import functools
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from ....model.names import Resource
from . import go_types

Json = dict[str, Any]

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE_FROM = "$deleteFromPrimitiveList/"

PRIMITIVES = ""
"""Used instead of a merge key: the list holds strings or numbers and is merged as a set."""

MAX_VISITED = 2 * 2**20
"""Maximum entries of objects and lists that one patch merges into.

An object has fewer. They are visited again only if a list of the patch names an element several
times: each time the element is copied, which takes quadratic time.
"""

_visited: ContextVar[int] = ContextVar("visited entries", default=0)


class PatchError(Exception):
    """A patch cannot be applied."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


def strategic_merge(resource: Resource, document: Json, patch: Any) -> Json:
    """Apply a strategic merge patch to an object of the built-in kind *resource*.

    Raises:
        PatchError: the patch is not an object, an item has no merge key, a directive is
            unknown, or merging takes too long.
    """
    if not isinstance(patch, dict):
        raise PatchError(400, "BadRequest", "error decoding patch: the patch must be an object")
    _visited.set(0)
    return _merge_map(go_types.message_name(resource.api_version, resource.kind), document, patch)


def _visit(entries: Mapping[str, Any] | list[Any]) -> None:
    visited = _visited.get() + len(entries)
    if visited > MAX_VISITED:
        text = f"the patch merges into more than {MAX_VISITED} entries of objects and lists"
        raise PatchError(413, "RequestEntityTooLarge", text)
    _visited.set(visited)


def _failure(message: str) -> PatchError:
    return PatchError(422, "Invalid", message)


def _quote(value: Json) -> str:
    inside = " ".join(f"{key}:{value[key]}" for key in sorted(value))
    return f"map[{inside}]"


def _merge_map(message: str, document: Json, patch: Json) -> Json:
    directive = patch.get(_DIRECTIVE)
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise _failure(f"unknown patch type: {directive} in map: {_quote(patch)}")
    merged = _retained(document, patch.get(_RETAIN))
    for key, value in patch.items():
        if key[:1] == "$" and _follow_directive(message, merged, patch, key):
            continue
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict | list):
            merged[key] = _merge_field(message, key, merged.get(key), patch)
        else:
            merged[key] = value
    return merged


def _retained(document: Json, keys: Any) -> Json:
    """Return a copy of *document*, with these keys only unless they are ``None``."""
    _visit(document)
    if keys is None:
        return dict(document)
    if not isinstance(keys, list):
        raise PatchError(400, "BadRequest", f"{_RETAIN} must be a list")
    names = {key for key in keys if isinstance(key, str)}
    return {key: value for key, value in document.items() if key in names}


def _follow_directive(message: str, merged: Json, patch: Json, directive: str) -> bool:
    """Return whether *directive* is one; apply that of a list that the patch does not change."""
    if not directive.startswith((_ORDER, _DELETE_FROM)):
        return directive in (_DIRECTIVE, _RETAIN)
    key = directive.partition("/")[2]
    items = merged.get(key)
    if key not in patch and isinstance(items, list):
        merged[key] = _merge_list(message, key, items, {**patch, key: []})
    return True


def _merge_field(message: str, key: str, old: Any, patch: Json) -> Any:
    value = patch[key]
    if isinstance(value, dict):
        return _merge_map(_type_of(message, key), old if isinstance(old, dict) else {}, value)
    if isinstance(value, list) and _merge_key(message, key) is not None:
        return _merge_list(message, key, old if isinstance(old, list) else [], patch)
    return value


def _type_of(message: str, key: str) -> str:
    """Return the message in a field, or ``""`` if it is merged without a type."""
    return _field_types(message).get(key, "")


@functools.cache
def _field_types(message: str) -> Mapping[str, str]:
    if message not in go_types.messages():
        return {}
    # The keys of a map are data; its values are merged without a type.
    fields = go_types.json_fields(message)
    return {name: field.type for name, field in fields.items() if field.shape != "map"}


def _merge_key(message: str, key: str) -> str | None:
    """Return the merge key of a list; ``None`` if it is replaced."""
    return _merge_keys(message).get(key)


@functools.cache
def _merge_keys(message: str) -> Mapping[str, str]:
    return {
        key: str(schema.get("x-kubernetes-patch-merge-key", PRIMITIVES))
        for key, schema in go_types.properties(message).items()
        if "merge" in schema.get("x-kubernetes-patch-strategy", "").split(",")
    }


def _merge_list(message: str, key: str, old: list[Any], patch: Json) -> list[Any]:
    """Merge the list ``patch[key]`` into *old*, by merge key or as a set."""
    _visit(old)
    merge_key = _merge_key(message, key)
    changes = patch[key]
    order = patch.get(_ORDER + key)
    if merge_key is None:
        return old
    if merge_key == PRIMITIVES:
        removed = {_id(item, "") for item in patch.get(_DELETE_FROM + key) or []}
        merged = {name: item for item in [*old, *changes] if (name := _id(item, "")) not in removed}
        if order is None:
            order = changes
    else:
        for change in changes:
            if not isinstance(change, dict):
                raise _failure(f"map: {change} does not contain declared merge key: {merge_key}")
        if any(change.get(_DIRECTIVE) == "replace" for change in changes):
            return [change for change in changes if _DIRECTIVE not in change]
        changes = [c for c in changes if c != {_DIRECTIVE: "merge"}]
        merged = _merge_entries(_type_of(message, key), merge_key, old=old, changes=changes)
        if order is None:
            order = changes
    return _in_order(merged, [_id(i, merge_key) for i in order], [_id(i, merge_key) for i in old])


def _id(item: Any, merge_key: str) -> str:
    """Return the key of an item as a string in which ``1`` differs from ``"1"``."""
    if merge_key == PRIMITIVES:
        return _json(item)
    if not isinstance(item, dict) or merge_key not in item:
        shown = _quote(item) if isinstance(item, dict) else str(item)
        raise _failure(f"map: {shown} does not contain declared merge key: {merge_key}")
    return _json(item[merge_key])


def _json(value: Any) -> str:
    # No other value begins with a quote, so a string needs no escapes to be distinct.
    return f'"{value}' if type(value) is str else msgspec.json.encode(value).decode()


def _merge_entries(
    message: str, merge_key: str, *, old: list[Any], changes: list[Any]
) -> dict[str, Any]:
    merged = {_id(item, merge_key): item for item in old}
    for change in changes:
        name = _id(change, merge_key)
        if change.get(_DIRECTIVE) == "delete":
            merged.pop(name, None)
        else:
            merged[name] = _merge_map(message, merged.get(name, {}), change)
    return merged


def _in_order(merged: dict[str, Any], order: list[str], before: list[str]) -> list[Any]:
    """Sort items: those in *order* follow it, the others keep their positions.

    Both groups are merged; one of the others precedes the next item of *order* only if it
    preceded it before. So new items are first.
    """
    ordered = [name for name in dict.fromkeys(order) if name in merged]
    rank = {name: index for index, name in enumerate(before)}
    chosen = set(ordered)
    others = [name for name in before if name in merged and name not in chosen]
    result: list[str] = []
    left = right = 0
    while left < len(others) and right < len(ordered):
        mine = rank.get(ordered[right])
        if mine is not None and rank[others[left]] < mine:
            result.append(others[left])
            left += 1
        else:
            result.append(ordered[right])
            right += 1
    result += others[left:] + ordered[right:]
    return [merged[name] for name in result]
