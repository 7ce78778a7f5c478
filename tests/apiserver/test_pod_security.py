"""Pod Security levels of namespaces, on both servers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, add_namespace, merge_patch
from support.embedded_apiserver import MERGE, RawResponse, Server, pod
from support.polling import wait_until_equal, wait_until_true

from batholith.model.names import NAMESPACES, PODS, Resource

Json = dict[str, Any]
LABEL = "pod-security.kubernetes.io"
HOST_PORT = {"containerPort": 80, "hostPort": 80}
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
SECURED = PODS.path("secured")
STRATEGIC_MERGE = "application/strategic-merge-patch+json"


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path) as started:
        await add_namespace(started, "secured", labels={f"{LABEL}/enforce": "baseline"})
        yield started


def exposed(name: str) -> Json:
    return pod(name, containers=[{"name": "main", "image": "i", "ports": [HOST_PORT]}])


async def patch(server: Server, path: str, body: Json) -> RawResponse:
    return await server.request("PATCH", path, body, content_type=MERGE)


async def test_a_pod_that_violates_the_level_is_rejected(server: Server) -> None:
    response = await server.request("POST", SECURED, exposed("p"))
    assert (response.status, response.body["message"]) == (
        403,
        'pods "p" is forbidden: violates PodSecurity "baseline:latest": hostPort (container "main" '
        "uses hostPort 80)",
    )
    assert (await server.request("GET", f"{SECURED}/p")).status == 404
    await server.create(SECURED, pod("p"))
    await server.create("/api/v1/namespaces/default/pods", exposed("p"))


async def test_a_template_that_violates_the_level_causes_a_warning(server: Server) -> None:
    labels = {"app": "x"}
    spec = {
        "replicas": 0,
        "selector": {"matchLabels": labels},
        "template": {**exposed(""), "metadata": {"labels": labels}},
    }
    body = {"metadata": {"name": "d"}, "spec": spec}
    response = await server.request("POST", DEPLOYMENTS.path("secured"), body)
    assert response.status == 201
    assert (
        'would violate PodSecurity "baseline:latest": hostPort (container "main" uses hostPort 80)'
    ) in response.warnings


async def test_an_existing_pod_is_checked_when_its_image_changes(server: Server) -> None:
    """The real server decides by informers: nothing is changed until they have what was written."""
    path = NAMESPACES.path("", "relaxed")
    pods = PODS.path("relaxed")
    await add_namespace(server, "relaxed", labels={f"{LABEL}/enforce": "privileged"})
    await server.create(pods, exposed("p"))
    await merge_patch(server, f"{pods}/p/status", {"status": {"phase": "Running"}})
    strict = {"metadata": {"labels": {f"{LABEL}/enforce": "baseline"}}}

    async def warnings() -> object:
        return (await patch(server, f"{path}?dryRun=All", strict)).warnings

    await wait_until_equal(
        warnings,
        [
            'existing pods in namespace "relaxed" violate the new PodSecurity enforce level '
            '"baseline:latest"',
            "p: hostPort",
        ],
    )
    await merge_patch(server, path, strict)
    ports = [HOST_PORT | {"protocol": "TCP"}]
    image = {"spec": {"containers": [{"name": "main", "image": "other", "ports": ports}]}}
    message = ""

    async def rejected() -> bool:
        nonlocal message
        changed = await server.request(
            "PATCH", f"{pods}/p?dryRun=All", image, content_type=STRATEGIC_MERGE
        )
        message = str(changed.body.get("message"))
        return changed.status == 403

    await wait_until_true(rejected)
    assert 'violates PodSecurity "baseline:latest": hostPort' in message
    labelled = await patch(server, f"{pods}/p", {"metadata": {"labels": {"a": "b"}}})
    assert labelled.status == 200
