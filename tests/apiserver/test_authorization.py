"""RBAC in the embedded server: what depends on its store and its own roles."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support import component_roles
from support.embedded_apiserver import (
    MAPS,
    MERGE,
    PODS,
    EmbeddedServer,
    config_map,
    embedded_server,
)
from support.polling import wait_until_true

from batholith.local.apiserver.app import COMPONENT_DENIED
from batholith.local.apiserver.http.auth import COMPONENTS_GROUP

Json = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
ROOT = f"/apis/{RBAC}/v1"
AS_JANE = {"Impersonate-User": "jane"}
AGGREGATED = ("view", "edit", "admin")
COMPONENTS = ("controllers", "workloads", "scheduler", "agent", "proxy", "api")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as started:
        yield started


def binding(role: str, user: str, *, kind: str = "ClusterRole") -> Json:
    return {
        "metadata": {"name": f"{user}-{role}"},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }


async def status_of(server: EmbeddedServer, path: str = MAPS, method: str = "GET") -> int:
    return (await server.request(method, path, headers=AS_JANE)).status


async def test_a_right_begins_and_ends_with_its_binding(server: EmbeddedServer) -> None:
    bindings = f"{ROOT}/namespaces/default/rolebindings"
    assert await status_of(server) == 403
    await server.create(bindings, binding("view", "jane"))
    assert await status_of(server) == 200
    assert await status_of(server, MAPS.replace("default", "kube-system")) == 403
    assert await status_of(server, f"{MAPS}/m", "DELETE") == 403
    assert (await server.request("DELETE", f"{bindings}/jane-view")).status == 200
    assert await status_of(server) == 403


async def test_a_right_ends_with_its_role_and_with_its_rule(server: EmbeddedServer) -> None:
    roles = f"{ROOT}/namespaces/default/roles"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}
    role = {"metadata": {"name": "own"}, "rules": [rule]}
    await server.create(roles, role)
    bound = binding("own", "jane", kind="Role")
    await server.create(f"{ROOT}/namespaces/default/rolebindings", bound)
    assert await status_of(server) == 200
    assert (await server.request("PUT", f"{roles}/own", {**role, "rules": []})).status == 200
    assert await status_of(server) == 403
    assert (await server.request("PUT", f"{roles}/own", role)).status == 200
    assert await status_of(server) == 200
    assert (await server.request("DELETE", f"{roles}/own")).status == 200
    denied = await server.request("GET", MAPS, headers=AS_JANE)
    assert denied.status == 403
    assert denied.body["message"].endswith(f': RBAC: role.{RBAC} "own" not found')


async def test_a_rule_with_names_allows_these_objects_alone(server: EmbeddedServer) -> None:
    for name in ("a", "b"):
        await server.create(MAPS, config_map(name))
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"], "resourceNames": ["a"]}
    await server.create(f"{ROOT}/clusterroles", {"metadata": {"name": "own"}, "rules": [rule]})
    await server.create(f"{ROOT}/namespaces/default/rolebindings", binding("own", "jane"))
    assert await status_of(server, f"{MAPS}/a") == 200
    assert await status_of(server, f"{MAPS}/b") == 403
    assert await status_of(server) == 403
    assert await status_of(server, f"{MAPS}?fieldSelector=metadata.name%3Da") == 200
    assert await status_of(server, f"{MAPS}?fieldSelector=metadata.name%3Da", "DELETE") == 403


async def test_aggregated_roles_follow_the_roles_that_they_select(server: EmbeddedServer) -> None:
    rule = {"apiGroups": ["ex.io"], "resources": ["foos"], "verbs": ["get"]}
    labels = {f"{RBAC}/aggregate-to-view": "true"}
    roles = f"{ROOT}/clusterroles"

    async def all_have_rule(wanted: bool) -> None:
        async def reached() -> bool:
            found = [(await server.get(f"{roles}/{name}"))["rules"] for name in AGGREGATED]
            return all((rule in (rules or ())) == wanted for rules in found)

        await wait_until_true(reached)

    created = {"metadata": {"name": "foos", "labels": labels}, "rules": [rule]}
    await server.create(roles, created)
    await all_have_rule(True)
    assert (await server.request("DELETE", f"{roles}/foos")).status == 200
    await all_have_rule(False)


@pytest.mark.parametrize("user", COMPONENTS)
@pytest.mark.denied
async def test_a_component_cannot_make_itself_administrator(
    server: EmbeddedServer, user: str
) -> None:
    token = server.tokens[user]
    bound = binding("cluster-admin", user)
    for path in (f"{ROOT}/clusterrolebindings", f"{ROOT}/namespaces/default/rolebindings"):
        assert (await server.request("POST", path, bound, token=token)).status == 403
    full = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    role = {"metadata": {"name": "full"}, "rules": [full]}
    roles = f"{ROOT}/namespaces/default/roles"
    assert (await server.request("POST", roles, role, token=token)).status == 403
    path = f"{ROOT}/clusterroles/batholith:{user}"
    patched = await server.request("PATCH", path, role, content_type=MERGE, token=token)
    assert patched.status == 403


async def test_controllers_create_only_roles_with_rights_of_their_own(
    server: EmbeddedServer,
) -> None:
    roles = f"{ROOT}/namespaces/default/roles"
    token = server.tokens["controllers"]

    async def create(rule: Json) -> int:
        role = {"metadata": {"generateName": "r-"}, "rules": [rule]}
        return (await server.request("POST", roles, role, token=token)).status

    assert await create({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}) == 201
    assert await create({"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}) == 403


@pytest.mark.parametrize("user", COMPONENTS)
async def test_no_component_has_all_rights(server: EmbeddedServer, user: str) -> None:
    body = {"spec": {"namespace": "default"}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    review = await server.request("POST", path, body, token=server.tokens[user])
    rules = review.body["status"]["resourceRules"]
    assert len(rules) > 3
    for rule in rules:
        assert "*" not in [*rule["verbs"], *rule["apiGroups"], *rule["resources"]]
    cluster_admins = (await server.get(f"{ROOT}/clusterrolebindings/cluster-admin"))["subjects"]
    assert [each["name"] for each in cluster_admins] == ["system:masters"]


def test_components_have_the_rights_of_the_manifests() -> None:
    assert component_roles.FILE.read_bytes() == component_roles.content()


@pytest.mark.denied
async def test_the_role_that_components_shared_is_deleted_at_start(tmp_path: Path) -> None:
    shared = "batholith:components"
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get"]}
    subject = {"apiGroup": RBAC, "kind": "Group", "name": COMPONENTS_GROUP}
    bound = {**binding(shared, ""), "metadata": {"name": shared}, "subjects": [subject]}
    async with embedded_server(tmp_path) as server:
        await server.create(f"{ROOT}/clusterroles", {"metadata": {"name": shared}, "rules": [rule]})
        await server.create(f"{ROOT}/clusterrolebindings", bound)
        allowed = await server.request("GET", f"{MAPS}/m", token=server.tokens["scheduler"])
        assert allowed.status == 404
    async with embedded_server(tmp_path) as server:
        denied = await server.request("GET", f"{MAPS}/m", token=server.tokens["scheduler"])
        assert denied.status == 403
        for kind in ("clusterroles", "clusterrolebindings"):
            assert (await server.request("GET", f"{ROOT}/{kind}/{shared}")).status == 404


@pytest.mark.denied
async def test_a_right_that_a_component_lacks_is_logged(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    await status_of(server)
    assert COMPONENT_DENIED not in caplog.text
    denied = await server.request("GET", MAPS, token=server.tokens["scheduler"])
    assert denied.status == 403
    assert COMPONENT_DENIED in caplog.text


@pytest.mark.denied
async def test_roles_that_were_changed_or_deleted_are_completed_at_start(tmp_path: Path) -> None:
    roles = f"{ROOT}/clusterroles"
    async with embedded_server(tmp_path) as server:
        assert (await server.request("DELETE", f"{roles}/batholith:scheduler")).status == 200
        kept = await server.get(f"{roles}/system:discovery")
        kept["rules"] = []
        kept["metadata"]["annotations"] = {"rbac.authorization.kubernetes.io/autoupdate": "false"}
        await server.request("PUT", f"{roles}/system:discovery", kept)
        changed = await server.get(f"{roles}/system:basic-user")
        own = {"nonResourceURLs": ["/own"], "verbs": ["get"]}
        await server.request("PUT", f"{roles}/system:basic-user", {**changed, "rules": [own]})
        denied = await server.request("GET", PODS, token=server.tokens["scheduler"])
        assert denied.status == 403
    async with embedded_server(tmp_path) as server:
        allowed = await server.request("GET", PODS, token=server.tokens["scheduler"])
        assert allowed.status == 200
        assert not (await server.get(f"{roles}/system:discovery")).get("rules")
        completed = (await server.get(f"{roles}/system:basic-user"))["rules"]
        assert completed[0] == own
        assert len(completed) > 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/healthz", 200),
        ("/version", 200),
        ("/version/", 200),
        ("/healthzfoo", 403),
        ("/metrics", 403),
        ("/api", 403),
        ("//api/v1/secrets", 403),
        (MAPS, 403),
    ],
)
async def test_a_request_without_a_token_may_read_only_health_and_version(
    server: EmbeddedServer, path: str, status: int
) -> None:
    async with server.session.get(server.url + path) as response:
        await response.read()
    assert response.status == status
