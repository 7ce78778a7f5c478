"""Operations on objects that know their types: validation, field sets, comparison and merging."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .fieldsets import (
    LEAF,
    SELF,
    FieldSet,
    is_member,
    key_element,
    union_nodes,
    value_element,
    with_self,
)
from .types import FieldType, ListType, MapType, Shape

ABSENT: Any = object()
"""A missing value; ``None`` is a null."""


class TypeMismatchError(Exception):
    """An object does not have its type."""


class ItemError(Exception):
    """An item of a list cannot be identified."""


def shape_of(type: FieldType, value: Any) -> str:  # noqa: A002
    """Return what *value* is, or should be: ``map``, ``list`` or ``scalar``."""
    if isinstance(value, dict):
        if type.map is not None:
            return "map"
    elif isinstance(value, list):
        if type.items is not None:
            return "list"
    elif value is not None and type.scalar is not None:
        return "scalar"
    if type.map is not None:
        return "map"
    return "scalar" if type.scalar is not None else "list"


def element_of(items: ListType, item: Any) -> str:
    """Return the path element of an item of a granular list.

    Raises:
        ItemError: it has no keys, or is no scalar.
    """
    return _key_element(items, item) if items.keys else _value_element(item)


def _value_element(item: Any) -> str:
    if isinstance(item, dict):
        raise ItemError("associative list without keys has an element that's a map type")
    if isinstance(item, list):
        raise ItemError("not supported: associative list with lists as elements")
    if item is None:
        raise ItemError("associative list without keys has an element that's an explicit null")
    return value_element(item)


def _key_element(items: ListType, item: Any) -> str:
    if item is None:
        raise ItemError("associative list with keys may not have a null element")
    if not isinstance(item, dict):
        raise ItemError("associative list with keys may not have non-map elements")
    name = item.get(items.keys[0])
    if len(items.keys) == 1 and type(name) is str and len(name) <= _MAX_NAME_LENGTH:
        element = items.elements.get(name)
        if element is None:
            if len(items.elements) >= _MAX_SHAPES:
                items.elements.clear()
            element = items.elements[name] = key_element({items.keys[0]: name})
        return element
    keys = {}
    defaults = items.element.map.defaults if items.element.map is not None else {}
    for name in items.keys:
        value = item[name] if name in item else defaults.get(name)
        if name in item or value is not None:
            keys[name] = value
    if not keys:
        names = " ".join(f'"{name}"' for name in items.keys)
        raise ItemError(
            f"associative list with keys has an element that omits all key fields [{names}] (and "
            "doesn't have default values for any key fields)"
        )
    return key_element(keys)


def _elements(items: ListType, values: Iterable[Any]) -> list[str]:
    try:
        return [element_of(items, each) for each in values]
    except ItemError as error:
        raise TypeMismatchError(str(error)) from error


def field_set(type: FieldType, value: Any) -> FieldSet:  # noqa: A002
    """Return the set of the leaves and list items of *value*.

    Raises:
        TypeMismatchError: an item of a list has no keys.
    """
    return _field_set(type, value) or {}


def _field_set(type: FieldType, value: Any) -> FieldSet | None:  # noqa: A002
    """Return the set below *value*, ``{}`` if it is a leaf, ``None`` if there is nothing to own."""
    shape = shape_of(type, value)
    if shape == "map" and type.map is not None:
        if type.map.atomic:
            return {}
        return _map_set(type.map, value) if value and isinstance(value, dict) else None
    if shape == "list" and type.items is not None:
        if type.items.atomic:
            return {}
        return _list_set(type.items, value) if value and isinstance(value, list) else None
    return {}


def _map_set(type: MapType, value: dict[str, Any]) -> FieldSet | None:  # noqa: A002
    result = {}
    for key, item in value.items():
        item_type = type.type_of(key)
        if item_type is None:
            raise TypeMismatchError(f".{key}: field not declared in schema")
        node = _field_set(item_type, item)
        if item is None or item == {} or key not in type.declared:
            result[f"f:{key}"] = with_self(node)
        elif node is not None:
            result[f"f:{key}"] = node
    return result or None


def _list_set(type: ListType, value: list[Any]) -> FieldSet:  # noqa: A002
    result: FieldSet = {}
    elements = _elements(type, value)
    for element, item in zip(elements, value, strict=True):
        if element in result:
            result[element] = {}  # items with equal keys are owned as one
        else:
            result[element] = with_self(_field_set(type.element, item))
    return result


class Comparison(NamedTuple):
    """Paths of the fields that differ between two objects, by how."""

    removed: FieldSet = {}
    modified: FieldSet = {}
    added: FieldSet = {}


def compare(type: FieldType, old: Any, new: Any) -> Comparison:  # noqa: A002
    """Compare two objects of one type.

    Raises:
        TypeMismatchError: an object does not have the type.
    """
    found = _compare(type, old, new)
    return Comparison(*(fields or {} for fields in found))


_Differences = tuple[FieldSet | None, FieldSet | None, FieldSet | None]
"""Removed, modified and added paths below a value; ``{}`` is the value itself."""

_UNCHANGED: _Differences = (None, None, None)
_MODIFIED: _Differences = (None, {}, None)


def _compare(type: FieldType, old: Any, new: Any) -> _Differences:  # noqa: A002
    if old is ABSENT:
        return None, None, _whole(type, new)
    if new is ABSENT:
        return _whole(type, old), None, None
    if old == new:
        return _UNCHANGED
    before, after = shape_of(type, old), shape_of(type, new)
    if old is None:
        before = after
    elif new is None:
        after = before
    differences = _compare_as(after, type, old, new)
    if before != after:
        differences = _union_differences(_compare_as(before, type, old, new), differences)
    return differences


def _union_differences(one: _Differences, other: _Differences) -> _Differences:
    return tuple(  # type: ignore[return-value]
        theirs if mine is None else mine if theirs is None else union_nodes(mine, theirs)
        for mine, theirs in zip(one, other, strict=True)
    )


def _compare_as(shape: str, type: FieldType, old: Any, new: Any) -> _Differences:  # noqa: A002
    if shape == "map" and type.map is not None:
        left = old if isinstance(old, dict) else {}
        right = new if isinstance(new, dict) else {}
        if type.map.atomic or not (left or right):
            return _MODIFIED
        return _compare_maps(type.map, left, right)
    if shape == "list" and type.items is not None:
        before = old if isinstance(old, list) else []
        after = new if isinstance(new, list) else []
        if type.items.atomic or not (before or after):
            return _MODIFIED
        return _compare_lists(type.items, before, after)
    return _MODIFIED


def _compare_maps(type: MapType, old: dict[str, Any], new: dict[str, Any]) -> _Differences:  # noqa: A002
    found: tuple[FieldSet, FieldSet, FieldSet] = ({}, {}, {})
    for key in (*old, *(key for key in new if key not in old)):
        before, after = old.get(key, ABSENT), new.get(key, ABSENT)
        if before is not ABSENT and after is not ABSENT and before == after:
            continue
        known = type.element(key)
        if known is None:
            raise TypeMismatchError(f".{key}: field not declared in schema")
        _add_differences(found, known[0], _compare(known[1], before, after))
    return _non_empty(found)


def _compare_lists(type: ListType, old: list[Any], new: list[Any]) -> _Differences:  # noqa: A002
    found: tuple[FieldSet, FieldSet, FieldSet] = ({}, {}, {})
    before, after = _by_element(type, old), _by_element(type, new)
    for element in dict.fromkeys((*before, *after)):
        left, right = before.get(element, []), after.get(element, [])
        if len(left) > 1 and len(right) > 1:
            differences = _UNCHANGED if left == right else _MODIFIED
        elif len(left) > 1:
            # Items with equal keys are owned as one, and now there is one item or none.
            differences = ({}, None, _whole(type.element, right[0]) if right else None)
        elif len(right) > 1:
            differences = (_whole(type.element, left[0]) if left else None, None, {})
        else:
            differences = _compare(
                type.element, left[0] if left else ABSENT, right[0] if right else ABSENT
            )
        _add_differences(found, element, differences)
    return _non_empty(found)


def _by_element(type: ListType, values: list[Any]) -> dict[str, list[Any]]:  # noqa: A002
    found: dict[str, list[Any]] = {}
    for element, item in zip(_elements(type, values), values, strict=True):
        found.setdefault(element, []).append(item)
    return found


def _add_differences(
    found: tuple[FieldSet, FieldSet, FieldSet], element: str, differences: _Differences
) -> None:
    removed, modified, added = differences
    if removed is not None:
        found[0][element] = removed
    if modified is not None:
        found[1][element] = modified
    if added is not None:
        found[2][element] = added


def _non_empty(found: tuple[FieldSet, FieldSet, FieldSet]) -> _Differences:
    removed, modified, added = found
    return removed or None, modified or None, added or None


def _whole(type: FieldType, value: Any) -> FieldSet:  # noqa: A002
    """Return *value* itself and all paths below it."""
    if not value or type.is_leaf:
        return LEAF
    if type.map is not None and isinstance(value, dict):
        return LEAF if type.map.atomic else _whole_map(type.map, value)
    if type.items is not None and isinstance(value, list):
        return LEAF if type.items.atomic else _whole_list(type.items, value)
    return LEAF


def _whole_list(type: ListType, value: list[Any]) -> FieldSet:  # noqa: A002
    result = {SELF: LEAF}
    element_type = type.element
    for element, item in zip(_elements(type, value), value, strict=True):
        result[element] = LEAF if element in result else _whole(element_type, item)
    return result


def _whole_map(type: MapType, value: dict[str, Any]) -> FieldSet:  # noqa: A002
    # Most maps have the keys of many others, as the pods of a job.
    keys = tuple(value)
    shape = type.shapes.get(keys)
    if shape is None:
        shape = _shape(type, keys)
        if len(keys) <= _MAX_SHAPE_LENGTH and sum(map(len, keys)) <= _MAX_SHAPE_TEXT:
            if len(type.shapes) >= _MAX_SHAPES:
                type.shapes.clear()
            type.shapes[keys] = shape
    if not shape.nested:
        return shape.leaves
    result = shape.leaves.copy()
    for key, element, item_type in shape.nested:
        if item := value[key]:
            result[element] = _whole(item_type, item)
    return result


_MAX_SHAPES = 256
"""Sets of keys to remember of one type; those of labels have no end."""

_MAX_SHAPE_LENGTH = 64
"""Keys of a set that is remembered."""

_MAX_SHAPE_TEXT = 4096
"""Length of all of them."""

_MAX_NAME_LENGTH = 64
"""Length of a name in a list whose path element is remembered."""


def _shape(type: MapType, keys: tuple[str, ...]) -> Shape:  # noqa: A002
    leaves: FieldSet = {SELF: LEAF}
    nested = []
    for key in keys:
        known = type.element(key)
        if known is None:
            raise TypeMismatchError(f".{key}: field not declared in schema")
        element, item_type = known
        leaves[element] = LEAF  # keeps the order; nested ones are replaced
        if not item_type.is_leaf:
            nested.append((key, element, item_type))
    return Shape(leaves, tuple(nested))


def set_in_new(type: FieldType, empty: Any, new: Any) -> FieldSet:  # noqa: A002
    """Return the paths of what *new* sets, compared with the *empty* object.

    The same as what :func:`compare` finds added or modified, faster.

    Raises:
        TypeMismatchError: *new* does not have the type.
    """
    if type.map is None:
        return {}
    result: FieldSet = {}
    for key, item in new.items():
        known = type.map.element(key)
        if known is None:
            raise TypeMismatchError(f".{key}: field not declared in schema")
        element, item_type = known
        before = empty.get(key, ABSENT)
        if before is ABSENT:
            result[element] = _whole(item_type, item)
        elif before == item:
            continue
        elif item_type.is_leaf or not item:
            result[element] = LEAF
        elif isinstance(before, dict) and before:
            node = set_in_new(item_type, before, item)
            if node:
                result[element] = node
        else:
            node = {name: below for name, below in _whole(item_type, item).items() if name != SELF}
            if node:
                result[element] = node
    return result


def merge(type: FieldType, old: Any, new: Any) -> Any:  # noqa: A002
    """Return *old* with the values of *new*; nothing is removed.

    Raises:
        TypeMismatchError: an item of a list has no keys.
    """
    if old is ABSENT or new is ABSENT:
        return old if new is ABSENT else new
    shape = shape_of(type, old if new is None else new)
    if shape == "map" and type.map is not None:
        left = old if isinstance(old, dict) else {}
        right = new if isinstance(new, dict) else {}
        if type.map.atomic or not (left or right):
            return new
        return _merge_maps(type.map, left, right)
    if shape == "list" and type.items is not None:
        before = old if isinstance(old, list) else []
        after = new if isinstance(new, list) else []
        if type.items.atomic or not (before or after):
            return new
        return _merge_lists(type.items, before, after)
    return new


def _merge_maps(type: MapType, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:  # noqa: A002
    result = dict(old)
    for key, value in new.items():
        item_type = type.type_of(key)
        if item_type is None:
            raise TypeMismatchError(f".{key}: field not declared in schema")
        result[key] = merge(item_type, old.get(key, ABSENT), value)
    return result


def _merge_lists(type: ListType, old: list[Any], new: list[Any]) -> list[Any]:  # noqa: A002
    """Merge items of equal keys.

    Items of *new* keep their order. An item of *old* alone keeps its position among those of *old*
    whose order *new* does not change.
    """
    left, right = _elements(type, old), _elements(type, new)
    theirs = dict(zip(right, new, strict=True))
    mine: dict[str, Any] = {}
    for element, item in zip(left, old, strict=True):
        mine[element] = None if element in mine else item  # duplicates are not merged
    merged = {
        element: merge(type.element, mine.get(element, ABSENT), item)
        for element, item in theirs.items()
    }
    result: list[Any] = []
    for element, index in _merged_order(left, right):
        result.append(merged[element] if element in theirs else old[index])
    return result


def _merged_order(left: list[str], right: list[str]) -> Iterator[tuple[str, int]]:
    """Yield the elements of two lists in the order of their merge, with the index in *left*."""
    in_left, in_right = set(left), set(right)
    shared = deque(element for element in right if element in in_left)
    rest = deque(right)
    taken: set[str] = set()
    index = 0
    while index < len(left) or rest:
        mine = left[index] if index < len(left) else None
        if mine is not None and mine not in in_right:
            yield mine, index
            index += 1
            continue
        if mine is not None and rest and mine != rest[0]:
            # Its position is that in the other list.
            if shared and shared[0] != mine:
                index += 1
                continue
            if mine in taken:
                index += 1
        elif mine is not None:
            index += 1
        if rest:
            element = rest.popleft()
            taken.add(element)
            if shared and shared[0] == element:
                shared.popleft()
            yield element, -1


def remove(type: FieldType, value: Any, fields: FieldSet) -> Any:  # noqa: A002
    """Return *value* without the fields and items in *fields*; null if nothing is left."""
    shape = shape_of(type, value)
    if shape == "map" and type.map is not None:
        if not value or not isinstance(value, dict) or type.map.atomic:
            return None
        return _remove_keys(type.map, value, fields) or None
    if shape == "list" and type.items is not None:
        if not value or not isinstance(value, list) or type.items.atomic:
            return None
        return _remove_items(type.items, value, fields) or None
    return value


def _remove_keys(type: MapType, value: dict[str, Any], fields: FieldSet) -> dict[str, Any]:  # noqa: A002
    result = {}
    for key, item in value.items():
        node = fields.get(f"f:{key}")
        if node is None:
            result[key] = item
        elif not is_member(node):
            item_type = type.type_of(key)
            result[key] = item if item_type is None else remove(item_type, item, node)
    return result


def _remove_items(type: ListType, value: list[Any], fields: FieldSet) -> list[Any]:  # noqa: A002
    result = []
    for element, item in zip(_elements(type, value), value, strict=True):
        node = fields.get(element)
        if node is None:
            result.append(item)
        elif not is_member(node):
            result.append(remove(type.element, item, node))
    return result


def with_named_fields(type: FieldType | None, fields: FieldSet) -> FieldSet:  # noqa: A002
    """Return *fields* with each declared field that has members below it."""
    result = {}
    for key, node in fields.items():
        if key == SELF or not node:
            result[key] = node
            continue
        child, named = _child_type(type, key)
        below = with_named_fields(child, node)
        result[key] = with_self(below) if named else below
    return result


def _child_type(type: FieldType | None, element: str) -> tuple[FieldType | None, bool]:  # noqa: A002
    """Return the type at a path element, and whether it is a declared field."""
    if type is None:
        return None, False
    if element.startswith("f:"):
        if type.map is None:
            return None, False
        key = element[2:]
        return type.map.type_of(key), key in type.map.declared
    if element.startswith("k:") and type.items is not None:
        return type.items.element, False
    return None, False


def adapt(type: FieldType, fields: FieldSet) -> FieldSet:  # noqa: A002
    """Return *fields* after a change of the schema: what became atomic is owned as a whole."""
    return _adapt(type, fields, root=True)


def _adapt(type: FieldType, fields: FieldSet, *, root: bool = False) -> FieldSet:  # noqa: A002
    below = any(key != SELF for key in fields)
    if not below:
        return fields
    maps, items = type.map, type.items
    if maps is not None:
        if maps.atomic and not root:
            return {}
        result = {}
        for key, node in fields.items():
            child = maps.type_of(key[2:]) if key.startswith("f:") else None
            result[key] = node if child is None else _adapt(child, node)
        return result
    if items is not None:
        if items.atomic:
            return {}
        return {
            key: node if key == SELF else _adapt(items.element, node)
            for key, node in fields.items()
        }
    return fields
