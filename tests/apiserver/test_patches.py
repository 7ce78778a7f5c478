"""The three types of patches; strategic ones against recorded results."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batholith.local.apiserver.kinds.patches import (
    PatchError,
    json_patch,
    merge_patch,
    strategic_merge,
)
from batholith.model.names import CONFIGMAPS, NODES, PODS, SERVICES, Resource

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "strategic-merge.json").read_text())
RESOURCES = {
    "Pod": PODS,
    "Node": NODES,
    "Service": SERVICES,
    "Deployment": Resource("apps", "v1", "deployments", "Deployment"),
}


@pytest.mark.parametrize("vector", VECTORS["cases"], ids=lambda vector: vector["name"])
def test_strategic_merges_give_the_recorded_results(vector: dict[str, Any]) -> None:
    document = vector.get("original", VECTORS["pod"])
    before = copy.deepcopy(document)
    if "error" in vector:
        with pytest.raises(PatchError) as caught:
            strategic_merge(RESOURCES[vector["kind"]], document, vector["patch"])
        assert caught.value.message == vector["error"]
    else:
        assert (
            strategic_merge(RESOURCES[vector["kind"]], document, vector["patch"])
            == vector["result"]
        )
    assert document == before


def test_items_added_by_a_patch_are_first_and_others_keep_their_order() -> None:
    old = {"spec": {"containers": [{"name": name} for name in "abc"]}}
    patch = {"spec": {"containers": [{"name": "new"}, {"name": "b", "image": "x"}]}}
    merged = strategic_merge(PODS, old, patch)
    assert [c["name"] for c in merged["spec"]["containers"]] == ["new", "a", "b", "c"]


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches(document: Any, patch: Any, result: Any) -> None:
    assert merge_patch(document, patch) == result


OBJECTS = st.recursive(
    st.integers() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), OBJECTS), st.dictionaries(
    st.sampled_from("abc"), OBJECTS | st.none()))  # fmt: skip
def test_a_merge_patch_is_idempotent(document: Any, patch: Any) -> None:
    before = copy.deepcopy(document)
    once = merge_patch(document, patch)
    assert merge_patch(once, patch) == once
    assert document == before


@pytest.mark.parametrize(
    ("document", "operations", "result"),
    [
        ({}, [{"op": "add", "path": "/a", "value": 1}], {"a": 1}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/0", "value": 0}], {"a": [0, 1]}),
        ({"a": 1}, [{"op": "remove", "path": "/a"}], {}),
        ({"a": [1, 2]}, [{"op": "replace", "path": "/a/1", "value": 3}], {"a": [1, 3]}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/b"}], {"b": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"a/b~": 1}, [{"op": "test", "path": "/a~1b~0", "value": 1}], {"a/b~": 1}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
        ({"a": 1}, [{"op": "test", "path": "/b", "value": None}], {"a": 1}),
    ],
)
def test_json_patches(document: Any, operations: Any, result: Any) -> None:
    before = copy.deepcopy(document)
    assert json_patch(document, operations) == result
    assert document == before


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/b"},
        {"op": "replace", "path": "/b", "value": 1},
        {"op": "add", "path": "/b/c", "value": 1},
        {"op": "add", "path": "/list/7", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "test", "path": "/a", "value": True},
        {"op": "move", "from": "/list", "path": "/list/x"},
        {"op": "nope", "path": "/a"},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "path": "/x"},
        {"path": "/a"},
        {"op": "add", "path": "/a/b", "value": 1},
        7,
    ],
)
def test_one_invalid_operation_fails_the_whole_json_patch(operation: Any) -> None:
    with pytest.raises(PatchError) as caught:
        json_patch({"a": 1, "list": [1]}, [{"op": "add", "path": "/x", "value": 1}, operation])
    assert (caught.value.status, caught.value.reason) == (422, "Invalid")


def test_malformed_patches_are_rejected() -> None:
    for apply in (json_patch, merge_patch):
        with pytest.raises(PatchError) as caught:
            apply({}, "x")
        assert caught.value.status == 400
    with pytest.raises(PatchError) as caught:
        json_patch({}, [{}] * 10_001)
    assert caught.value.status == 413


def test_many_retained_keys_take_linear_time() -> None:
    """Quadratic time would be minutes here."""
    names = [f"k{number}" for number in range(100_000)]
    document = {"data": dict.fromkeys(names, "")}
    patch = {"data": {"$retainKeys": names[::-1]}}
    assert strategic_merge(CONFIGMAPS, document, patch) == document


def test_many_items_are_deleted_from_a_list_in_linear_time() -> None:
    """Quadratic time would be minutes here."""
    finalizers = [f"a/{number}" for number in range(100_000)]
    document = {"metadata": {"finalizers": [*finalizers, "a/kept"]}}
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": finalizers[::-1]}}
    kept = {"metadata": {"finalizers": ["a/kept"]}}
    assert strategic_merge(CONFIGMAPS, document, patch) == kept


def test_a_patch_may_not_copy_a_large_element_again_and_again() -> None:
    wide = {"name": "c"} | {f"k{number}": 0 for number in range(50_000)}
    patch = {"spec": {"containers": [wide] + [{"name": "c"}] * 50_000}}
    with pytest.raises(PatchError) as caught:
        strategic_merge(PODS, {"spec": {}}, patch)
    assert caught.value.status == 413


def test_a_patch_may_name_an_element_several_times() -> None:
    patch = {"spec": {"containers": [{"name": "c", f"k{number}": 0} for number in range(500)]}}
    merged = strategic_merge(PODS, {"spec": {}}, patch)
    assert [len(each) for each in merged["spec"]["containers"]] == [501]
