"""The patch of a flow: a strategic merge on the spec of its template.

Objects are merged, lists with a key by their key, other lists are replaced. The keys are those of
the Job's schema (``x-kubernetes-list-map-keys``), and the names of tasks and mount paths of
volumes. A new item is appended. Nothing can be removed: the schema allows neither nulls nor
directives.

Volcano's definition of JobFlow sets in each patch the defaults of a Job, ``queue`` and
``maxRetry`` among them, and Batholith's sets none. So a patch that has both of these fields may be
one of Volcano's: then a field with its default value does not override the template. In other
patches each field does.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from ..model import crds
from ..model.names import JOBS

Json = dict[str, Any]

_ALWAYS_DEFAULTED = ("queue", "maxRetry")
"""Fields that each patch has which Volcano's definition has defaulted."""

_KEYS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("tasks",): ("name",),
    ("volumes",): ("mountPath",),
}
"""Keys of lists for which the schema has none, by path."""


class PatchError(Exception):
    """A patch cannot be applied to its template."""


def apply_patch(spec: Json, patch: Json) -> Json:
    """Return *spec* of a JobTemplate with *patch* merged into it.

    Raises:
        PatchError: an item of a list lacks its key.
    """
    schema = _job_spec_schema()
    if all(field in patch for field in _ALWAYS_DEFAULTED):
        patch = _without_defaults(patch, schema)
    return _merge_objects(spec, patch, schema, ())


@cache
def _job_spec_schema() -> Json:
    name = f"{JOBS.plural}.{JOBS.group}"
    definition = next(each for each in crds.load() if each["metadata"]["name"] == name)
    (version,) = definition["spec"]["versions"]
    schema: Json = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def _without_defaults(value: Any, schema: Json) -> Any:
    """Return *value* without the fields that have the default of *schema*."""
    if isinstance(value, list):
        items = schema.get("items", {})
        return [_without_defaults(each, items) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, inner in value.items():
        field = _field(schema, name)
        if "default" not in field or field["default"] != inner:
            kept[name] = _without_defaults(inner, field)
    return kept


def _field(schema: Json, name: str) -> Json:
    """Return the schema of a field; empty if it is unknown."""
    known: Json = schema.get("properties", {}).get(name) or schema.get("additionalProperties", {})
    return known


def _merge_objects(old: Json, patch: Json, schema: Json, path: tuple[str, ...]) -> Json:
    merged = dict(old)
    for name, value in patch.items():
        field, at = _field(schema, name), (*path, name)
        before = old.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            merged[name] = _merge_objects(before, value, field, at)
        elif isinstance(value, list) and (keys := _keys(field, at)):
            merged[name] = _merge_lists(before or [], value, field, at, keys)
        else:
            merged[name] = value
    return merged


def _keys(schema: Json, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of a list's items; empty if the list is replaced."""
    if schema.get("x-kubernetes-list-type") == "map":
        return tuple(schema["x-kubernetes-list-map-keys"])
    return _KEYS.get(path, ())


def _merge_lists(
    old: list[Any], patch: list[Any], schema: Json, path: tuple[str, ...], keys: tuple[str, ...]
) -> list[Any]:
    items = schema.get("items", {})
    if path == ("tasks",):
        old, patch = _with_names(old, patch)
    merged = {_identity(each, items, keys, path): each for each in old}
    for change in patch:
        identity = _identity(change, items, keys, path)
        before = merged.get(identity)
        merged[identity] = change if before is None else _merge_objects(before, change, items, path)
    return list(merged.values())


def _with_names(old: list[Any], patch: list[Any]) -> tuple[list[Any], list[Any]]:
    """Name the tasks without a name: as the Job's defaults do, or as the template's only task."""
    named = [{"name": f"default{number}"} | task for number, task in enumerate(old)]
    if len(named) == 1 and len(patch) == 1:
        patch = [{"name": named[0]["name"]} | patch[0]]
    return named, patch


def _identity(
    item: Mapping[str, Any], schema: Json, keys: tuple[str, ...], path: tuple[str, ...]
) -> tuple[Any, ...]:
    values = []
    for key in keys:
        value = item.get(key, _field(schema, key).get("default"))
        if value is None:
            raise PatchError(f"{'.'.join(path)}: an item has no {key}")
        values.append(value)
    return tuple(values)
