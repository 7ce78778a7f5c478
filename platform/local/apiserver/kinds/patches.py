"""JSON patch, merge patch and strategic merge patch.

Each returns a new document, which may reference unchanged values of the old one; the old one
is never modified.
"""

import copy
from typing import Any

import msgspec

from .strategic_merge import PatchError, strategic_merge

__all__ = ["PatchError", "json_patch", "merge_patch", "strategic_merge"]


class TestFailedError(PatchError):
    """A ``test`` of a JSON patch has failed."""


MAX_OPERATIONS = 10_000
MAX_COPIED = 3 * 2**20
"""Maximum bytes that the ``copy`` operations of one patch add: each could double the last."""


def merge_patch(document: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386): objects are merged, ``null`` removes, other values replace.

    Raises:
        PatchError: the patch is not an object.
    """
    if not isinstance(patch, dict):
        raise PatchError(400, "BadRequest", "error decoding patch: the patch must be an object")
    return _merge(document, patch)


def _merge(document: Any, patch: dict[str, Any]) -> dict[str, Any]:
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value) if isinstance(value, dict) else value
    return merged


def json_patch(document: Any, operations: Any) -> Any:
    """Apply a JSON patch (RFC 6902): all of its operations, or none.

    Raises:
        PatchError: 400, it is not a list of operations; 413, it has too many or copies too much;
            422, an operation fails, e.g. a ``test``.
    """
    if not isinstance(operations, list):
        raise PatchError(400, "BadRequest", "error decoding patch: a JSON patch must be a list")
    if len(operations) > MAX_OPERATIONS:
        raise PatchError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, "
            f"got {len(operations)}",
        )
    result = copy.deepcopy(document)
    copied = 0
    try:
        for operation in operations:
            copied += _copied(result, operation)
            if copied > MAX_COPIED:
                text = f"copies in a JSON patch exceed the limit of {MAX_COPIED} bytes"
                raise PatchError(413, "RequestEntityTooLarge", text)
            result = _apply(result, operation)
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PatchError(
            422, "Invalid", "the server rejected our request due to an error in our request"
        ) from error
    return result


def _copied(document: Any, operation: dict[str, Any]) -> int:
    """Return the bytes of JSON that a copy *operation* adds to *document*."""
    if operation["op"] != "copy":
        return 0
    return len(msgspec.json.encode(_find(document, _pointer(operation["from"]))))


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    verb, path = operation["op"], _pointer(operation["path"])
    if verb == "add":
        return _add(document, path, copy.deepcopy(operation["value"]))
    if verb == "remove":
        _remove(document, path)
        return document
    if verb == "replace":
        _find(document, path)
        return _set(document, path, copy.deepcopy(operation["value"]))
    if verb == "move":
        source = _pointer(operation["from"])
        if path[: len(source)] == source and path != source:
            raise ValueError("a value cannot move into itself")
        return _add(document, path, _remove(document, source))
    if verb == "copy":
        return _add(document, path, copy.deepcopy(_find(document, _pointer(operation["from"]))))
    if verb == "test":
        if not _equal(_find(document, path, missing_ok=True), operation["value"]):
            raise TestFailedError(
                422, "Invalid", "the server rejected our request due to an error in our request"
            )
        return document
    raise ValueError(f"unknown operation {verb!r}")


def _equal(one: Any, other: Any) -> bool:
    """Compare as JSON does: in Python True equals 1. The smaller value bounds the time."""
    if type(one) is dict and type(other) is dict:
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if type(one) is list and type(other) is list:
        return len(one) == len(other) and all(map(_equal, one, other))
    if type(one) is bool or type(other) is bool:
        return one is other
    return bool(one == other)


def _pointer(text: str) -> list[str]:
    """Split a JSON pointer (RFC 6901)."""
    if not text:
        return []
    if not text.startswith("/"):
        raise ValueError(f"not a JSON pointer: {text!r}")
    return [token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/")]


def _index(items: list[Any], key: str, *, past_end: bool = False) -> int:
    if past_end and key == "-":
        return len(items)
    if not key.isdecimal() or (len(key) > 1 and key[0] == "0"):
        raise ValueError(f"not an index: {key!r}")
    index = int(key)
    if index >= len(items) + past_end:
        raise IndexError(index)
    return index


def _step(value: Any, key: str) -> Any:
    return value[_index(value, key)] if isinstance(value, list) else _object(value)[key]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("neither object nor list")
    return value


def _find(document: Any, path: list[str], *, missing_ok: bool = False) -> Any:
    """Return the value at *path*; with *missing_ok* a missing last key counts as null."""
    for depth, key in enumerate(path, 1):
        if missing_ok and depth == len(path) and isinstance(document, dict):
            return document.get(key)
        document = _step(document, key)
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        parent.insert(_index(parent, path[-1], past_end=True), value)
    else:
        _object(parent)[path[-1]] = value
    return document


def _set(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        parent[_index(parent, path[-1])] = value
    else:
        _object(parent)[path[-1]] = value
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        raise ValueError("the whole document cannot be removed")
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        return parent.pop(_index(parent, path[-1]))
    return _object(parent).pop(path[-1])
