"""Sets of field paths, and operations on typed objects, apart from any server."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.random_applies import KINDS

from batholith.local.apiserver.discovery.catalog import Catalog
from batholith.local.apiserver.kinds.typed_json import zero_object
from batholith.local.apiserver.managedfields import fieldsets, type_checks, typed
from batholith.local.apiserver.managedfields.fieldsets import (
    FieldSet,
    InvalidElementError,
    paths,
    union,
)
from batholith.local.apiserver.managedfields.typed import TypeMismatchError
from batholith.local.apiserver.managedfields.types import FieldType, ListType, MapType, type_of_kind
from batholith.model import names

Json = dict[str, Any]
Paths = frozenset[tuple[str, ...]]

_ELEMENTS = st.sampled_from(("f:a", "f:b", 'k:{"name":"x"}', 'v:"y"'))
PATHS = st.frozensets(st.lists(_ELEMENTS, min_size=1, max_size=3).map(tuple), max_size=6)
CATALOG = Catalog()
TEXT = FieldType(scalar="string")


def set_of(members: Paths) -> FieldSet:
    result: FieldSet = {}
    for path in members:
        fields: FieldSet = {}
        for element in reversed(path):
            fields = {element: fields}
        result = union(result, fields)
    return result


def below(path: tuple[str, ...], others: Paths) -> bool:
    return any(path[:length] in others for length in range(1, len(path) + 1))


@given(PATHS, PATHS)
def test_operations_are_those_of_sets_of_paths(one: Paths, other: Paths) -> None:
    left, right = set_of(one), set_of(other)
    assert set(paths(left)) == one
    assert set(paths(union(left, right))) == one | other
    assert set(paths(fieldsets.intersection(left, right))) == one & other
    assert set(paths(fieldsets.difference(left, right))) == one - other
    kept = {path for path in one if not below(path, other)}
    assert set(paths(fieldsets.recursive_difference(left, right))) == kept
    assert all(fieldsets.has(left, path) == (path in one) for path in one | other)
    assert (fieldsets.difference(left, right) == {}) == (one <= other)


@given(PATHS)
def test_a_decoded_set_is_the_encoded_one(members: Paths) -> None:
    encoded = set_of(members)
    assert fieldsets.decode(encoded) == encoded


def test_path_elements_are_encoded_like_those_of_go() -> None:
    sent: Json = {"f:a": {'k:{"b": 1, "a":"<"}': {".": {}, "f:x": {}}, "z:unknown": {}}}
    decoded = fieldsets.decode(sent)
    assert decoded == {"f:a": {'k:{"a":"\\u003c","b":1}': {".": {}, "f:x": {}}}}
    shown = [fieldsets.path_text(path) for path in paths(decoded)]
    assert shown == ['.a[a="<",b=1]', '.a[a="<",b=1].x']


@pytest.mark.parametrize("key", ["a", "", "xa", "k:1", "k:{", "v:{", "i:x", 'i:"1"'])
def test_what_is_no_path_element_is_rejected(key: str) -> None:
    with pytest.raises(InvalidElementError):
        fieldsets.decode({key: {}})


def test_members_precede_their_children_in_the_order_of_their_keys() -> None:
    members = [
        ("f:b",),
        ("f:a", "f:x"),
        ("f:a", 'k:{"n":10}'),
        ("f:a", 'k:{"n":2}'),
        ("f:a", "v:true"),
        ("f:a", "v:3"),
    ]
    assert list(paths(set_of(frozenset(members)))) == [
        ("f:b",),
        ("f:a", "f:x"),
        ("f:a", 'k:{"n":2}'),
        ("f:a", 'k:{"n":10}'),
        ("f:a", "v:3"),
        ("f:a", "v:true"),
    ]


@st.composite
def built_in_objects(draw: st.DrawFn) -> tuple[FieldType, Json, Json, Json]:
    """The type of a built-in kind, its empty object and two random ones."""
    kind = draw(st.sampled_from([each for each in KINDS if not each.custom]))
    group, _, version = kind.api_version.rpartition("/")
    info = CATALOG.get(group, version, kind.path.rpartition("/")[2])
    assert info is not None
    one, other = (kind.body("x", {}, draw(kind.content)) for _ in range(2))
    return type_of_kind(info), zero_object(info.resource), one, other


@given(built_in_objects())
def test_what_a_new_object_sets_is_what_differs_from_the_empty_one(
    drawn: tuple[FieldType, Json, Json, Json],
) -> None:
    type_, empty, new, _ = drawn
    found = typed.compare(type_, empty, new)
    assert typed.set_in_new(type_, empty, new) == union(found.modified, found.added)


@given(built_in_objects())
def test_a_merge_has_all_that_was_applied(drawn: tuple[FieldType, Json, Json, Json]) -> None:
    type_, _, old, new = drawn
    merged = typed.merge(type_, old, new)
    applied = typed.field_set(type_, new)
    changed = typed.compare(type_, new, merged)
    assert fieldsets.intersection(applied, changed.modified) == {}
    assert fieldsets.intersection(applied, changed.removed) == {}
    assert typed.merge(type_, merged, new) == merged


@given(built_in_objects())
def test_comparing_backwards_swaps_added_and_removed(
    drawn: tuple[FieldType, Json, Json, Json],
) -> None:
    type_, _, old, new = drawn
    forth, back = typed.compare(type_, old, new), typed.compare(type_, new, old)
    assert (forth.removed, forth.modified, forth.added) == (back.added, back.modified, back.removed)


def _set_of_texts() -> FieldType:
    return FieldType(items=ListType(lambda: TEXT, atomic=False))


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [
        ("abc", "c", "abc"),
        ("abc", "ca", "bca"),
        ("abc", "dc", "abdc"),
        ("abc", "ba", "bca"),
        ("ab", "xy", "abxy"),
        ("", "ba", "ba"),
        ("aab", "ca", "cab"),
    ],
)
def test_a_merged_list_has_the_order_of_the_applied_one(old: str, new: str, merged: str) -> None:
    found = typed.merge(_set_of_texts(), list(old), list(new))
    assert "".join(found) == merged


def test_items_with_equal_keys_are_owned_as_one() -> None:
    type_ = _set_of_texts()
    owned = typed.field_set(FieldType(map=_struct(s=type_)), {"s": ["a", "a", "b"]})
    assert owned == {"f:s": {'v:"a"': {}, 'v:"b"': {}}}
    found = typed.compare(type_, ["a", "a"], ["a"])
    assert found.removed == {'v:"a"': {}} == found.added


def _struct(**fields: FieldType) -> MapType:
    return MapType(
        {name: partial(_same, each) for name, each in fields.items()}, None, atomic=False
    )


def _same(type_: FieldType) -> FieldType:
    return type_


def test_an_item_without_keys_is_a_mismatch() -> None:
    item = FieldType(map=_struct(name=TEXT))
    type_ = FieldType(items=ListType(lambda: item, atomic=False, keys=("name",)))
    with pytest.raises(TypeMismatchError, match="omits all key fields"):
        typed.field_set(FieldType(map=_struct(l=type_)), {"l": [{}]})
    (problem,) = type_checks.validate(type_, [{"name": "a"}, {"name": "a"}])
    assert problem == 'duplicate entries for key [name="a"]'


def test_the_selector_of_a_service_is_owned_as_a_whole() -> None:
    type_ = type_of_kind(CATALOG.require(names.SERVICES))
    owned = typed.field_set(type_, {"spec": {"selector": {"a": "b"}, "ports": [{"port": 1}]}})
    port = 'k:{"port":1,"protocol":"TCP"}'
    assert owned == {"f:spec": {"f:selector": {}, "f:ports": {port: {".": {}, "f:port": {}}}}}
