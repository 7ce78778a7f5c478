"""OpenAPI v3 as kubectl reads it."""

import re
from typing import Any

import msgspec
import pytest

from batholith.local.apiserver.builtin.kinds import BUILT_IN, COMPUTED
from batholith.local.apiserver.custom.kinds import custom_kinds
from batholith.local.apiserver.discovery import openapi
from batholith.model import crds as own_crds

OWN = [kind for crd in own_crds.load() for kind in custom_kinds(crd)]
KINDS = [*BUILT_IN, *COMPUTED, *OWN]


def document(root: str) -> dict[str, Any]:
    found = openapi.document(root, KINDS)
    assert found is not None
    return found


def test_the_index_names_every_group_version_with_a_hash_that_follows_the_content() -> None:
    paths = openapi.index(KINDS)["paths"]
    assert {"api/v1", "apis/apps/v1", "apis/batch.volcano.sh/v1alpha1"} <= paths.keys()
    address = paths["api/v1"]["serverRelativeURL"]
    assert re.fullmatch(r"/openapi/v3/api/v1\?hash=[0-9A-F]{128}", address)
    assert openapi.index(list(KINDS)) == openapi.index(KINDS)
    fewer = openapi.index([kind for kind in KINDS if kind.resource.plural != "pods"])["paths"]
    assert fewer["api/v1"] != paths["api/v1"]
    assert fewer["apis/apps/v1"] == paths["apis/apps/v1"]
    assert openapi.document("apis/nope/v1", KINDS) is None


@pytest.mark.parametrize("root", sorted(openapi.index(KINDS)["paths"]))
def test_references_can_be_resolved_and_no_operation_has_empty_parameters(root: str) -> None:
    found = document(root)
    text = msgspec.json.encode(found).decode()
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names <= found["components"]["schemas"].keys()
    # Go's types lose an empty list, and a document should be equal to what they write of it.
    assert '"parameters":[]' not in text


def test_patches_of_built_in_kinds_support_field_validation_and_strategic_merge() -> None:
    patch = document("apis/apps/v1")["paths"][
        "/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    ]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {
        "group": "apps",
        "version": "v1",
        "kind": "Deployment",
    }
    assert "fieldValidation" in [each["name"] for each in patch["parameters"]]
    assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]


def test_patches_of_custom_kinds_do_not_support_strategic_merge() -> None:
    path = "/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs/{name}"
    patch = document("apis/batch.volcano.sh/v1alpha1")["paths"][path]["patch"]
    assert "fieldValidation" in [each["name"] for each in patch["parameters"]]
    assert set(patch["requestBody"]["content"]) == {
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
    }


def test_lists_have_their_merge_key() -> None:
    schemas = document("api/v1")["components"]["schemas"]
    spec = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]
    assert spec["containers"]["x-kubernetes-patch-merge-key"] == "name"
    assert spec["volumes"]["x-kubernetes-patch-strategy"] == "merge,retainKeys"
    assert "x-kubernetes-patch-strategy" not in spec["tolerations"]
    metadata = schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]
    assert metadata["finalizers"]["x-kubernetes-patch-strategy"] == "merge"
    assert metadata["ownerReferences"]["x-kubernetes-patch-merge-key"] == "uid"


def test_a_custom_kind_has_its_schema_with_the_common_fields() -> None:
    schemas = document("apis/batch.volcano.sh/v1alpha1")["components"]["schemas"]
    job = schemas["sh.volcano.batch.v1alpha1.Job"]
    assert {"apiVersion", "kind", "metadata", "spec", "status"} <= job["properties"].keys()
    assert "minAvailable" in job["properties"]["spec"]["properties"]
    assert job["x-kubernetes-group-version-kind"][0]["kind"] == "Job"
    assert "sh.volcano.batch.v1alpha1.JobList" in schemas


def test_metrics_of_nodes_and_pods_are_described_and_can_only_be_read() -> None:
    found = document("apis/metrics.k8s.io/v1beta1")
    package = "io.k8s.metrics.pkg.apis.metrics.v1beta1"
    pods = found["components"]["schemas"][f"{package}.PodMetrics"]
    assert pods["properties"].keys() == {
        "apiVersion", "containers", "kind", "metadata", "timestamp", "window",
    }  # fmt: skip
    (kind,) = found["components"]["schemas"][f"{package}.NodeMetrics"][
        "x-kubernetes-group-version-kind"
    ]
    assert kind == {"group": "metrics.k8s.io", "kind": "NodeMetrics", "version": "v1beta1"}
    methods = {key for item in found["paths"].values() for key in item if key != "parameters"}
    assert methods == {"get"}


def test_the_index_does_not_read_descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise AssertionError(f"{name} was described")

    kinds = [kind for kind in KINDS if kind.resource.plural != "nodes"]  # not cached yet
    monkeypatch.setattr(openapi, "described", fail)
    before = openapi.index(kinds)["paths"]
    monkeypatch.setattr(openapi, "source_version", lambda: "another version of the texts")
    after = openapi.index(kinds)["paths"]
    assert all(before[root] != after[root] for root in before)


def test_all_fields_of_metadata_are_described() -> None:
    schema = document("api/v1")["components"]["schemas"]
    properties = schema["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]
    assert all(each["description"] for each in properties.values())
    pod = schema["io.k8s.api.core.v1.Pod"]["properties"]["metadata"]
    assert pod["allOf"][0]["$ref"].endswith("ObjectMeta")
    assert pod["description"]  # that of its type
