"""Tokens of service accounts: how they are requested, and when they are valid."""

import base64
import json
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import Server
from support.polling import wait_until_true

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.http.auth import AUDIENCE
from batholith.local.apiserver.service_accounts.tokens import (
    BoundClaims,
    ObjectRef,
    ServiceAccountTokens,
    bound_claims,
)
from batholith.local.apiserver.storage.stored_objects import StoredObject
from batholith.machinery.x509 import key_pem, new_key
from batholith.model import names
from batholith.model.names import Resource

Json = dict[str, Any]
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
PODS = "/api/v1/namespaces/default/pods"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
SELF_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
POD: Json = {
    "metadata": {"name": "p"},
    "spec": {
        "serviceAccountName": "robot",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "i"}],
    },
}


async def create_account(server: Server, name: str = "robot") -> Json:
    """Create a ServiceAccount."""
    response = await server.request("POST", ACCOUNTS, {"metadata": {"name": name}})
    assert response.status == 201
    return dict(response.body)


async def request_token(server: Server, **spec: Any) -> Json:
    """The answered TokenRequest."""
    response = await server.request("POST", f"{ACCOUNTS}/robot/token", {"spec": spec})
    assert response.status == 201, response.body
    return dict(response.body)


async def user_of(server: Server, token: str) -> Json | None:
    """Whom the server takes the bearer of *token* for; ``None`` if it does not accept it."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    response = await server.request("POST", SELF_REVIEWS, body, token=token)
    if response.status == 401:
        return None
    assert response.status == 201, response.body
    return dict(response.body["status"]["userInfo"])


async def wait_rejected(server: Server, token: str) -> None:
    """Wait until *token* is not accepted; kube-apiserver remembers for seconds that it was."""

    async def is_rejected() -> bool:
        return await user_of(server, token) is None

    await wait_until_true(is_rejected)


def claims_of(token: str) -> Json:
    """The claims, without a check."""
    payload = token.split(".")[1]
    claims: Json = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


@pytest.mark.parametrize(
    ("spec", "status", "text"),
    [
        ({"expirationSeconds": 599}, 422, "may not specify a duration less than 10 minutes"),
        ({"expirationSeconds": 2**32 + 1}, 422, "may not specify a duration larger than 2^32"),
        (
            {"boundObjectRef": {"apiVersion": "v1", "kind": "ConfigMap", "name": "x"}},
            400,
            "cannot bind token to object of type /v1, Kind=ConfigMap",
        ),
        (
            {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "x"}},
            404,
            'pods "x" not found',
        ),
        (
            {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "other"}},
            400,
            'cannot bind token for serviceaccount "robot" to pod running with different',
        ),
        (
            {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}},
            409,
            "the UID in the bound object reference (u) does not match the UID in record",
        ),
    ],
)
async def test_wrong_token_request_is_rejected_as_by_kubernetes(
    servers: ServerFactory, tmp_path: Path, spec: Json, status: int, text: str
) -> None:
    async with servers.start(tmp_path) as server:
        for name in ("robot", "someone"):
            await create_account(server, name)
        assert (await server.request("POST", PODS, POD)).status == 201
        other = {
            "metadata": {"name": "other"},
            "spec": {**POD["spec"], "serviceAccountName": "someone"},
        }
        assert (await server.request("POST", PODS, other)).status == 201
        response = await server.request("POST", f"{ACCOUNTS}/robot/token", {"spec": spec})
        assert (response.status, text in response.body["message"]) == (status, True), response.body
        missing = await server.request("POST", f"{ACCOUNTS}/unknown/token", {"spec": {}})
        assert missing.status == 404
        assert missing.body["message"] == 'serviceaccounts "unknown" not found'


@pytest.mark.parametrize(
    "spec",
    [
        {"audiences": "vault"},
        {"audiences": [1]},
        {"expirationSeconds": "600"},
        {"boundObjectRef": "p"},
        {"boundObjectRef": {"kind": ["Pod"], "apiVersion": "v1", "name": "p"}},
        {"boundObjectRef": {"kind": "Pod", "apiVersion": 1, "name": "p"}},
        {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": {}}},
    ],
)
async def test_fields_of_wrong_types_are_rejected(
    servers: ServerFactory, tmp_path: Path, spec: Json
) -> None:
    async with servers.start(tmp_path) as server:
        await create_account(server)
        response = await server.request("POST", f"{ACCOUNTS}/robot/token", {"spec": spec})
        assert (response.status, response.body["reason"]) == (400, "BadRequest"), response.body


async def test_token_is_that_of_its_account_until_the_account_is_deleted(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        account = await create_account(server)
        found = await request_token(server)
        assert found["kind"] == "TokenRequest"
        assert found["spec"]["expirationSeconds"] == 3600
        token = found["status"]["token"]
        user = await user_of(server, token)
        assert user is not None
        assert user["username"] == "system:serviceaccount:default:robot"
        assert user["uid"] == account["metadata"]["uid"]
        assert sorted(user["groups"]) == [
            "system:authenticated",
            "system:serviceaccounts",
            "system:serviceaccounts:default",
        ]
        claims = claims_of(token)
        assert claims["exp"] - claims["iat"] == 3600
        assert claims["kubernetes.io"]["serviceaccount"]["name"] == "robot"
        forged = ".".join((*token.split(".")[:2], "A" * 86))
        assert await user_of(server, forged) is None
        assert (await server.request("DELETE", f"{ACCOUNTS}/robot")).status == 200
        await wait_rejected(server, token)
        await create_account(server)
        await wait_rejected(server, token)


async def test_token_of_a_pod_is_valid_as_long_as_the_pod_exists(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        await create_account(server)
        pod = (await server.request("POST", PODS, POD)).body
        bound = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"]}
        found = await request_token(server, boundObjectRef=bound, expirationSeconds=3607)
        assert found["spec"]["expirationSeconds"] == 3607
        token = found["status"]["token"]
        claims = claims_of(token)
        # Programs that read the file once go on; the file is renewed before `warnafter`.
        assert claims["exp"] - claims["iat"] == 365 * 24 * 3600
        assert claims["kubernetes.io"]["warnafter"] - claims["iat"] == 3607
        user = await user_of(server, token)
        assert user is not None
        extra = user["extra"]
        assert extra["authentication.kubernetes.io/pod-name"] == ["p"]
        assert extra["authentication.kubernetes.io/pod-uid"] == [pod["metadata"]["uid"]]
        assert (await server.request("DELETE", f"{PODS}/p")).status == 200
        await wait_rejected(server, token)


async def test_pods_pull_with_the_secrets_of_their_account_unless_they_name_some(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        secrets = [{"name": "of-account"}]
        account = {"metadata": {"name": "robot"}, "imagePullSecrets": secrets}
        assert (await server.request("POST", ACCOUNTS, account)).status == 201
        pod = (await server.request("POST", PODS, POD)).body
        assert pod["spec"]["imagePullSecrets"] == secrets
        own = [{"name": "own"}]
        body = {"metadata": {"name": "q"}, "spec": POD["spec"] | {"imagePullSecrets": own}}
        pod = (await server.request("POST", PODS, body)).body
        assert pod["spec"]["imagePullSecrets"] == own


async def test_token_for_another_audience_is_reviewed_for_that_one_only(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        await create_account(server)
        token = (await request_token(server, audiences=["vault"]))["status"]["token"]
        assert await user_of(server, token) is None
        for asked, audiences in ((["vault", "other"], ["vault"]), (["other"], None), (None, None)):
            spec = {"token": token, "audiences": asked} if asked else {"token": token}
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
            status = (await server.request("POST", REVIEWS, body)).body["status"]
            assert status.get("authenticated", False) is (audiences is not None)
            assert status.get("audiences") == audiences


class Objects:
    """The objects that a server has, and its clock."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.found: dict[tuple[Resource, str], StoredObject] = {}

    def add(self, resource: Resource, name: str, uid: str, **metadata: str) -> StoredObject:
        """Add an object, or replace it."""
        obj = {"metadata": {"name": name, "namespace": "ns", "uid": uid, **metadata}}
        obj["metadata"]["resourceVersion"] = "1"
        data = msgspec.json.encode({"apiVersion": "v1", "kind": resource.kind, **obj})
        kind = next(each for each in BUILT_IN if each.resource == resource)
        entry = self.found[resource, name] = StoredObject.load(kind, data)
        return entry

    def lookup(self, resource: Resource, _: str, name: str) -> StoredObject | None:
        """The latest state of an object."""
        return self.found.get((resource, name))


def test_token_is_valid_between_its_times() -> None:
    objects = Objects()
    tokens = ServiceAccountTokens(key_pem(new_key()), objects.lookup, lambda: objects.now)
    account = objects.add(names.SERVICEACCOUNTS, "robot", "u1")
    bound = bound_claims(account)
    token = tokens.issue(account, audiences=[AUDIENCE], seconds=600, bound=bound).token
    for offset, is_valid in ((0, True), (599, True), (600, False), (-1, False), (10, True)):
        objects.now = 1_000_000 + offset
        assert bool(tokens.authenticate(token, [AUDIENCE])) is is_valid, offset


def test_token_of_a_pod_that_is_deleted_ends_a_minute_after_its_grace_period() -> None:
    objects = Objects()
    tokens = ServiceAccountTokens(key_pem(new_key()), objects.lookup, lambda: objects.now)
    account = objects.add(names.SERVICEACCOUNTS, "robot", "u1")
    pod = objects.add(names.PODS, "p", "u2")
    bound = bound_claims(account, pod=pod)
    token = tokens.issue(account, audiences=[AUDIENCE], seconds=3600, bound=bound).token
    # 1970-01-12T13:46:40Z is the time of the clock.
    objects.add(names.PODS, "p", "u2", deletionTimestamp="1970-01-12T13:47:10Z")
    for offset, is_valid in ((0, True), (89, True), (90, False)):
        objects.now = 1_000_000 + offset
        assert bool(tokens.authenticate(token, [AUDIENCE])) is is_valid, offset
    objects.now = 1_000_000
    objects.add(names.PODS, "p", "u3")
    assert tokens.authenticate(token, [AUDIENCE]) is None


def test_token_of_another_cluster_is_not_accepted() -> None:
    objects = Objects()
    account = objects.add(names.SERVICEACCOUNTS, "robot", "u1")
    ours, theirs = (
        ServiceAccountTokens(key_pem(new_key()), objects.lookup, lambda: objects.now)
        for _ in range(2)
    )
    bound = BoundClaims("ns", ObjectRef("robot", "u1"))
    token = theirs.issue(account, audiences=[AUDIENCE], seconds=600, bound=bound).token
    assert theirs.authenticate(token, [AUDIENCE])
    for each in (token, "", "a.b.c", "\udcff.x.y", token.replace(".", "")):
        assert ours.authenticate(each, [AUDIENCE]) is None


async def test_a_program_can_verify_a_token_by_the_documents_of_its_issuer(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        await create_account(server)
        token = (await request_token(server, audiences=["shop"]))["status"]["token"]
        path = "/.well-known/openid-configuration"
        account = (await request_token(server))["status"]["token"]
        found = (await server.request("GET", path, token=account)).body
        keys = await server.request("GET", "/openid/v1/jwks", token=account)
        assert found == {
            "issuer": "https://kubernetes.default.svc",
            "jwks_uri": f"{server.url}/openid/v1/jwks",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }
        assert keys.headers["Cache-Control"] == "public, max-age=3600"
        (key,) = jwt.PyJWKSet.from_dict(keys.body).keys
        assert jwt.get_unverified_header(token)["kid"] == key.key_id
        claims = jwt.decode(token, key, ["ES256"], audience="shop", issuer=found["issuer"])
        assert claims["sub"] == "system:serviceaccount:default:robot"
