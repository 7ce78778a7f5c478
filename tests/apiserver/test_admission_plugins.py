"""What the built-in admission plugins set and reject, on both servers."""

import asyncio
from typing import Any

from support.api_servers import merge_patch
from support.embedded_apiserver import MERGE, PODS, RawResponse, Server, pod
from support.polling import wait_until_equal

from batholith.model.names import (
    PERSISTENTVOLUMECLAIMS,
    PRIORITYCLASSES,
    SERVICEACCOUNTS,
    STORAGECLASSES,
)

Json = dict[str, Any]
CLAIMS = PERSISTENTVOLUMECLAIMS.path("default")
ACCOUNTS = SERVICEACCOUNTS.path("default")
IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"


def claim(name: str, **spec: Any) -> Json:
    resources = {"requests": {"storage": "1Gi"}}
    return {
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources, **spec},
    }


async def class_of(server: Server, **spec: Any) -> object:
    """The class that a new claim gets at once."""
    response = await server.request("POST", f"{CLAIMS}?dryRun=All", claim("probe", **spec))
    assert response.status == 201, response.body
    return response.body["spec"].get("storageClassName")


async def add_class(server: Server, name: str, default: str = "true") -> None:
    metadata = {"name": name, "annotations": {IS_DEFAULT: default}}
    await server.create(STORAGECLASSES.path(), {"metadata": metadata, "provisioner": "a.b/c"})


async def test_claims_get_the_newest_default_class_at_once(server: Server) -> None:
    for found in (await server.get(STORAGECLASSES.path()))["items"]:
        await server.request("DELETE", STORAGECLASSES.path("", found["metadata"]["name"]))
    await wait_until_equal(lambda: class_of(server), None)
    await add_class(server, "b")
    await add_class(server, "z", default="false")
    await wait_until_equal(lambda: class_of(server), "b")
    assert await class_of(server, storageClassName="") == ""
    assert await class_of(server, storageClassName="other") == "other"
    # Times of creation are in seconds; of classes of the same second, the first name is chosen.
    await add_class(server, "a")
    await wait_until_equal(lambda: class_of(server), "a")
    off = {"metadata": {"annotations": {IS_DEFAULT: "false"}}}
    await merge_patch(server, STORAGECLASSES.path("", "a"), off)
    await wait_until_equal(lambda: class_of(server), "b")


async def test_there_is_one_default_priority_class(server: Server) -> None:
    path = PRIORITYCLASSES.path()
    await server.create(path, {"metadata": {"name": "one"}, "value": 5, "globalDefault": True})
    await server.create(path, {"metadata": {"name": "two"}, "value": 7})
    body = {"metadata": {"name": "three"}, "value": 3, "globalDefault": True}

    async def message() -> object:
        response = await server.request("POST", f"{path}?dryRun=All", body)
        return response.body.get("message")

    why = "is forbidden: PriorityClass one is already marked as default. Only one default can exist"
    await wait_until_equal(message, f'priorityclasses.scheduling.k8s.io "three" {why}')
    response = await patch(server, f"{path}/two", {"globalDefault": True})
    assert (response.status, response.body["message"]) == (
        403, f'priorityclasses.scheduling.k8s.io "two" {why}',
    )  # fmt: skip
    assert (await patch(server, f"{path}/one", {"description": "still"})).status == 200
    assert (await patch(server, f"{path}/one", {"globalDefault": False})).status == 200


async def patch(server: Server, path: str, body: Json) -> RawResponse:
    return await server.request("PATCH", path, body, content_type=MERGE)


async def test_priority_classes_of_the_system_stay(server: Server) -> None:
    path = PRIORITYCLASSES.path()
    response = await server.request("DELETE", f"{path}/system-node-critical")
    assert (response.status, response.body["message"]) == (
        403,
        'priorityclasses.scheduling.k8s.io "system-node-critical" is forbidden: this is a system '
        "priority class and cannot be deleted",
    )
    response = await server.request("POST", path, {"metadata": {"name": "system-x"}, "value": 7})
    assert (response.status, response.body["message"]) == (
        422,
        'PriorityClass.scheduling.k8s.io "system-x" is invalid: metadata.name: Forbidden: priority '
        "class names with 'system-' prefix are reserved for system use only. error: system-x is "
        "not a known system priority class",
    )


async def test_pods_get_the_pull_secrets_of_their_account(server: Server) -> None:
    body = {"metadata": {"name": "pulling"}, "imagePullSecrets": [{"name": "pull"}]}
    await server.create(ACCOUNTS, body)
    pods = [
        await server.create(PODS, pod(name, serviceAccountName="pulling", **spec))
        for name, spec in (("p", {}), ("q", {"imagePullSecrets": [{"name": "own"}]}))
    ]
    assert [each["spec"]["imagePullSecrets"] for each in pods] == [
        [{"name": "pull"}],
        [{"name": "own"}],
    ]


def of_secret(name: str) -> Json:
    return {"valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}, "name": "A"}


SECRETS: tuple[tuple[Json, str], ...] = (
    ({"volumes": [{"name": "v", "secret": {"secretName": "bad"}}]},
     'volume with secret.secretName="bad" is not allowed because service account strict does not '
     "reference that secret"),
    ({"containers": [{"name": "c", "image": "i", "env": [of_secret("bad")]}]},
     'container c with envVar A referencing secret.secretName="bad" is not allowed because service '
     "account strict does not reference that secret"),
    ({"initContainers": [{"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": "bad"}}]}]},
     'init container c with envFrom referencing secret.secretName="bad" is not allowed because '
     "service account strict does not reference that secret"),
    ({"imagePullSecrets": [{"name": "bad"}]},
     'imagePullSecrets[0].name="bad" is not allowed because service account strict does not '
     "reference that imagePullSecret"),
    ({"volumes": [{"name": "v", "secret": {"secretName": "good"}}],
      "containers": [{"name": "c", "image": "i", "env": [of_secret("good")]}]}, ""),
)  # fmt: skip


async def test_pods_of_a_strict_account_use_its_secrets_only(server: Server) -> None:
    metadata = {
        "name": "strict",
        "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"},
    }
    await server.create(ACCOUNTS, {"metadata": metadata, "secrets": [{"name": "good"}]})
    for spec, why in SECRETS:
        body = pod("p", serviceAccountName="strict", **spec)
        response = await server.request("POST", f"{PODS}?dryRun=All", body)
        expected = f'pods "p" is forbidden: {why}' if why else None
        assert response.body.get("message") == expected


async def test_mirrors_of_static_pods_use_nothing_of_the_api_server(server: Server) -> None:
    await server.create(ACCOUNTS, {"metadata": {"name": "any"}})
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}, "name": "v"}
    responses = await asyncio.gather(
        *(
            server.request(
                "POST",
                f"{PODS}?dryRun=All",
                {
                    "metadata": {"name": "p", "annotations": {"kubernetes.io/config.mirror": "x"}},
                    "spec": pod("p", nodeName="n", **spec)["spec"],
                },
            )
            for spec in (
                {"serviceAccountName": "any"},
                {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]},
                {"volumes": [token]},
            )
        )
    )
    assert [response.body["message"] for response in responses] == [
        'pods "p" is forbidden: a mirror pod may not reference service accounts',
        'pods "p" is forbidden: a mirror pod may not reference secrets',
        'pods "p" is forbidden: a mirror pod may not use ServiceAccountToken volume projections',
    ]


async def test_deprecated_annotations_and_fractions_of_bytes_cause_warnings(
    server: Server,
) -> None:
    beta = "volume.beta.kubernetes.io/storage-class"
    body = claim("old")
    body["metadata"]["annotations"] = {beta: "none"}
    body["spec"]["resources"]["requests"]["storage"] = "1500m"
    response = await server.request("POST", f"{CLAIMS}?dryRun=All", body)
    assert response.status == 201
    assert response.body["spec"].get("storageClassName") is None
    assert response.warnings == [
        f'metadata.annotations[{beta}]: deprecated since v1.8; use "storageClassName" attribute '
        "instead",
        'spec.resources.requests[storage]: fractional byte value "1500m" is invalid, must be an '
        "integer",
    ]
    strict = "kubernetes.io/enforce-mountable-secrets"
    account = {"metadata": {"name": "strict", "annotations": {strict: "true"}}}
    created = await server.request("POST", ACCOUNTS, account)
    assert created.warnings == [
        f"metadata.annotations[{strict}]: deprecated in v1.32+; prefer separate namespaces to "
        "isolate access to mounted secrets"
    ]
    labelled = await patch(server, f"{ACCOUNTS}/strict", {"metadata": {"labels": {"a": "b"}}})
    assert (labelled.status, labelled.warnings) == (200, [])
