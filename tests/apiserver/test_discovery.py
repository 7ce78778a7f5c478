"""Discovery documents of the served kinds."""

from batholith.apiserver.builtin.kinds import BUILT_IN
from batholith.apiserver.discovery import documents


def test_the_core_group_is_listed_separately() -> None:
    core = documents.aggregated(BUILT_IN, core=True)
    others = documents.aggregated(BUILT_IN, core=False)
    assert [item["metadata"] for item in core["items"]] == [{}]
    names = [item["metadata"]["name"] for item in others["items"]]
    assert "" not in names
    assert names[0] == "apps"
    assert len(names) == len(set(names))


def test_a_pod_is_listed_with_its_short_name_and_subresources() -> None:
    versions = documents.aggregated(BUILT_IN, core=True)["items"][0]["versions"]
    pods = next(entry for entry in versions[0]["resources"] if entry["resource"] == "pods")
    assert pods["scope"] == "Namespaced"
    assert pods["shortNames"] == ["po"]
    assert pods["categories"] == ["all"]
    eviction = next(
        subresource
        for subresource in pods["subresources"]
        if subresource["subresource"] == "eviction"
    )
    assert eviction["responseKind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}


def test_the_legacy_list_has_the_group_of_a_foreign_body() -> None:
    listed = documents.resource_list(BUILT_IN, "apps/v1")
    assert listed is not None
    entries = {entry["name"]: entry for entry in listed["resources"]}
    assert entries["deployments"]["singularName"] == "deployment"
    assert entries["deployments/scale"] == {
        "name": "deployments/scale",
        "singularName": "",
        "namespaced": True,
        "group": "autoscaling",
        "version": "v1",
        "kind": "Scale",
        "verbs": ["get", "patch", "update"],
    }
    assert "group" not in entries["deployments/status"]


def test_unserved_groups_have_no_document() -> None:
    assert documents.group(BUILT_IN, "nope.example") is None
    assert documents.resource_list(BUILT_IN, "nope.example/v1") is None
    assert documents.group(BUILT_IN, "") is None


def test_a_group_has_its_preferred_version() -> None:
    batch = documents.group(BUILT_IN, "batch")
    assert batch is not None
    assert batch["preferredVersion"] == {"groupVersion": "batch/v1", "version": "v1"}
    assert batch["apiVersion"] == "v1"
