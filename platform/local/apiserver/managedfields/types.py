"""Types of fields, as far as merging depends on them, from OpenAPI schemas.

A map or list is *granular*, so that each entry has owners, or *atomic*: owned as a whole.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..kinds import go_types
from ..kinds.info import KindInfo
from .fieldsets import FieldSet

Schema = Mapping[str, Any]

_QUANTITY = go_types.component("Quantity")
_RAW = go_types.component("runtime.RawExtension")
_METADATA: Schema = {
    "$ref": f"#/components/schemas/{go_types.component(go_types.OBJECT_META)}",
}
_STRING: Schema = {"type": "string"}
_EMBEDDED = "x-kubernetes-embedded-resource"


class FieldType:
    """Type of a field: what its scalars, maps and lists are, each ``None`` if it cannot be one."""

    __slots__ = ("_is_leaf", "items", "map", "scalar")

    def __init__(
        self,
        *,
        scalar: str | None = None,
        map: "MapType | None" = None,  # noqa: A002
        items: "ListType | None" = None,
    ) -> None:
        self.scalar = scalar
        """``string``, ``numeric``, ``boolean``, or ``untyped`` for any of them."""
        self.map = map
        self.items = items
        self._is_leaf: bool | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether all values are owned as a whole."""
        found = self._is_leaf
        if found is None:
            granular_map = self.map is not None and not self.map.atomic
            granular_list = self.items is not None and not self.items.atomic
            found = self._is_leaf = not (granular_map or granular_list)
        return found


class Shape(NamedTuple):
    """The paths in maps with the same keys."""

    leaves: FieldSet
    """With each field as a leaf."""

    nested: tuple[tuple[str, str, FieldType], ...]
    """Key, path element and type of fields that may have paths below them."""


class MapType:
    """Type of an object: declared fields, and values of all other keys."""

    __slots__ = ("_elements", "_fields", "_values", "atomic", "declared", "defaults", "shapes")

    def __init__(
        self,
        fields: Mapping[str, Callable[[], FieldType]],
        values: Callable[[], FieldType] | None,
        *,
        atomic: bool,
        defaults: Mapping[str, Any] = {},
    ) -> None:
        self.declared = frozenset(fields)
        self.atomic = atomic
        self.defaults = defaults
        """Default values of declared fields."""
        self._fields = dict(fields)
        self._values = values
        self._elements: dict[str, tuple[str, FieldType]] = {}
        """Path elements and types of the declared fields that were asked for."""
        self.shapes: dict[tuple[str, ...], Shape] = {}
        """Shapes of the values by their keys, as far as remembered."""

    def element(self, key: str) -> tuple[str, FieldType] | None:
        """Return the path element and the type of a key; ``None`` if it is not declared."""
        known = self._elements.get(key)
        if known is not None:
            return known
        found = self._fields.get(key, self._values)
        if found is None:
            return None
        known = f"f:{key}", found()
        if key in self._fields:
            self._elements[key] = known  # others are data, and have no end
        return known

    def type_of(self, key: str) -> FieldType | None:
        """Return the type of a key; ``None`` if it is not declared."""
        known = self.element(key)
        return None if known is None else known[1]

    def as_atomic(self, *, atomic: bool) -> "MapType":
        """Return the same type, *atomic* or not."""
        return MapType(self._fields, self._values, atomic=atomic, defaults=self.defaults)


class ListType:
    """Type of a list: *keys* identify its items; without keys it is a set of scalars."""

    __slots__ = ("_element", "atomic", "elements", "keys")

    def __init__(
        self, element: Callable[[], FieldType], *, atomic: bool, keys: tuple[str, ...] = ()
    ) -> None:
        self._element = element
        self.atomic = atomic
        self.keys = keys
        self.elements: dict[str, str] = {}
        """Path elements of the items by their only key, as far as remembered."""

    @property
    def element(self) -> FieldType:
        """Type of the items."""
        return self._element()


def _constant(type: FieldType) -> Callable[[], FieldType]:  # noqa: A002
    return lambda: type


ATOMIC = FieldType(scalar="untyped")
"""Any value, owned as a whole."""

ATOMIC.map = MapType({}, _constant(ATOMIC), atomic=True)
ATOMIC.items = ListType(_constant(ATOMIC), atomic=True)

DEDUCED = FieldType(scalar="untyped")
"""Any value without a schema: its maps are granular."""

DEDUCED.map = MapType({}, _constant(DEDUCED), atomic=False)
DEDUCED.items = ListType(_constant(ATOMIC), atomic=True)


@functools.lru_cache(maxsize=128)
def type_of_kind(kind: KindInfo) -> FieldType:
    """Return the type of the objects of *kind*."""
    if not kind.custom:
        resource = kind.resource
        return _component(
            go_types.component(go_types.message_name(resource.api_version, resource.kind))
        )
    schema = kind.openapi or {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return _compile({**schema, _EMBEDDED: True}, unknown=False)


def type_of_message(message: str) -> FieldType:
    """Return the type of a built-in message."""
    return _component(go_types.component(message))


@functools.cache
def _component(name: str) -> FieldType:
    """Return the type of a published schema."""
    if name == _QUANTITY:
        return FieldType(scalar="untyped")
    if name == _RAW:
        return ATOMIC
    return _compile(go_types.schemas()[name], unknown=False)


def _compile(schema: Schema, *, unknown: bool) -> FieldType:
    """Return the type of a schema; *unknown*: a schema around it preserves unknown fields."""
    unknown = unknown or schema.get("x-kubernetes-preserve-unknown-fields") is True
    kind = schema.get("type", "")
    if kind == "object":
        return FieldType(map=_map(schema, unknown=unknown))
    if kind == "array":
        return FieldType(items=_list(schema, unknown=unknown))
    if kind:
        return FieldType(scalar=_scalar(kind, schema.get("format", "")))
    return FieldType(
        scalar="untyped",
        map=_map(schema, unknown=unknown),
        items=_list(schema, unknown=unknown),
    )


def _scalar(kind: str, format: str) -> str:  # noqa: A002
    if kind in ("integer", "number"):
        return "numeric"
    if kind == "boolean":
        return "boolean"
    return "string" if kind == "string" and format in ("", "byte") else "untyped"


def _map(schema: Schema, *, unknown: bool) -> MapType:
    properties: Mapping[str, Schema] = schema.get("properties") or {}
    if schema.get(_EMBEDDED) is True:
        head = {"apiVersion": _STRING, "kind": _STRING, "metadata": _METADATA}
        properties = {**properties, **head}
    more = schema.get("additionalProperties")
    values: Callable[[], FieldType] | None = None
    if isinstance(more, Mapping):
        values = _reference(more, unknown=unknown)
    elif more is True or (more is None and (unknown or not properties)):
        values = _constant(DEDUCED)
    return MapType(
        {name: _reference(each, unknown=unknown) for name, each in properties.items()},
        values,
        atomic=schema.get("x-kubernetes-map-type") == "atomic",
        defaults={n: each["default"] for n, each in properties.items() if "default" in each},
    )


def _list(schema: Schema, *, unknown: bool) -> ListType:
    items = schema.get("items")
    element = _constant(ATOMIC) if items is None else _reference(items, unknown=unknown)
    kind = schema.get("x-kubernetes-list-type")
    if kind is not None:
        keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) if kind == "map" else ()
        return ListType(element, atomic=kind == "atomic", keys=keys)
    strategy = schema.get("x-kubernetes-patch-strategy", "")
    if strategy in ("merge", "merge,retainKeys"):
        key = schema.get("x-kubernetes-patch-merge-key")
        return ListType(element, atomic=False, keys=(key,) if key else ())
    return ListType(element, atomic=True)


def _reference(schema: Schema, *, unknown: bool) -> Callable[[], FieldType]:
    """Return a function that returns the type of *schema*, compiled on first use: types recurse."""
    all_of: list[Schema] = schema.get("allOf") or []
    reference = schema.get("$ref") or (all_of[0].get("$ref") if len(all_of) == 1 else None)
    if not reference:
        return functools.cache(lambda: _compile(schema, unknown=unknown))
    name = reference.rpartition("/")[2]
    relation = schema.get("x-kubernetes-map-type")

    @functools.cache
    def resolve() -> FieldType:
        found = _component(name)
        if relation is None or found.map is None:
            return found
        changed = found.map.as_atomic(atomic=relation == "atomic")
        return FieldType(scalar=found.scalar, map=changed, items=found.items)

    return resolve
