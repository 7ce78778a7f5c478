"""Custom kinds: recorded objects, and schema features one by one."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.custom.crds import (
    default_crd,
    is_established,
    reconciled_status,
    terminating_status,
    validate_crd,
)
from batholith.local.apiserver.custom.kinds import custom_kinds
from batholith.local.apiserver.custom.schema import compile_schema
from batholith.local.apiserver.errors.fields import MalformedError
from batholith.local.apiserver.kinds.info import KindInfo
from batholith.model import crds as own_crds

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "custom-objects.json").read_text())
DEFINITION = next(kind for kind in BUILT_IN if kind.resource.kind == "CustomResourceDefinition")


def kind_of(crd: dict[str, Any]) -> KindInfo:
    crd = copy.deepcopy(crd)
    assert DEFINITION.prepare(crd) == []
    assert DEFINITION.validate(crd) == []
    return custom_kinds(crd)[0]


@pytest.mark.parametrize(
    "vector", RECORDED["cases"], ids=lambda vector: str(vector["body"]["metadata"])
)
def test_objects_are_accepted_and_rejected_as_recorded(vector: dict[str, Any]) -> None:
    kind = kind_of(RECORDED["crds"][vector["crd"]])
    obj = copy.deepcopy(vector["body"])
    if "generateName" in obj["metadata"]:
        obj["metadata"]["name"] = obj["metadata"]["generateName"] + "abcde"
    kind.prepare(obj)
    kind.before_create(obj)
    causes = [[error.reason, error.field, error.detail] for error in kind.validate(obj)]
    if "causes" in vector:
        assert causes == vector["causes"]
    else:
        assert causes == []
        del obj["metadata"]
        assert obj == vector["result"]


def schema(**spec: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}


def prepared(openapi: dict[str, Any], **spec: Any) -> tuple[dict[str, Any], list[str], list[str]]:
    compiled = compile_schema(openapi)
    obj = {"apiVersion": "x.y/v1", "kind": "K", "metadata": {"name": "a"}, "spec": spec}
    unknown = compiled.prune(obj)
    compiled.default(obj)
    return obj["spec"], unknown, [error.message for error in compiled.validate(obj)]  # type: ignore[return-value]


INT = {"type": "integer"}
TEXT = {"type": "string"}


def test_unknown_fields_are_reported_with_their_indices() -> None:
    items = {"type": "array", "items": {"type": "object", "properties": {"a": TEXT}}}
    maps = {"type": "object", "additionalProperties": items["items"]}
    spec, unknown, _ = prepared(schema(l=items, m=maps), l=[{"a": "x", "b": 1}], m={"k": {"c": 1}})
    assert spec == {"l": [{"a": "x"}], "m": {"k": {}}}
    assert unknown == ["spec.l[0].b", "spec.m.k.c"]


def test_preserved_fields_are_kept_but_known_fields_below_are_pruned() -> None:
    node = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {"known": {"type": "object", "properties": {"a": TEXT}}},
    }
    spec, unknown, errors = prepared(schema(free=node), free={"any": 1, "known": {"a": "", "b": 2}})
    assert spec == {"free": {"any": 1, "known": {"a": ""}}}
    assert (unknown, errors) == (["spec.free.known.b"], [])


def test_nulls_are_replaced_by_defaults_if_not_nullable() -> None:
    fields = {"a": {**INT, "default": 1}, "b": INT, "c": {**INT, "nullable": True, "default": 3}}
    spec, unknown, errors = prepared(schema(**fields), a=None, b=None, c=None)
    assert spec == {"a": 1, "c": None}
    assert (unknown, errors) == ([], [])


def test_defaults_are_copies() -> None:
    openapi = schema(list={"type": "array", "items": INT, "default": [1]})
    first, _, _ = prepared(openapi)
    first["list"].append(2)
    assert prepared(openapi)[0] == {"list": [1]}


@pytest.mark.parametrize(
    ("node", "good", "bad", "message"),
    [
        (INT, 3, "3", 'spec.x in body must be of type integer: "string"'),
        (INT, 2.0, True, 'spec.x in body must be of type integer: "boolean"'),
        ({"type": "number"}, 1.5, [], 'must be of type number: "array"'),
        ({"type": "boolean"}, True, 1, 'must be of type boolean: "integer"'),
        ({**INT, "maximum": 3}, 3, 4, "should be less than or equal to 3"),
        ({**INT, "minimum": 1, "exclusiveMinimum": True}, 2, 1, "should be greater than 1"),
        ({**INT, "multipleOf": 5}, 10, 7, "should be a multiple of 5"),
        ({**TEXT, "minLength": 2}, "ab", "a", "should be at least 2 chars long"),
        ({**TEXT, "maxLength": 2}, "ab", "abc", "Too long: may not be more than 2 bytes"),
        ({**TEXT, "pattern": "^a$"}, "a", "a\n", "should match '^a$'"),
        ({**TEXT, "enum": ["a"]}, "a", "b", 'Unsupported value: "b": supported values: "a"'),
        ({**TEXT, "format": "duration"}, "1h", "1x", 'must be of type duration: "1x"'),
        ({**TEXT, "format": "ipv4"}, "1.2.3.4", "1.2.3", "must be of type ipv4"),
        ({**TEXT, "format": "password"}, "x", None, ""),
        ({"x-kubernetes-int-or-string": True}, "50%", 1.5, "must be of type integer,string"),
        ({"type": "array", "items": INT, "maxItems": 1}, [1], [1, 2], "Too many: 2"),
        ({"type": "array", "items": INT, "minItems": 1}, [1], [], "should have at least 1 items"),
        ({"type": "object", "additionalProperties": INT, "maxProperties": 1},
         {"a": 1}, {"a": 1, "b": 2}, "Too many: 2"),
        ({"type": "object", "properties": {"a": INT}, "required": ["a"]},
         {"a": 1}, {}, "spec.x.a: Required value"),
        ({**INT, "anyOf": [{"minimum": 5}, {"maximum": 2}]}, 1, 3, "at least one schema (anyOf)"),
        ({**INT, "oneOf": [{"minimum": 2}, {"maximum": 4}]}, 5, 3, "only one schema (oneOf)"),
        ({**INT, "allOf": [{"minimum": 2}, {"maximum": 4}]}, 3, 5, "all the schemas (allOf)"),
        ({**INT, "not": {"enum": [3]}}, 4, 3, "must not validate the schema (not)"),
        ({"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
         ["a", "b"], ["a", "a"], 'spec.x[1]: Duplicate value: "a"'),
    ],
)  # fmt: skip
def test_each_check_accepts_valid_and_reports_invalid_values(
    node: dict[str, Any], good: Any, bad: Any, message: str
) -> None:
    assert prepared(schema(x=node), x=good)[2] == []
    if bad is not None:
        errors = prepared(schema(x=node), x=bad)[2]
        assert any(message in error for error in errors), errors


def test_unchanged_invalid_values_are_tolerated() -> None:
    compiled = compile_schema(schema(a={**INT, "maximum": 1}, b=INT))
    old = {"spec": {"a": 5, "b": 1}}
    assert compiled.validate({"spec": {"a": 5, "b": 2}}) != []
    assert compiled.validate({"spec": {"a": 5, "b": 2}}, old) == []
    assert compiled.validate({"spec": {"a": 6, "b": 1}}, old) != []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["mode", "items", "o", "name", "x"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(JSON)
def test_preparing_is_idempotent_and_removes_unknown_fields(spec: Any) -> None:
    kind = kind_of(RECORDED["crds"]["hoos.ex.io"])
    obj = {"apiVersion": "ex.io/v1", "kind": "Hoo", "metadata": {"name": "a"}, "spec": spec}
    kind.prepare(obj)
    once = copy.deepcopy(obj)
    assert kind.prepare(obj) == []
    assert obj == once
    kind.validate(obj)


@pytest.mark.parametrize("crd", own_crds.load(), ids=lambda crd: crd["metadata"]["name"])
def test_our_own_crds_are_valid(crd: dict[str, Any]) -> None:
    kind = kind_of(crd)
    obj = {"kind": kind.resource.kind, "metadata": {"name": "a"}, "bogus": 1}
    assert kind.prepare(obj) == ["bogus"]


def test_metadata_of_custom_objects_is_decoded_like_that_of_built_in_ones() -> None:
    kind = kind_of(RECORDED["crds"]["foos.ex.io"])
    with pytest.raises(MalformedError, match="cannot unmarshal number into Go struct field"):
        kind.prepare({"kind": "Foo", "metadata": {"name": 5}})
    obj = {"kind": "Foo", "metadata": {"name": "a", "nope": 1}, "spec": {"mode": "a"}}
    assert kind.prepare(obj) == ["metadata.nope"]


def test_selectable_fields_and_columns_are_those_of_the_version() -> None:
    kind = kind_of(RECORDED["crds"]["foos.ex.io"])
    assert kind.field_value({"metadata": {}, "spec": {"mode": "b"}}, "spec.mode") == "b"
    assert [column.name for column in kind.columns] == ["Replicas", "Phase", "Age"]
    assert set(kind.subresources) == {"status", "scale"}
    assert kind.scale_paths["labelSelectorPath"] == ".status.selector"


def crd_with(**changes: Any) -> dict[str, Any]:
    crd: dict[str, Any] = copy.deepcopy(RECORDED["crds"]["foos.ex.io"])
    crd["spec"] |= changes
    return crd


def with_node(node: dict[str, Any]) -> dict[str, Any]:
    version = {"name": "v1", "served": True, "storage": True}
    openapi = {"type": "object", "properties": {"x": node}}
    return crd_with(versions=[{**version, "schema": {"openAPIV3Schema": openapi}}])


@pytest.mark.parametrize(
    ("crd", "field"),
    [
        (crd_with(group="other.io"), "metadata.name"),
        (crd_with(scope="Global"), "spec.scope"),
        (crd_with(versions=[]), "spec.versions"),
        (with_node({}), "spec.validation.openAPIV3Schema.properties[x].type"),
        (with_node({"type": "array"}), "spec.validation.openAPIV3Schema.properties[x].items"),
        (with_node({"type": "text"}), "spec.validation.openAPIV3Schema.properties[x].type"),
        (with_node({**INT, "default": "a"}),
         "spec.validation.openAPIV3Schema.properties[x].default"),
        (with_node({**INT, "anyOf": [{"type": "integer"}]}),
         "spec.validation.openAPIV3Schema.properties[x].anyOf[0].type"),
        (with_node({**TEXT, "pattern": "("}),
         "spec.validation.openAPIV3Schema.properties[x].pattern"),
        (with_node({"type": "array", "items": {"type": "object", "properties": {"a": TEXT}},
                    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}),
         "spec.validation.openAPIV3Schema.properties[x].items.properties[a].default"),
    ],
)  # fmt: skip
def test_invalid_crds_are_rejected(crd: dict[str, Any], field: str) -> None:
    default_crd(crd)
    assert field in [error.field for error in validate_crd(crd)]


def test_group_scope_and_names_of_a_crd_are_immutable() -> None:
    old = crd_with()
    errors = validate_crd(crd_with(scope="Cluster"), old)
    assert [error.message for error in errors] == [
        'spec.scope: Invalid value: "Cluster": field is immutable'
    ]


def named(plural: str, kind: str, short: str) -> dict[str, Any]:
    names = {"plural": plural, "kind": kind, "shortNames": [short]}
    crd = crd_with(names=names)
    crd["metadata"] = {"name": f"{plural}.ex.io"}
    default_crd(crd)
    return crd


def test_names_are_accepted_for_the_first_crd_only() -> None:
    first, second = named("foos", "Foo", "fo"), named("goos", "Goo", "fo")
    first["status"] = reconciled_status(first, [first, second], "t1")
    assert is_established(first)
    assert first["status"]["acceptedNames"]["listKind"] == "FooList"
    assert first["status"]["storedVersions"] == ["v1"]
    second["status"] = reconciled_status(second, [first, second], "t2")
    assert not is_established(second)
    assert [c["reason"] for c in second["status"]["conditions"]] == [
        "ShortNamesConflict",
        "NotAccepted",
    ]
    assert "shortNames" not in second["status"]["acceptedNames"]
    assert reconciled_status(second, [first], "t3") == second["status"]
    second["status"] = reconciled_status(second, [second], "t4")
    assert is_established(second)


def test_a_terminating_crd_has_a_condition() -> None:
    crd = named("foos", "Foo", "fo")
    crd["status"] = terminating_status(crd, "t1")
    done = terminating_status(crd, "t2", in_progress=True)
    assert done["conditions"][0] == {
        "type": "Terminating",
        "status": "True",
        "lastTransitionTime": "t1",
        "reason": "InstanceDeletionInProgress",
        "message": "CustomResource deletion is in progress",
    }


def test_the_preferred_version_is_first() -> None:
    crd = crd_with()
    versions = [
        {**crd["spec"]["versions"][0], "name": name, "storage": name == "v1beta1"}
        for name in ("v1alpha1", "v1beta1", "v10", "v2", "v1beta2")
    ]
    crd["spec"]["versions"] = versions
    default_crd(crd)
    kinds = custom_kinds(crd)
    assert [k.resource.version for k in kinds] == ["v10", "v2", "v1beta2", "v1beta1", "v1alpha1"]
    assert {kind.storage_version for kind in kinds} == {"v1beta1"}
