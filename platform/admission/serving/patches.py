"""Compute the JSON Patch (RFC 6902) between two objects."""

from collections.abc import Iterator
from typing import Any

from ...model.admission import Json

Operation = dict[str, Any]


def create_patch(before: Json, after: Json) -> list[Operation]:
    """Return the operations from *before* to *after*; lists of unequal length are replaced."""
    return list(_diff_objects(before, after, ""))


def _diff_objects(before: Json, after: Json, path: str) -> Iterator[Operation]:
    for name in before.keys() - after.keys():
        yield {"op": "remove", "path": _join_pointer(path, name)}
    for name, value in after.items():
        if name not in before:
            yield {"op": "add", "path": _join_pointer(path, name), "value": value}
        else:
            yield from _diff_values(before[name], value, _join_pointer(path, name))


def _diff_values(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _diff_objects(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from _diff_values(*pair, f"{path}/{index}")
    elif type(before) is not type(after) or before != after:
        yield {"op": "replace", "path": path, "value": after}


def _join_pointer(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
