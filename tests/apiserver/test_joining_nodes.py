"""Bootstrap tokens and certificates of nodes: who gets which, and what they may do with them."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from support import joining
from support.embedded_apiserver import EmbeddedServer, embedded_server
from support.joining import REQUESTS, SECRETS, TOKENS, Wanted, kinds, result_of
from support.node_requests import pod
from support.polling import wait_until_true

from batholith.local.supervisor import tokens
from batholith.local.supervisor.apiserver import Network
from batholith.machinery.x509 import new_key
from batholith.model.bootstrap_tokens import BootstrapToken
from batholith.model.names import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES
from batholith.model.node_identity import CLIENT_SIGNER, SERVING_SIGNER

NODES = "/api/v1/nodes"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    network = Network(host="127.0.0.1", listener=None)
    async with embedded_server(tmp_path / "data", network=network) as running:
        yield running


def node(name: str, address: str) -> dict[str, object]:
    addresses = [{"type": "InternalIP", "address": address}]
    return {"metadata": {"name": name}, "status": {"addresses": addresses}}


async def is_accepted(server: EmbeddedServer, token: BootstrapToken | str) -> bool:
    found = await server.request("GET", REQUESTS, token=str(token))
    assert found.status in (200, 401)
    return found.status == 200


async def test_a_bootstrap_token_asks_for_certificates_and_may_do_nothing_else(
    server: EmbeddedServer,
) -> None:
    token = await joining.create_token(server)
    for method, path in (
        ("GET", TOKENS),
        ("GET", SECRETS),
        ("GET", NODES),
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/namespaces/default/configmaps"),
        ("POST", NODES),
        ("PUT", f"{REQUESTS}/x/approval"),
        ("PATCH", f"{REQUESTS}/x/status"),
        ("DELETE", f"{REQUESTS}/x"),
    ):
        found = await server.request(method, path, token=str(token))
        assert found.status == 403, (method, path, found.body)
    # Requests that no rule approves wait for an administrator.
    for signer, addresses in (
        (SERVING_SIGNER, ["192.0.2.9"]),
        ("kubernetes.io/kube-apiserver-client", []),
    ):
        name = signer.rpartition("/")[2]
        wanted = Wanted(node="new", signer=signer, addresses=addresses)
        created = await server.request("POST", REQUESTS, wanted.body(name), token=str(token))
        assert created.status == 201, created.body
    # Handled after those above, by the same worker.
    await joining.join_node(server, "new", new_key(), token=token)
    for name in ("kubelet-serving", "kube-apiserver-client"):
        assert not (await server.get(f"{REQUESTS}/{name}")).get("status")


async def test_a_token_ends_with_its_secret_or_when_it_expires(server: EmbeddedServer) -> None:
    token = await joining.create_token(server)
    assert await is_accepted(server, token)
    assert not await is_accepted(server, f"{token.id}.{'0' * 16}")
    await server.request("DELETE", f"{TOKENS}/{token.secret_name}")
    assert not await is_accepted(server, token)
    expired = await joining.create_token(server, ttl=timedelta(seconds=-1))
    assert not await is_accepted(server, expired)

    async def is_removed() -> bool:
        return (await server.request("GET", f"{TOKENS}/{expired.secret_name}")).status == 404

    await wait_until_true(is_removed)
    for field, value in (("type", "Opaque"), ("usage", "")):
        secret = BootstrapToken.new(expires_at=None).to_secret()
        if field == "type":
            secret["type"] = value
        else:
            del secret["data"]["usage-bootstrap-authentication"]
        await server.create(TOKENS, secret)
        data = {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}
        assert not await is_accepted(server, f"{data['token-id']}.{data['token-secret']}")


async def test_anonymous_clients_read_the_cluster_info_only(server: EmbeddedServer) -> None:
    path = "/api/v1/namespaces/kube-public/configmaps"
    async with server.session.get(f"{server.url}{path}/cluster-info") as response:
        assert response.status == 200
        info = msgspec.json.decode((await response.json())["data"]["kubeconfig"])
    cluster = info["clusters"][0]["cluster"]
    assert base64.b64decode(cluster["certificate-authority-data"]) == server.ca
    assert cluster["server"] == server.url
    assert "users" not in info
    for other in (path, f"{path}/kube-root-ca.crt", SECRETS, NODES, REQUESTS):
        async with server.session.get(server.url + other) as response:
            assert response.status == 403, other


async def test_plain_http_gets_no_response(server: EmbeddedServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.running.port)
    writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"HTTP/" not in await reader.read()
    writer.close()


async def test_a_node_uses_its_certificate_for_itself_alone(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    token, key = await joining.create_token(server), new_key()
    certificate = await joining.join_node(server, "b", key, token=token)
    await server.request("DELETE", f"{TOKENS}/{token.secret_name}")
    for name, of in (("own", "b"), ("other", "a")):
        await server.create(SECRETS, {"metadata": {"name": name}})
        source = {"name": "s", "secret": {"secretName": name}}
        await server.create("/api/v1/namespaces/default/pods", pod(name, of, volumes=[source]))
    await server.create(NODES, node("a", "192.0.2.1"))
    async with joining.certificate_client(server, certificate, key, tmp_path) as client:
        review = await client.request(
            "POST",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"},
        )
        user = review.body["status"]["userInfo"]
        assert user["username"] == "system:node:b"
        assert user["groups"] == ["system:nodes", "system:authenticated"]
        assert (await client.request("GET", f"{SECRETS}/own")).status == 200
        assert (await client.request("GET", f"{SECRETS}/other")).status == 403
        assert (await client.request("POST", NODES, node("b", "192.0.2.2"))).status == 201

        async def ask(name: str, wanted: Wanted) -> str:
            created = await client.request("POST", REQUESTS, wanted.body(name))
            assert created.status == 201, created.body
            status = await result_of(server, name)
            return "" if "certificate" in status else status["conditions"][-1]["message"]

        # Of another node: no rule approves it. Those below are handled by the same worker, later.
        forged = Wanted(node="a")
        assert (await client.request("POST", REQUESTS, forged.body("forged"))).status == 201
        forged = Wanted(node="a", signer=SERVING_SIGNER, addresses=["192.0.2.2"])
        assert (await client.request("POST", REQUESTS, forged.body("forged-2"))).status == 201
        assert not await ask("renewal", Wanted(node="b"))
        serving = {
            "192.0.2.2": "",
            "192.0.2.1": "is the address of node a",
            "127.0.0.1": "not an address of one machine",
        }
        for address, problem in serving.items():
            wanted = Wanted(node="b", signer=SERVING_SIGNER, addresses=[address])
            found = await ask(f"serving-{address}", wanted)
            assert problem in found
            assert bool(problem) == bool(found)
        for name in ("forged", "forged-2"):
            assert not (await server.get(f"{REQUESTS}/{name}")).get("status")
        await server.request("DELETE", f"{NODES}/b")
        assert "removed" in await ask("removed", Wanted(node="b"))


async def test_a_token_does_not_become_an_existing_node(server: EmbeddedServer) -> None:
    await server.create(NODES, node("a", "192.0.2.1"))
    token = await joining.create_token(server)
    await joining.join_node(server, "b", new_key(), token=token)
    for name in ("a", "b"):  # a Node, and one whose machine is about to register
        created = await server.request(
            "POST", REQUESTS, Wanted(node=name).body(f"again-{name}"), token=str(token)
        )
        assert created.status == 201
        assert kinds(await result_of(server, f"again-{name}")) == {"Denied"}


async def test_an_approval_does_not_make_other_certificates_than_those_of_nodes(
    server: EmbeddedServer,
) -> None:
    approval = {"type": "Approved", "status": "True", "reason": "x", "message": "x"}
    refused = {
        "masters": Wanted(node="x", organizations=["system:masters"]),
        "both": Wanted(node="x", organizations=["system:nodes", "system:masters"]),
        "san": Wanted(node="x", addresses=["192.0.2.1"]),
        "name": Wanted(node="../x"),
        "malformed": Wanted(node="x"),
        "usage": Wanted(node="x", signer=SERVING_SIGNER, addresses=["192.0.2.1"]),
    }
    for name, wanted in refused.items():
        body = wanted.body(name)
        if name == "usage":
            body["spec"]["usages"] = ["digital signature", "client auth"]
        elif name == "malformed":
            body["spec"]["request"] = joining.malformed_request()
        created = await server.create(REQUESTS, body)
        created["status"] = {"conditions": [approval]}
        approved = await server.request("PUT", f"{REQUESTS}/{name}/approval", created)
        assert approved.status == 200, approved.body
        assert "Failed" in kinds(await result_of(server, name)), name
        assert created["spec"]["signerName"] in (CLIENT_SIGNER, SERVING_SIGNER)


async def test_the_first_token_is_created_once(tmp_path: Path) -> None:
    token, file = BootstrapToken.new(expires_at=None), tmp_path / "token"
    tokens.write_first(file, token)
    network = Network(host="127.0.0.1", listener=None, token_file=file)
    async with embedded_server(tmp_path / "data", network=network) as server:
        assert await is_accepted(server, token)
        assert not file.exists()
        await server.request("DELETE", f"{TOKENS}/{token.secret_name}")
    async with embedded_server(tmp_path / "data", network=network) as server:
        assert not await is_accepted(server, token)


async def test_the_directories_of_claims_are_on_the_first_machine(tmp_path: Path) -> None:
    claims, volumes = PERSISTENTVOLUMECLAIMS.path("default"), PERSISTENTVOLUMES.path()

    async def nodes_of_volumes(server: EmbeddedServer, count: int) -> list[str]:
        found: list[str] = []

        async def exist() -> bool:
            specs = [each["spec"] for each in (await server.get(volumes))["items"]]
            found[:] = [
                term["matchExpressions"][0]["values"][0]
                for spec in specs
                for term in spec.get("nodeAffinity", {})
                .get("required", {})
                .get("nodeSelectorTerms", [{"matchExpressions": [{"values": [""]}]}])
            ]
            return len(found) == count and len(set(found)) == 1

        await wait_until_true(exist)
        return found

    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    async with embedded_server(tmp_path, node="first") as server:
        await server.create(claims, {"metadata": {"name": "old"}, "spec": spec})
        assert await nodes_of_volumes(server, 1) == [""]
    network = Network(host="127.0.0.1", listener=None)
    async with embedded_server(tmp_path, node="first", network=network) as server:
        await server.create(claims, {"metadata": {"name": "new"}, "spec": spec})
        assert await nodes_of_volumes(server, 2) == ["first", "first"]
