"""Sets of field paths, in the form of ``FieldsV1``.

A set is a tree of dicts whose keys are path elements: ``f:<name>`` is a field or a key of a map,
``k:<json>`` the item of a list with these keys, ``v:<json>`` an item of a set. An element belongs
to the set if its dict is empty or contains ``"."``. Sets are never modified: functions return new
ones, which may share nodes with their arguments.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

FieldSet = dict[str, Any]
Path = tuple[str, ...]

SELF = "."
"""Key that marks a node with children as a member."""

LEAF: FieldSet = {}
"""Node of an element without children."""


class InvalidElementError(Exception):
    """A path element cannot be decoded."""


def is_member(node: FieldSet) -> bool:
    """Whether the element of *node* belongs to the set itself."""
    return not node or SELF in node


def with_self(node: FieldSet | None) -> FieldSet:
    """Return *node* as a member of its set; ``None`` has no children."""
    if not node or SELF in node:
        return node or {}
    return {SELF: {}, **node}


def key_element(keys: dict[str, Any]) -> str:
    """Return the element of the list item with these *keys*."""
    return "k:" + _json({name: keys[name] for name in sorted(keys)})


def value_element(value: Any) -> str:
    """Return the element of the item *value* of a set."""
    return "v:" + _json(value)


def _json(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    # As Go encodes strings, since elements are compared as text.
    if "<" in text or ">" in text or "&" in text:
        text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return text


def union(one: FieldSet, other: FieldSet) -> FieldSet:
    """Return the paths in either set."""
    if not one or not other:
        return one or other
    result = dict(one)
    for key, node in other.items():
        mine = result.get(key)
        if mine is None or mine is node:
            result[key] = node
            continue
        result[key] = union_nodes(mine, node)
    return result


def union_of(sets: Sequence[FieldSet]) -> FieldSet:
    """Return the paths in any of the sets, one at least.

    Halves are united, since thousands one by one would take the time of their square.
    """
    if len(sets) == 1:
        return sets[0]
    middle = len(sets) // 2
    return union(union_of(sets[:middle]), union_of(sets[middle:]))


def union_nodes(one: FieldSet, other: FieldSet) -> FieldSet:
    """Return the union of two nodes, a member if one of them is."""
    merged = union(one, other)
    return with_self(merged) if is_member(one) or is_member(other) else merged


def intersection(one: FieldSet, other: FieldSet) -> FieldSet:
    """Return the paths in both sets."""
    result = {}
    for key, mine in one.items():
        theirs = other.get(key)
        if theirs is None or key == SELF:
            continue
        node = intersection(mine, theirs)
        if is_member(mine) and is_member(theirs):
            result[key] = with_self(node)
        elif node:
            result[key] = node
    return result


def difference(one: FieldSet, other: FieldSet) -> FieldSet:
    """Return the paths in *one* that are not in *other*; children of a path in *other* stay."""
    if not other:
        return one
    result = {}
    for key, mine in one.items():
        if key == SELF:
            continue
        theirs = other.get(key)
        if theirs is None:
            result[key] = mine
            continue
        node = difference(mine, theirs) if mine else {}
        node = {name: child for name, child in node.items() if name != SELF}
        if is_member(mine) and not is_member(theirs):
            result[key] = with_self(node)
        elif node:
            result[key] = node
    return result


def recursive_difference(one: FieldSet, other: FieldSet) -> FieldSet:
    """Return the paths in *one* that are neither in *other* nor below a path in it."""
    result = {}
    for key, mine in one.items():
        theirs = other.get(key)
        if theirs is None or key == SELF:
            result[key] = mine
        elif not is_member(theirs):
            node = recursive_difference(mine, theirs)
            if node or not mine:
                result[key] = {} if node.keys() == {SELF} else node
    return result


def has(fields: FieldSet, path: Sequence[str]) -> bool:
    """Whether *path* belongs to the set."""
    for element in path:
        child = fields.get(element)
        if child is None:
            return False
        fields = child
    return bool(path) and is_member(fields)


def paths(fields: FieldSet, prefix: Path = ()) -> Iterator[Path]:
    """Yield the paths in the order of Kubernetes: the members of a node before their children."""
    children = sorted((key for key in fields if key != SELF), key=_order)
    for key in children:
        if is_member(fields[key]):
            yield (*prefix, key)
    for key in children:
        if fields[key]:
            yield from paths(fields[key], (*prefix, key))


def _order(element: str) -> tuple[str, list[tuple[str, int, Any]]]:
    """Sort key: fields by name, then items by their keys, then values."""
    kind, _, text = element.partition(":")
    if kind == "k":
        keys = msgspec.json.decode(text)
        return "g", [(name, *_value_order(value)) for name, value in sorted(keys.items())]
    if kind == "v":
        return "h", [("", *_value_order(msgspec.json.decode(text)))]
    return kind, [(text, 0, 0)]


def _value_order(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool):
        return 2, value
    if isinstance(value, int | float):
        return 0, value
    return (1, value) if isinstance(value, str) else (3, 0)


def path_text(path: Sequence[str]) -> str:
    """Return *path* as in messages: ``.spec.containers[name="a"].image``."""
    return "".join(map(element_text, path))


def element_text(element: str) -> str:
    """Return one path element as in messages."""
    kind, _, text = element.partition(":")
    if kind == "k":
        keys = msgspec.json.decode(text)
        return "[" + ",".join(f"{name}={_quoted(keys[name])}" for name in sorted(keys)) + "]"
    if kind == "v":
        return f"[={_quoted(msgspec.json.decode(text))}]"
    return f"[{text}]" if kind == "i" else f".{text}"


def _quoted(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def decode(fields: Any) -> FieldSet:
    """Return the set of a client's ``fieldsV1``, with path elements as encoded here.

    Elements of unknown types are left out.

    Raises:
        InvalidElementError: it is no tree of path elements.
    """
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise InvalidElementError("fieldsV1 is no object")
    result: FieldSet = {}
    for key, value in fields.items():
        if key == SELF:
            continue
        element = _decode_element(key)
        if element is None:
            continue
        node = decode(value)
        # An empty child may result from elements that were left out: it is a member, as in Go.
        if SELF in value or not node:
            node = with_self(node)
        known = result.get(element)
        result[element] = node if known is None else union_nodes(known, node)
    return result


def _decode_element(key: str) -> str | None:
    if len(key) < 2 or key[1] != ":":
        raise InvalidElementError(f"no path element: {key}")
    kind, text = key[0], key[2:]
    if kind == "f":
        return key
    if kind not in "kvi":
        return None
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidElementError(f"no path element: {key}") from error
    if kind == "k":
        if not isinstance(value, dict):
            raise InvalidElementError(f"no path element: {key}")
        return key_element(value)
    if kind == "v":
        return value_element(value)
    if type(value) is not int:
        raise InvalidElementError(f"no path element: {key}")
    return f"i:{value}"
