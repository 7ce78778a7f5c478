"""The subresource of pods through which ephemeral containers are added, on both API servers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.api_servers import ServerFactory
from support.embedded_apiserver import MERGE, PODS, RawResponse, Server, pod
from support.polling import wait_until_true

Json = dict[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

pytestmark = [pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(
    servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Server]:
    """One server for all tests: each has a pod with another name."""
    async with servers.start(tmp_path_factory.mktemp("server")) as running:
        yield running


async def send(
    server: Server, name: str, *containers: Json, media: str = STRATEGIC, query: str = ""
) -> RawResponse:
    """Patch the ephemeral containers of a pod."""
    body = {"spec": {"ephemeralContainers": list(containers)}}
    path = f"{PODS}/{name}/ephemeralcontainers{query}"
    return await server.request("PATCH", path, body, content_type=media)


def debugger(name: str = "debugger", **more: Any) -> Json:
    return {"name": name, "image": "busybox", **more}


async def test_containers_are_added_with_defaults(server: Server) -> None:
    created = await server.create(PODS, pod("added"))
    first = await send(server, "added", debugger(stdin=True, tty=True))
    assert first.status == 200, first.body
    second = await send(server, "added", debugger("other", targetContainerName="main"))
    assert second.status == 200, second.body
    stored = await server.get(f"{PODS}/added")
    assert await server.get(f"{PODS}/added/ephemeralcontainers") == stored
    found = {each["name"]: each for each in stored["spec"]["ephemeralContainers"]}
    assert found.keys() == {"debugger", "other"}
    assert found["debugger"] == {
        "name": "debugger", "image": "busybox", "stdin": True, "tty": True, "resources": {},
        "imagePullPolicy": "Always", "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }  # fmt: skip
    assert stored["metadata"]["generation"] == created["metadata"]["generation"] + 2


async def test_a_write_changes_nothing_but_ephemeral_containers(server: Server) -> None:
    created = await server.create(PODS, pod("kept"))
    body = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e.io/f"]},
        "spec": {"activeDeadlineSeconds": 5, "ephemeralContainers": [debugger()]},
        "status": {"phase": "Failed"},
    }
    path = f"{PODS}/kept/ephemeralcontainers"
    response = await server.request("PATCH", path, body, content_type=STRATEGIC)
    assert response.status == 200, response.body
    after = await server.get(f"{PODS}/kept")
    assert [each["name"] for each in after["spec"].pop("ephemeralContainers")] == ["debugger"]
    assert after["spec"] == created["spec"]
    assert after["status"] == created["status"]
    for each in (created, after):
        for key in ("generation", "resourceVersion", "managedFields"):
            each["metadata"].pop(key, None)
    assert after["metadata"] == created["metadata"]


async def test_the_pod_can_be_replaced_by_one_with_a_container_more(server: Server) -> None:
    created = await server.create(PODS, pod("replaced"))
    created["spec"]["ephemeralContainers"] = [debugger()]
    path = f"{PODS}/replaced/ephemeralcontainers"
    stale = {**created, "metadata": {**created["metadata"], "resourceVersion": "1"}}
    assert (await server.request("PUT", path, stale)).status == 409
    response = await server.request("PUT", path, created)
    assert response.status == 200, response.body
    assert response.body["spec"]["ephemeralContainers"][0]["name"] == "debugger"


async def test_containers_can_be_applied(server: Server) -> None:
    await server.create(PODS, pod("applied"))
    body = {"apiVersion": "v1", "kind": "Pod", "spec": {"ephemeralContainers": [debugger()]}}
    path = f"{PODS}/applied/ephemeralcontainers?fieldManager=m"
    response = await server.request("PATCH", path, body, content_type=APPLY)
    assert response.status == 200, response.body
    entries = response.body["metadata"]["managedFields"]
    (entry,) = [each for each in entries if each["manager"] == "m"]
    assert (entry["operation"], entry["subresource"]) == ("Apply", "ephemeralcontainers")
    assert list(entry["fieldsV1"]) == ["f:spec"]


async def test_a_dry_run_adds_nothing(server: Server) -> None:
    await server.create(PODS, pod("dry"))
    response = await send(server, "dry", debugger(), query="?dryRun=All")
    assert response.body["spec"]["ephemeralContainers"][0]["name"] == "debugger"
    assert "ephemeralContainers" not in (await server.get(f"{PODS}/dry"))["spec"]


FORBIDDEN: dict[str, Any] = {
    "ports": [{"containerPort": 80, "protocol": "TCP"}],
    "resources": {"limits": {"cpu": "1"}},
    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
    "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
    "livenessProbe": {"exec": {"command": ["true"]}},
    "readinessProbe": {"exec": {"command": ["true"]}},
    "startupProbe": {"exec": {"command": ["true"]}},
    "restartPolicy": "Always",
}
"""Fields of containers that ephemeral containers may not have."""

INVALID: dict[str, tuple[Json, str]] = {
    "without an image": (
        {"name": "debugger"},
        "spec.ephemeralContainers[0].image: Required value",
    ),
    "name of a container": (
        debugger("main"),
        'spec.ephemeralContainers[0].name: Duplicate value: "main"',
    ),
    "unknown target": (
        debugger(targetContainerName="none"),
        'spec.ephemeralContainers[0].targetContainerName: Not found: "none"',
    ),
    "itself as target": (
        debugger(targetContainerName="debugger"),
        'spec.ephemeralContainers[0].targetContainerName: Not found: "debugger"',
    ),
    **{
        f"with {field}": (
            debugger(**{field: value}),
            f"spec.ephemeralContainers[0].{field}: Forbidden: "
            "cannot be set for an Ephemeral Container",
        )
        for field, value in FORBIDDEN.items()
    },
    **{
        f"with {field}": (
            debugger(volumeMounts=[{"name": "v", "mountPath": "/v", field: "a"}]),
            f"spec.ephemeralContainers[0].volumeMounts[0].{field}: Forbidden: "
            "cannot be set for an Ephemeral Container",
        )
        for field in ("subPath", "subPathExpr")
    },
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_container_is_rejected(server: Server, name: str) -> None:
    container, error = INVALID[name]
    own = "invalid-" + name.replace(" ", "-").lower()
    await server.create(PODS, pod(own, volumes=[{"name": "v", "emptyDir": {}}]))
    response = await send(server, own, container)
    assert response.status == 422, response.body
    assert error in response.body["message"]
    assert "ephemeralContainers" not in (await server.get(f"{PODS}/{own}"))["spec"]


async def test_a_container_is_neither_changed_nor_removed(server: Server) -> None:
    await server.create(PODS, pod("fixed"))
    assert (await send(server, "fixed", debugger())).status == 200
    changed = await send(server, "fixed", debugger(image="other"))
    assert changed.status == 422
    assert 'existing ephemeral containers "debugger" may not be changed' in changed.body["message"]
    removed = await send(server, "fixed", media=MERGE)
    assert removed.status == 422
    assert 'existing ephemeral containers "debugger" may not be removed' in removed.body["message"]


async def test_a_write_of_the_pod_itself_cannot_add_one(server: Server) -> None:
    created = await server.create(PODS, pod("itself"))
    created["spec"]["ephemeralContainers"] = [debugger()]
    response = await server.request("PUT", f"{PODS}/itself", created)
    assert response.status == 422, response.body
    assert "pod updates may not change fields other than" in response.body["message"]


POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


async def test_a_policy_can_deny_one(server: Server) -> None:
    rule = {
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
        "resources": ["pods/ephemeralcontainers"],
    }  # fmt: skip
    expression = "object.spec.ephemeralContainers.all(each, each.image == 'allowed')"
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "own", "expression": "object.metadata.name == 'guarded'"}],
        "validations": [{"expression": expression, "message": "no such debugger"}],
    }
    created = await server.request("POST", POLICIES, {"metadata": {"name": "d"}, "spec": policy})
    assert (created.status, created.warnings) == (201, [])
    binding = {"policyName": "d", "validationActions": ["Deny"]}
    await server.create(BINDINGS, {"metadata": {"name": "d"}, "spec": binding})
    await server.create(PODS, pod("guarded"))

    async def denied() -> bool:
        response = await send(server, "guarded", debugger(), query="?dryRun=All")
        return response.status == 422 and "no such debugger" in response.body["message"]

    await wait_until_true(denied)
    assert (await send(server, "guarded", debugger(image="allowed"))).status == 200
    for path in (BINDINGS, POLICIES):
        assert (await server.request("DELETE", f"{path}/d")).status == 200


async def test_a_missing_pod_and_other_methods_are_errors(server: Server) -> None:
    assert (await send(server, "none", debugger())).status == 404
    await server.create(PODS, pod("methods"))
    path = f"{PODS}/methods/ephemeralcontainers"
    assert (await server.request("POST", path, {})).status == 405
    assert (await server.request("DELETE", path)).status == 405
