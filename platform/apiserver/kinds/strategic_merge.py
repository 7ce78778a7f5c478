"""Strategic merge: a merge patch that knows which lists are really maps.

Which list is merged by which key is part of the published schemas, see :mod:`.go_types`. The
directives that a patch may hold: ``$patch`` (replace, delete, merge), ``$retainKeys``,
``$setElementOrder/<list>`` and ``$deleteFromPrimitiveList/<list>``.
"""

from typing import Any

import msgspec

from ...model.names import Resource
from . import go_types

Json = dict[str, Any]

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE_FROM = "$deleteFromPrimitiveList/"

PRIMITIVES = ""
"""In place of a key: the list holds texts or numbers and is merged as a set."""


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
        PatchError: the patch is no object, an entry lacks its merge key, or a directive is
            unknown.
    """
    if not isinstance(patch, dict):
        raise PatchError(400, "BadRequest", "error decoding patch: the patch must be an object")
    return _merge_map(go_types.message_name(resource.api_version, resource.kind), document, patch)


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
    merged = dict(document)
    if (retain := patch.get(_RETAIN)) is not None:
        if not isinstance(retain, list):
            raise PatchError(400, "BadRequest", f"{_RETAIN} must be a list")
        merged = {key: value for key, value in merged.items() if key in retain}
    for key, value in patch.items():
        if key in (_DIRECTIVE, _RETAIN):
            continue
        if key.startswith((_ORDER, _DELETE_FROM)):
            _merge_by_directive(message, merged, patch, key)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_field(message, key, merged.get(key), patch)
    return merged


def _merge_by_directive(message: str, merged: Json, patch: Json, directive: str) -> None:
    """Order or thin out a list that the patch names in a directive, but not by itself."""
    key = directive.partition("/")[2]
    items = merged.get(key)
    if key not in patch and isinstance(items, list):
        merged[key] = _merge_list(message, key, items, {**patch, key: []})


def _merge_field(message: str, key: str, old: Any, patch: Json) -> Any:
    value = patch[key]
    if isinstance(value, dict):
        return _merge_map(_type_of(message, key), old if isinstance(old, dict) else {}, value)
    if isinstance(value, list) and _merge_key(message, key) is not None:
        return _merge_list(message, key, old if isinstance(old, list) else [], patch)
    return value


def _type_of(message: str, key: str) -> str:
    """Name the message in a field, or nothing where plain merging is right."""
    if message not in go_types.messages():
        return ""
    field = go_types.json_fields(message).get(key)
    # Below a map by text the keys are data; its values are merged without a type.
    return field.type if field and field.shape != "map" else ""


def _merge_key(message: str, key: str) -> str | None:
    """Return the key by which the entries of a list are told apart; ``None``: it is replaced."""
    schema = go_types.properties(message).get(key, {})
    if "merge" not in schema.get("x-kubernetes-patch-strategy", "").split(","):
        return None
    return str(schema.get("x-kubernetes-patch-merge-key", PRIMITIVES))


def _merge_list(message: str, key: str, old: list[Any], patch: Json) -> list[Any]:
    """Merge the list ``patch[key]`` into *old*, by merge key or as a set."""
    merge_key = _merge_key(message, key)
    changes = patch[key]
    order = patch.get(_ORDER + key)
    if merge_key is None:
        return old
    if merge_key == PRIMITIVES:
        gone = patch.get(_DELETE_FROM + key) or []
        kept = [item for item in old if item not in gone]
        merged = {_id(item, ""): item for item in [*kept, *changes] if item not in gone}
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
    """Give the key of an entry as text that tells ``1`` from ``"1"``."""
    if merge_key == PRIMITIVES:
        return msgspec.json.encode(item).decode()
    if not isinstance(item, dict) or merge_key not in item:
        shown = _quote(item) if isinstance(item, dict) else str(item)
        raise _failure(f"map: {shown} does not contain declared merge key: {merge_key}")
    return msgspec.json.encode(item[merge_key]).decode()


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
    """Arrange entries: those in *order* keep to it, the others stay where they were.

    Both groups are walked side by side; one of the others goes first only if the server
    already had it in front of the next entry of *order*. So new entries come to the front.
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
