"""What pods get of their service account at creation."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.polling import wait_until_true

from batholith.local.apiserver.service_accounts.admission import admit_pod

Json = dict[str, Any]
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
PODS = "/api/v1/namespaces/default/pods"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
SPACE = "accounts"
OWN_MOUNT = {"name": "own", "mountPath": MOUNT_PATH}


def pod(**spec: Any) -> Json:
    """A pod with two containers, one of which starts first."""
    containers = {
        "initContainers": [{"name": "i", "image": "i"}],
        "containers": [{"name": "c", "image": "i"}],
    }
    return {"metadata": {"name": "p"}, "spec": {"serviceAccountName": "robot"} | containers | spec}


def token_volumes(created: Json) -> tuple[list[Json], list[list[Json]]]:
    """The volumes and the mounts of each container, with one name instead of generated ones."""
    text = json.dumps(created["spec"])
    spec = json.loads(re.sub(r"kube-api-access-[a-z0-9]{5}\b", "kube-api-access", text))
    containers = [*spec["initContainers"], *spec["containers"]]
    return spec.get("volumes", []), [each.get("volumeMounts", []) for each in containers]


VOLUME = {
    "name": "kube-api-access",
    "projected": {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
            {
                "downwardAPI": {
                    "items": [
                        {
                            "path": "namespace",
                            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                        }
                    ]
                }
            },
        ],
        "defaultMode": 420,
    },
}
MOUNT = {"name": "kube-api-access", "readOnly": True, "mountPath": MOUNT_PATH}
OWN_VOLUME = {"name": "own", "emptyDir": {}}


@pytest.mark.parametrize(
    ("account", "spec", "expected"),
    [
        ({}, {}, ([VOLUME], [[MOUNT], [MOUNT]])),
        ({}, {"automountServiceAccountToken": False}, ([], [[], []])),
        ({"automountServiceAccountToken": False}, {}, ([], [[], []])),
        (
            {"automountServiceAccountToken": False},
            {"automountServiceAccountToken": True},
            ([VOLUME], [[MOUNT], [MOUNT]]),
        ),
        (
            {},
            {
                "volumes": [OWN_VOLUME],
                "containers": [{"name": "c", "image": "i", "volumeMounts": [OWN_MOUNT]}],
            },
            ([OWN_VOLUME, VOLUME], [[MOUNT], [OWN_MOUNT]]),
        ),
    ],
)
async def test_pod_gets_the_token_of_its_account_as_on_kubernetes(
    servers: ServerFactory,
    tmp_path: Path,
    account: Json,
    spec: Json,
    expected: tuple[list[Json], list[list[Json]]],
) -> None:
    async with servers.start(tmp_path) as server:
        body = {"metadata": {"name": "robot"}, **account}
        assert (await server.request("POST", ACCOUNTS, body)).status == 201
        created = await server.request("POST", PODS, pod(**spec))
        assert created.status == 201, created.body
        assert token_volumes(created.body) == expected
        assert created.body["spec"]["serviceAccount"] == "robot"


async def test_pod_of_an_account_that_does_not_exist_is_rejected(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        rejected = await server.request("POST", PODS, pod())
        assert rejected.status == 403
        assert rejected.body["message"] == (
            'pods "p" is forbidden: error looking up service account default/robot: '
            'serviceaccount "robot" not found'
        )


async def test_pod_of_the_default_account_gets_a_token_unless_it_or_the_account_refuses_it(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path) as server:
        space = f"/api/v1/namespaces/{SPACE}"
        body = {"metadata": {"name": SPACE}}
        assert (await server.request("POST", "/api/v1/namespaces", body)).status == 201
        # A controller creates the account, too: kube-apiserver alone has none.
        await server.request("POST", f"{space}/serviceaccounts", {"metadata": {"name": "default"}})
        for number, (in_account, in_pod, mounts) in enumerate(
            [
                (None, None, True),
                (None, False, False),
                (False, None, False),
                (False, True, True),
                (True, None, True),
            ]
        ):
            change = {"automountServiceAccountToken": in_account}
            changed = await server.request(
                "PATCH",
                f"{space}/serviceaccounts/default",
                change,
                content_type="application/merge-patch+json",
            )
            assert changed.status == 200, changed.body
            new = pod(serviceAccountName="", automountServiceAccountToken=in_pod)
            new["metadata"]["name"] = f"p{number}"

            async def create(body: Json = new, mounts: bool = mounts) -> bool:
                # The admission of kube-apiserver reads accounts from a cache.
                created = await server.request("POST", f"{space}/pods?dryRun=All", body)
                assert created.status in (201, 403), created.body
                return created.status == 201 and bool(token_volumes(created.body)[0]) is mounts

            await wait_until_true(create)


def test_pod_that_precedes_the_default_account_of_its_namespace_is_admitted() -> None:
    body = pod(serviceAccountName="")
    body["metadata"] = {"generateName": "p-", "name": "p-1"}
    again = copy.deepcopy(body) | {"metadata": {"generateName": "p-", "name": "p-2"}}
    admit_pod(body, namespace="a", name="p", lookup=lambda *_: None)
    assert body["spec"]["serviceAccountName"] == "default"
    assert token_volumes(body) == ([VOLUME], [[MOUNT], [MOUNT]])
    # A pod that a webhook reviews is admitted twice, and must be the same.
    admit_pod(again, namespace="a", name="p", lookup=lambda *_: None)
    assert again["spec"] == body["spec"]
