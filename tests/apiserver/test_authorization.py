"""RBAC in the embedded server: what depends on its store and its own roles."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.embedded_apiserver import MAPS, EmbeddedServer, config_map, embedded_server
from support.polling import wait_until_true

Json = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
ROOT = f"/apis/{RBAC}/v1"
AS_JANE = {"Impersonate-User": "jane"}
AGGREGATED = ("view", "edit", "admin")
COMPONENTS = ("controllers", "scheduler", "agent", "api")


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
async def test_a_component_cannot_make_itself_administrator(
    server: EmbeddedServer, user: str
) -> None:
    token = server.tokens[user]
    bindings = f"{ROOT}/clusterrolebindings"
    response = await server.request("POST", bindings, binding("cluster-admin", user), token=token)
    assert response.status == 403
    assert "is attempting to grant RBAC permissions not currently held" in response.body["message"]
    full = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    role = {"rules": [full]}
    patched = await server.request(
        "PATCH",
        f"{ROOT}/clusterroles/batholith:components",
        role,
        content_type="application/merge-patch+json",
        token=token,
    )
    assert patched.status == 403


async def test_roles_that_were_changed_or_deleted_are_completed_at_start(tmp_path: Path) -> None:
    roles = f"{ROOT}/clusterroles"
    async with embedded_server(tmp_path) as server:
        assert (await server.request("DELETE", f"{roles}/batholith:components")).status == 200
        kept = await server.get(f"{roles}/system:discovery")
        kept["rules"] = []
        kept["metadata"]["annotations"] = {"rbac.authorization.kubernetes.io/autoupdate": "false"}
        await server.request("PUT", f"{roles}/system:discovery", kept)
        changed = await server.get(f"{roles}/system:basic-user")
        own = {"nonResourceURLs": ["/own"], "verbs": ["get"]}
        await server.request("PUT", f"{roles}/system:basic-user", {**changed, "rules": [own]})
        denied = await server.request("GET", MAPS, token=server.tokens["scheduler"])
        assert denied.status == 403
    async with embedded_server(tmp_path) as server:
        allowed = await server.request("GET", MAPS, token=server.tokens["scheduler"])
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
