"""``managedFields`` in the embedded server: who gets them, and what keeps them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import (
    MAPS,
    MERGE,
    PODS,
    EmbeddedServer,
    Server,
    config_map,
    embedded_server,
)
from support.field_ownership import APPLY, TYPED, typed_kind
from support.polling import wait_until_true

from batholith.local.apiserver.discovery.catalog import Catalog
from batholith.local.apiserver.storage.stored_objects import StoredObject
from batholith.model.names import CONFIGMAPS

Json = dict[str, Any]
A = f"{MAPS}/a"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as started:
        yield started


@pytest.fixture
async def either(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path) as started:
        yield started


def managers(obj: Json) -> list[tuple[str, str, str]]:
    return [
        (entry["manager"], entry["operation"], entry.get("subresource", ""))
        for entry in obj["metadata"].get("managedFields", [])
    ]


def applied(**data: str) -> bytes:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}
    return msgspec.json.encode(body)


async def apply(server: Server, body: bytes, manager: str = "one", **more: Any) -> Any:
    path = f"{A}?fieldManager={manager}"
    return await server.request("PATCH", path, body, content_type=APPLY, **more)


async def test_owners_survive_a_restart(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await apply(server, applied(x="1"))
        await server.request(
            "PATCH", f"{A}?fieldManager=two", {"data": {"y": "1"}}, content_type=MERGE
        )
        before = await server.get(A)
    async with embedded_server(tmp_path) as server:
        assert await server.get(A) == before
        assert managers(before) == [("one", "Apply", ""), ("two", "Update", "")]
        assert (await apply(server, applied(y="2"), "three")).status == 409
        version = int(before["metadata"]["resourceVersion"]) - 1
        async with server.watch(f"{MAPS}?watch=1&resourceVersion={version}") as lines:
            assert (await lines.next())["object"] == before


async def test_components_get_no_owners_and_keep_those_of_others(server: EmbeddedServer) -> None:
    await apply(server, applied(x="1"))
    token = server.tokens["controllers"]
    read = (await server.request("GET", A, token=token)).body
    listed = (await server.request("GET", MAPS, token=token)).body
    assert managers(read) == [] == [each for item in listed["items"] for each in managers(item)]
    written = await server.request(
        "PATCH",
        A,
        {"data": {"y": "2"}},
        content_type=MERGE,
        token=token,
        headers={"User-Agent": "controllers/1"},
    )
    assert (written.status, managers(written.body)) == (200, [])
    headers = {"Authorization": f"Bearer {token}"}
    watched = f"{MAPS}?watch=1&fieldSelector=metadata.name=a"
    async with server.watch(watched, headers=headers) as lines:
        assert managers((await lines.next())["object"]) == []
    owners = [("one", "Apply", ""), ("controllers", "Update", "")]
    assert managers(await server.get(A)) == owners
    assert (await apply(server, applied(y="3"), "two")).status == 409


async def test_all_forms_of_an_object_have_its_owners(either: Server) -> None:
    await apply(either, applied(x="1"))
    owners = [("one", "Apply", "")]
    listed = await either.get(f"{MAPS}?fieldSelector=metadata.name=a")
    assert managers(listed["items"][0]) == owners
    short = await either.request("GET", A, headers={"Accept": METADATA})
    assert managers(short.body) == owners
    async with either.watch(f"{MAPS}?watch=1&fieldSelector=metadata.name=a") as lines:
        assert managers((await lines.next())["object"]) == owners
        deleted = await either.request("DELETE", A)
        assert deleted.status == 200
        assert managers((await lines.next())["object"]) == owners


async def test_a_binding_has_no_owner(either: Server) -> None:
    spec = {"automountServiceAccountToken": False, "containers": [{"name": "c", "image": "i"}]}
    await either.create(f"{PODS}?fieldManager=one", {"metadata": {"name": "p"}, "spec": spec})
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    await either.create(f"{PODS}/p/binding", binding)
    pod = await either.get(f"{PODS}/p")
    assert pod["spec"]["nodeName"] == "n"
    assert managers(pod) == [("one", "Update", "")]
    (entry,) = pod["metadata"]["managedFields"]
    assert "f:nodeName" not in entry["fieldsV1"]["f:spec"]


async def test_an_apply_that_creates_needs_the_right_to_create(either: Server) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}
    await either.create(f"{RBAC}/roles", {"metadata": {"name": "r"}, "rules": [rule]})
    await either.create(
        f"{RBAC}/rolebindings",
        {
            "metadata": {"name": "r"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
        },
    )
    as_jane = {"Impersonate-User": "jane"}

    async def creates() -> bool:
        response = await apply(either, applied(x="1"), headers=as_jane)
        assert response.status == 403, response.body
        return 'cannot create resource "configmaps"' in response.body["message"]

    await wait_until_true(creates)
    await either.create(MAPS, config_map("a"))
    assert (await apply(either, applied(x="1"), headers=as_jane)).status == 200


async def test_controllers_of_the_server_own_what_they_write(server: EmbeddedServer) -> None:
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {}}}
    await server.create(f"{BUDGETS}?fieldManager=me", budget)
    expected = [("batholith-apiserver", "Update", "status"), ("me", "Update", "")]

    async def has_status() -> bool:
        return sorted(managers(await server.get(f"{BUDGETS}/b"))) == expected

    await wait_until_true(has_status)


@pytest.mark.process
async def test_a_large_apply_in_yaml_is_converted_elsewhere(server: EmbeddedServer) -> None:
    lines = "".join(f"  k{number}: '{number}'\n" for number in range(2000))
    body = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata:\n{lines}"
    response = await apply(server, body.encode())
    assert (response.status, len(response.body["data"])) == (201, 2000)
    refused = await apply(server, body.encode() + b"  -\n")
    assert (refused.status, refused.body["reason"]) == (400, "BadRequest")


async def test_managed_fields_that_are_no_entries_are_ignored(server: EmbeddedServer) -> None:
    await apply(server, applied(x="1"))
    many: Json = {f"f:{number}": {} for number in range(20_000)}
    for sent in ([{"operation": "Apply"}], [{"manager": "x", "fieldsV1": many}]):
        body = {**config_map("a"), "metadata": {"name": "a", "managedFields": sent}}
        response = await server.request("PUT", f"{A}?fieldManager=two", body)
        assert response.status == 200, response.body
        assert ("two", "Update", "") in managers(response.body)
        assert ("x", "Apply", "") not in managers(response.body)


async def test_the_scale_of_a_custom_object_can_be_applied(server: EmbeddedServer) -> None:
    """kube-apiserver fails to convert it (500)."""
    await server.install_crds(typed_kind())
    typed = {"metadata": {"name": "t"}, "spec": {"replicas": 1}}
    head = {"apiVersion": "ownership.example.com/v1", "kind": "Typed"}
    await server.create(f"{TYPED}?fieldManager=one", {**head, **typed})
    scale = {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": "t"},
        "spec": {"replicas": 2},
    }
    path = f"{TYPED}/t/scale?fieldManager=two"
    refused = await server.request("PATCH", path, scale, content_type=APPLY)
    assert refused.status == 409
    assert 'conflict with "one" using autoscaling/v1: .spec.replicas' in refused.body["message"]
    scaled = await server.request("PATCH", f"{path}&force=true", scale, content_type=APPLY)
    assert (scaled.status, scaled.body["spec"]) == (200, {"replicas": 2})
    found = await server.get(f"{TYPED}/t")
    assert found["spec"]["replicas"] == 2
    assert ("two", "Apply", "scale") in managers(found)


async def test_a_review_cannot_be_created_by_an_apply(either: Server) -> None:
    path = "/apis/authentication.k8s.io/v1/tokenreviews/r?fieldManager=me"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "metadata": {"name": "r"},
        "spec": {"token": "t"},
    }
    assert (await either.request("PATCH", path, body, content_type=APPLY)).status == 404


def test_an_object_of_an_older_database_has_no_owners() -> None:
    kind = Catalog().require(CONFIGMAPS)
    metadata = b'{"name":"a","namespace":"n","resourceVersion":"1"}'
    head, data = b'"apiVersion":"v1","kind":"ConfigMap"', b'"data":{"metadata":"x"}'
    row = b'{%b,%b,"metadata":%b}' % (head, data, metadata)
    entry = StoredObject.load(kind, row)
    assert entry.managed == ()
    assert msgspec.json.decode(entry.full()) == msgspec.json.decode(row)
    assert entry.row() == b'{%b,"metadata":%b,%b}' % (head, metadata, data)
