"""Tokens of service accounts in Secrets, on both servers."""

import base64
from typing import Any

from support.embedded_apiserver import wait_deleted
from support.polling import wait_until_true
from support.workload_cluster import WorkloadCluster

from batholith.model.names import SECRETS, SERVICEACCOUNTS

Json = dict[str, Any]
TYPE = "kubernetes.io/service-account-token"
ACCOUNT = "kubernetes.io/service-account.name"
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def secret(name: str, account: str) -> Json:
    return {"metadata": {"name": name, "annotations": {ACCOUNT: account}}, "type": TYPE}


async def token_in(cluster: WorkloadCluster, name: str) -> str:
    """Wait for a token in a Secret."""

    async def is_there() -> bool:
        return bool((await cluster.get(SECRETS, name)).get("data", {}).get("token"))

    await wait_until_true(is_there)
    found = await cluster.get(SECRETS, name)
    return base64.b64decode(found["data"]["token"]).decode()


async def user_of(cluster: WorkloadCluster, token: str) -> Json | None:
    """The user who has a token; ``None`` if it is not valid."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    response = await cluster.server.request("POST", REVIEWS, body, token=token)
    if response.status == 401:
        return None
    assert response.status == 201, response.body
    found: Json = response.body["status"]["userInfo"]
    return found


async def test_a_secret_gets_a_token_of_its_account(cluster: WorkloadCluster) -> None:
    await cluster.server.create(cluster.path(SERVICEACCOUNTS), {"metadata": {"name": "robot"}})
    await cluster.server.create(cluster.path(SECRETS), secret("key", "robot"))
    token = await token_in(cluster, "key")
    found = await cluster.get(SECRETS, "key")
    account = await cluster.get(SERVICEACCOUNTS, "robot")
    assert found["metadata"]["annotations"] == {
        ACCOUNT: "robot",
        "kubernetes.io/service-account.uid": account["metadata"]["uid"],
    }
    data = {key: base64.b64decode(value) for key, value in found["data"].items()}
    assert data == {
        "token": token.encode(),
        "namespace": cluster.namespace.encode(),
        "ca.crt": cluster.server.ca,
    }
    user = await user_of(cluster, token)
    assert user is not None
    assert user["username"] == f"system:serviceaccount:{cluster.namespace}:robot"
    assert user["uid"] == account["metadata"]["uid"]


async def test_a_token_ends_when_its_secret_has_another_one(cluster: WorkloadCluster) -> None:
    await cluster.server.create(cluster.path(SERVICEACCOUNTS), {"metadata": {"name": "robot"}})
    await cluster.server.create(cluster.path(SECRETS), secret("key", "robot"))
    first = await token_in(cluster, "key")
    other = base64.b64encode(b"none").decode()
    await cluster.patch(SECRETS, "key", {"data": {"token": other}})

    async def has_ended() -> bool:
        return await user_of(cluster, first) is None

    # kube-apiserver remembers for some seconds who has a token.
    await wait_until_true(has_ended)


async def test_a_token_ends_with_its_secret(cluster: WorkloadCluster) -> None:
    await cluster.server.create(cluster.path(SERVICEACCOUNTS), {"metadata": {"name": "robot"}})
    await cluster.server.create(cluster.path(SECRETS), secret("key", "robot"))
    token = await token_in(cluster, "key")
    await cluster.server.request("DELETE", cluster.path(SECRETS, "key"))

    async def has_ended() -> bool:
        return await user_of(cluster, token) is None

    await wait_until_true(has_ended)


async def test_a_secret_is_deleted_with_its_account(cluster: WorkloadCluster) -> None:
    await cluster.server.create(cluster.path(SERVICEACCOUNTS), {"metadata": {"name": "robot"}})
    await cluster.server.create(cluster.path(SECRETS), secret("key", "robot"))
    await token_in(cluster, "key")
    await cluster.server.create(cluster.path(SECRETS), secret("stray", "missing"))
    await wait_deleted(cluster.server, cluster.path(SECRETS), "stray")
    await cluster.server.request("DELETE", cluster.path(SERVICEACCOUNTS, "robot"))
    await wait_deleted(cluster.server, cluster.path(SECRETS), "key")


async def test_a_secret_for_a_token_names_its_account(cluster: WorkloadCluster) -> None:
    body = secret("key", "robot")
    del body["metadata"]["annotations"]
    rejected = await cluster.server.request("POST", cluster.path(SECRETS), body)
    assert rejected.status == 422
    (cause,) = rejected.body["details"]["causes"]
    assert cause["field"] == f"metadata.annotations[{ACCOUNT}]"
