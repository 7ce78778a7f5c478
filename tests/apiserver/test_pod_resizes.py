"""The subresource of pods that changes CPU and memory of their containers, on both API servers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.api_servers import ServerFactory
from support.embedded_apiserver import MERGE, PODS, RawResponse, Server, pod
from support.polling import wait_until_true

Json = dict[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"
NAMESPACE = "/api/v1/namespaces/default"

pytestmark = [pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(
    servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Server]:
    """One server for all tests: each has a pod with another name."""
    async with servers.start(tmp_path_factory.mktemp("server")) as running:
        yield running


def resources(cpu: str = "", memory: str = "", *, limits: Json | None = None) -> Json:
    """Return requests of those that are given, and limits."""
    found = {name: text for name, text in (("cpu", cpu), ("memory", memory)) if text}
    return {"requests": found} | ({"limits": limits} if limits else {})


def sized(name: str, given: Json, **more: Any) -> Json:
    """Return a pod with resources; *more* are fields of its container."""
    created = pod(name)
    created["spec"]["containers"][0] |= {"resources": given, **more}
    return created


async def resize(server: Server, name: str, given: Json, **container: Any) -> RawResponse:
    """Patch the resources of a pod's container."""
    return await _resize(server, f"{PODS}/{name}/resize", given, container)


async def review(server: Server, name: str, given: Json) -> RawResponse:
    """The same as a dry run: the informers of a real server may not have what rejects it yet."""
    return await _resize(server, f"{PODS}/{name}/resize?dryRun=All", given, {})


async def _resize(server: Server, path: str, given: Json, container: Json) -> RawResponse:
    body = {"spec": {"containers": [{"name": "main", "resources": given, **container}]}}
    return await server.request("PATCH", path, body, content_type=STRATEGIC)


async def test_cpu_and_memory_change_and_nothing_else(server: Server) -> None:
    created = await server.create(PODS, sized("kept", resources("1", "64Mi")))
    body = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "activeDeadlineSeconds": 5,
            "containers": [
                {
                    "name": "main", "image": "other",
                    "resources": resources("2", limits={"memory": "128Mi"}),
                }
            ],
        },
        "status": {"phase": "Failed"},
    }  # fmt: skip
    path = f"{PODS}/kept/resize"
    response = await server.request("PATCH", path, body, content_type=STRATEGIC)
    assert response.status == 200, response.body
    after = await server.get(f"{PODS}/kept")
    assert await server.get(path) == after
    container = after["spec"]["containers"][0]
    assert container.pop("resources") == {
        "requests": {"cpu": "2", "memory": "64Mi"},
        "limits": {"memory": "128Mi"},
    }
    before = created["spec"]["containers"][0]
    del before["resources"]
    assert after["spec"] == created["spec"]
    assert after["status"] == created["status"]
    assert after["metadata"]["generation"] == created["metadata"]["generation"] + 1
    assert "labels" not in after["metadata"]


async def test_the_pod_itself_cannot_be_written_with_other_resources(server: Server) -> None:
    created = await server.create(PODS, sized("itself", resources("1")))
    created["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
    response = await server.request("PUT", f"{PODS}/itself", created)
    assert response.status == 422
    assert "pod updates may not change fields other than" in response.body["message"]
    response = await server.request("PUT", f"{PODS}/itself/resize", created)
    assert response.status == 200, response.body


INVALID: dict[str, tuple[Json, Json, str]] = {
    "another QoS class": ({}, resources("1"), "Pod QOS Class may not change as a result"),
    "removed requests": (
        resources("1", "1Mi"),
        {"requests": {"cpu": None}},
        "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
    ),
    "removed limits": (
        resources("1", limits={"memory": "64Mi"}),
        {"limits": {"memory": None}},
        "resource limits cannot be removed",
    ),
    "other resources": (
        resources("1"),
        {"requests": {"ephemeral-storage": "1Gi"}},
        "spec: Forbidden: only cpu and memory resources are mutable",
    ),
    "requests above limits": (
        resources("1", limits={"cpu": "2"}),
        {"requests": {"cpu": "3"}},
        "must be less than or equal to cpu limit of 2",
    ),
    "no quantity": (resources("1"), {"requests": {"cpu": "many"}}, "quantities must match"),
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_resize_is_rejected_and_changes_nothing(server: Server, name: str) -> None:
    given, patch, error = INVALID[name]
    own = name.replace(" ", "-").lower()
    created = await server.create(PODS, sized(own, given))
    response = await resize(server, own, patch)
    assert response.status in (400, 422), response.body
    assert error in response.body["message"]
    assert (await server.get(f"{PODS}/{own}"))["spec"] == created["spec"]


async def test_containers_and_policies_of_a_resize_are_fixed(server: Server) -> None:
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    created = await server.create(PODS, sized("fixed", resources("1"), resizePolicy=policy))
    assert created["spec"]["containers"][0]["resizePolicy"] == policy
    path, more = f"{PODS}/fixed/resize", {"name": "more", "image": "a"}
    created["spec"]["containers"].append({**created["spec"]["containers"][0], **more})
    response = await server.request("PUT", path, created)
    assert "containers may not be added or removed on resize" in response.body["message"]
    bare = {key: value for key, value in created.items() if key != "spec"}
    response = await server.request("PUT", path, bare)
    assert response.status == 422, response.body
    assert "spec.containers" in response.body["message"]
    del created["spec"]["containers"][1]
    created["spec"]["containers"][0]["name"] = "renamed"
    response = await server.request("PUT", path, created)
    assert "containers may not be renamed or reordered on resize" in response.body["message"]
    other = [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]
    response = await resize(server, "fixed", resources("2"), resizePolicy=other)
    assert response.status == 422
    assert "only cpu and memory resources are mutable" in response.body["message"]


POLICIES: dict[str, tuple[list[Json], str]] = {
    "twice": (
        [{"resourceName": "cpu", "restartPolicy": "NotRequired"}] * 2,
        'spec.containers[0].resizePolicy[1]: Duplicate value: "cpu"',
    ),
    "of-storage": (
        [{"resourceName": "storage", "restartPolicy": "NotRequired"}],
        'spec.containers[0].resizePolicy: Unsupported value: "storage"',
    ),
    "unknown": (
        [{"resourceName": "cpu", "restartPolicy": "Sometimes"}],
        'spec.containers[0].resizePolicy: Unsupported value: "Sometimes"',
    ),
    "without-a-restart": (
        [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
        "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
    ),
}


@pytest.mark.parametrize("name", POLICIES)
async def test_an_invalid_resize_policy_is_rejected(server: Server, name: str) -> None:
    policy, error = POLICIES[name]
    body = sized(name, resources("1"), resizePolicy=policy)
    body["spec"]["restartPolicy"] = "Never"
    response = await server.request("POST", PODS, body)
    assert response.status == 422, response.body
    assert error in response.body["message"]


async def test_only_sidecars_of_init_containers_may_restart_on_resize(server: Server) -> None:
    body = sized("init", resources("1"))
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    first = {"name": "first", "image": "a", "resources": resources("1"), "resizePolicy": policy}
    body["spec"]["initContainers"] = [first]
    response = await server.request("POST", PODS, body)
    assert response.status == 422, response.body
    text = "must not be set to 'RestartContainer' for non-sidecar initContainers"
    assert text in response.body["message"]
    first["restartPolicy"] = "Always"
    await server.create(PODS, body)
    patch = {"spec": {"initContainers": [{"name": "first", "resources": resources("2")}]}}
    response = await server.request("PATCH", f"{PODS}/init/resize", patch, content_type=STRATEGIC)
    assert response.status == 200, response.body
    assert response.body["spec"]["initContainers"][0]["resources"] == resources("2")


async def test_a_pod_on_a_node_that_does_not_resize_is_left_alone(server: Server) -> None:
    await server.create(PODS, sized("old", resources("1")))
    running = {"name": "main", "state": {"running": {}}, "image": "", "imageID": "",
        "ready": True, "restartCount": 0}  # fmt: skip
    body = {"status": {"containerStatuses": [running]}}
    path = f"{PODS}/old/status"
    assert (await server.request("PATCH", path, body, content_type=MERGE)).status == 200
    response = await resize(server, "old", resources("2"))
    assert response.status == 422
    assert "Pod running on node without support for resize" in response.body["message"]
    running["resources"] = resources("1")
    assert (await server.request("PATCH", path, body, content_type=MERGE)).status == 200
    assert (await resize(server, "old", resources("2"))).status == 200


async def test_a_resize_may_exceed_neither_a_limit_range_nor_a_quota(server: Server) -> None:
    limits = [{"type": "Container", "max": {"cpu": "4"}}]
    spec = resources("1", limits={"cpu": "1"})
    await server.create(PODS, sized("ranged", spec))
    ranges, quotas = f"{NAMESPACE}/limitranges", f"{NAMESPACE}/resourcequotas"
    await server.create(ranges, {"metadata": {"name": "r"}, "spec": {"limits": limits}})
    larger = {"requests": {"cpu": "5"}, "limits": {"cpu": "5"}}

    async def exceeds(text: str) -> bool:
        response = await review(server, "ranged", larger)
        return response.status == 403 and text in response.body["message"]

    await wait_until_true(lambda: exceeds("maximum cpu usage per Container is 4"))
    assert (await server.request("DELETE", f"{ranges}/r")).status == 200
    await server.create(
        quotas, {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "1"}}}
    )
    await wait_until_true(lambda: exceeds("exceeded quota: q, requested: requests.cpu=4"))
    assert (await server.request("DELETE", f"{quotas}/q")).status == 200
    stored = await server.get(f"{PODS}/ranged")
    assert stored["spec"]["containers"][0]["resources"] == spec


async def test_a_pod_cannot_be_resized_beyond_its_node(server: Server) -> None:
    status = {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "9"}}
    node = await server.create("/api/v1/nodes", {"metadata": {"name": "small"}})
    path = "/api/v1/nodes/small/status"
    assert (await server.request("PUT", path, {**node, "status": status})).status == 200
    body = sized("bound", resources("1", "64Mi"))
    body["spec"]["nodeName"] = "small"
    await server.create(PODS, body)

    async def denied() -> bool:
        response = await review(server, "bound", resources("5", "2Gi"))
        return (
            response.status == 403
            and (
                "node didn't have enough allocatable resources: cpu, requested: 5000, allocatable: "
                "4000; memory, requested: 2147483648, allocatable: 1073741824"
            )
            in response.body["message"]
        )

    await wait_until_true(denied)
    assert (await resize(server, "bound", resources("4"))).status == 200
