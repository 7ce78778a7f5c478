"""Discovery documents of the served kinds."""

from pathlib import Path

import pytest
from support.api_servers import EmbeddedServerFactory, ServerFactory
from support.embedded_apiserver import Server

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.discovery import documents


def test_the_core_group_is_listed_separately() -> None:
    core = documents.aggregated(BUILT_IN, core=True)
    others = documents.aggregated(BUILT_IN, core=False)
    assert [item["metadata"] for item in core["items"]] == [{}]
    names = [item["metadata"]["name"] for item in others["items"]]
    assert "" not in names
    assert names[:2] == ["apiregistration.k8s.io", "apps"]
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


def accepting(*versions: str) -> str:
    """Accept header of aggregated discovery in *versions*; ``""``: of the older documents."""
    return ",".join(
        f"application/json;g=apidiscovery.k8s.io;v={each};as=APIGroupDiscoveryList"
        if each
        else "application/json"
        for each in versions
    )


@pytest.mark.parametrize(
    ("accept", "served"),
    [
        (accepting("v2"), "apidiscovery.k8s.io/v2"),
        (accepting("v2", "v2beta1", ""), "apidiscovery.k8s.io/v2"),
        (accepting("", "v2"), "apidiscovery.k8s.io/v2"),
        (accepting("v3", ""), ""),
        (accepting("v3"), None),
        (accepting("").replace("json", "x"), None),
        (accepting("v2").replace("apidiscovery", "meta") + "," + accepting(""), ""),
        (accepting("v2").replace("Discovery", "") + "," + accepting(""), ""),
        ("*/*", ""),
        (accepting("v2").replace("application/json", "*/*"), "apidiscovery.k8s.io/v2"),
    ],
)
async def test_discovery_is_aggregated_in_a_version_that_the_client_accepts(
    servers: ServerFactory, tmp_path: Path, accept: str, served: str | None
) -> None:
    async with servers.start(tmp_path) as server:
        await expect_discovery(server, accept, served)


async def expect_discovery(server: Server, accept: str, served: str | None) -> None:
    for path, older in (("/api", "APIVersions"), ("/apis", "APIGroupList")):
        response = await server.request("GET", path, headers={"Accept": accept})
        if served is None:
            assert (response.status, response.body["reason"]) == (406, "NotAcceptable")
        elif served:
            assert (response.body["apiVersion"], response.body["kind"]) == (
                served,
                "APIGroupDiscoveryList",
            )
            version = served.split("/")[1]
            assert response.headers["Content-Type"] == accepting(version)
            assert response.body["items"]
        else:
            assert response.body["kind"] == older


@pytest.mark.parametrize("accept", [accepting("v2beta1"), accepting("v2beta1", "")])
async def test_clients_that_know_only_the_beta_get_it(tmp_path: Path, accept: str) -> None:
    async with EmbeddedServerFactory().start(tmp_path) as server:
        await expect_discovery(server, accept, "apidiscovery.k8s.io/v2beta1")
