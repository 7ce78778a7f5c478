"""The table of the built-in kinds: field selectors and updates."""

from typing import Any

import pytest

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.kinds.info import KindInfo


def kind(name: str, group: str = "") -> KindInfo:
    return next(k for k in BUILT_IN if (k.resource.kind, k.resource.group) == (name, group))


def test_resources_are_unique() -> None:
    keys = [(k.resource.group, k.resource.version, k.resource.plural) for k in BUILT_IN]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("metadata.name", "a"),
        ("metadata.namespace", "ns"),
        ("spec.host", "n1"),
        ("spec.nodeName", "n1"),
        ("spec.hostNetwork", "false"),
        ("status.phase", ""),
        ("spec.nope", None),
    ],
)
def test_field_selectors_see_the_fields_of_a_pod(label: str, value: str | None) -> None:
    pod = {"metadata": {"name": "a", "namespace": "ns"}, "spec": {"nodeName": "n1"}}
    assert kind("Pod").field_value(pod, label) == value


def test_a_cluster_scoped_kind_has_no_namespace_to_select() -> None:
    assert kind("Node").field_value({"metadata": {"name": "n"}}, "metadata.namespace") is None
    cordoned = {"metadata": {"name": "n"}, "spec": {"unschedulable": True}}
    assert kind("Node").field_value(cordoned, "spec.unschedulable") == "true"


def job(parallelism: int, **more: Any) -> dict[str, Any]:
    metadata = {"name": "j", "uid": "u", "generation": 3}
    return {"metadata": metadata, "spec": {"parallelism": parallelism}, **more}


def test_an_update_keeps_status_and_increases_the_generation_if_the_spec_changes() -> None:
    old = job(1, status={"active": 1})
    new = {"metadata": {"name": "j"}, "spec": {"parallelism": 2}, "status": {"active": 9}}
    kind("Job", "batch").before_update(new, old)
    assert new["status"] == {"active": 1}
    assert new["metadata"] == {"name": "j", "uid": "u", "generation": 4}


def test_an_update_of_labels_keeps_the_generation() -> None:
    new = job(1)
    new["metadata"] = {"name": "j", "labels": {"a": "b"}, "generation": 77}
    kind("Job", "batch").before_update(new, job(1))
    assert new["metadata"]["generation"] == 3


def test_a_status_update_changes_nothing_else() -> None:
    new = job(5, status={"active": 2})
    new["metadata"] = {"name": "j", "labels": {"a": "b"}}
    kind("Job", "batch").before_status_update(new, job(1))
    assert new["spec"] == {"parallelism": 1}
    assert new["status"] == {"active": 2}
    assert new["metadata"]["labels"] == {"a": "b"}
    assert new["metadata"]["generation"] == 3


def test_a_new_object_starts_with_an_empty_status() -> None:
    new = job(1, status={"active": 1})
    kind("Job", "batch").before_create(new)
    assert new["status"] == {}
    assert new["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("metadata", "fields"),
    [
        ({"name": "ok", "labels": {"a/b": "c"}}, []),
        ({}, ["metadata.name"]),
        ({"name": "A_bad"}, ["metadata.name"]),
        ({"name": "a", "labels": {"-x": "y"}}, ["metadata.labels"]),
        ({"name": "a", "labels": {"x": "y z"}}, ["metadata.labels"]),
        ({"name": "a", "annotations": {"x": "y" * 300_000}}, ["metadata.annotations"]),
        ({"name": "a", "ownerReferences": [{"kind": "K", "name": "n", "uid": "u"}]},
         ["metadata.ownerReferences.apiVersion"]),
        ({"name": "a", "finalizers": ["not a name/x"]}, ["metadata.finalizers"]),
        ({"name": "a", "finalizers": ["unqualified"]}, ["metadata.finalizers[0]"]),
        ({"name": "abc", "generateName": "ab-"}, []),
        ({"name": "abc", "generateName": "A-"}, ["metadata.generateName"]),
    ],
)  # fmt: skip
def test_metadata_is_validated(metadata: dict[str, Any], fields: list[str]) -> None:
    errors = kind("LimitRange").validate({"metadata": metadata})
    assert [error.field for error in errors] == fields


def test_names_and_uids_are_immutable_and_a_terminating_object_gets_no_new_finalizer() -> None:
    old = {"metadata": {"name": "a", "uid": "1", "deletionTimestamp": "x", "finalizers": ["f/a"]}}
    new = {"metadata": {**old["metadata"], "name": "b", "uid": "2", "finalizers": ["f/a", "f/b"]}}
    errors = kind("LimitRange").validate(new, old)
    assert [error.field for error in errors] == [
        "metadata.name",
        "metadata.uid",
        "metadata.finalizers",
    ]
    assert errors[0].message == 'metadata.name: Invalid value: "b": field is immutable'
    assert errors[2].reason == "FieldValueForbidden"


def test_a_namespace_name_is_a_label() -> None:
    assert kind("Namespace").validate({"metadata": {"name": "a.b"}}) != []
    assert kind("ConfigMap").validate({"metadata": {"name": "a.b"}}) == []
    assert (
        kind("Role", "rbac.authorization.k8s.io").validate({"metadata": {"name": "system:x"}}) == []
    )
