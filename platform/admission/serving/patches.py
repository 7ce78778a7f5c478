"""The difference of two JSON objects as a JSON patch (RFC 6902)."""

from collections.abc import Iterator
from typing import Any

from ...model.admission import Json

Operation = dict[str, Any]


def difference(before: Json, after: Json) -> list[Operation]:
    """The operations that make *after* of *before*; lists of another length are replaced whole."""
    return list(_objects(before, after, ""))


def _objects(before: Json, after: Json, path: str) -> Iterator[Operation]:
    for name in before.keys() - after.keys():
        yield {"op": "remove", "path": _below(path, name)}
    for name, value in after.items():
        if name not in before:
            yield {"op": "add", "path": _below(path, name), "value": value}
        else:
            yield from _values(before[name], value, _below(path, name))


def _values(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _objects(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from _values(*pair, f"{path}/{index}")
    elif type(before) is not type(after) or before != after:
        yield {"op": "replace", "path": path, "value": after}


def _below(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
