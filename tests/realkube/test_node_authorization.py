"""The node authorizer and NodeRestriction: both servers decide the same about kubelets."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.embedded_apiserver import Server, embedded_server
from support.examples import examples
from support.node_requests import (
    CORE,
    NODES,
    READS,
    VOLUMES,
    WRITES,
    NodeRequest,
    claim,
    create_objects,
    mirror_requests,
    pod,
    token_requests,
    volume,
)
from support.polling import wait_until_true
from support.realkube import MASTERS, RealKubeOptions, real_server

pytestmark = pytest.mark.process

Json = dict[str, Any]
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RESOURCES = (
    ("", "secrets"), ("", "configmaps"), ("", "persistentvolumeclaims"), ("", "persistentvolumes"),
    ("", "serviceaccounts"), ("", "nodes"), ("", "pods"), ("", "services"), ("", "events"),
    ("coordination.k8s.io", "leases"), ("storage.k8s.io", "csinodes"),
    ("storage.k8s.io", "volumeattachments"), ("resource.k8s.io", "resourceslices"),
    ("resource.k8s.io", "resourceclaims"), ("apps", "deployments"),
)  # fmt: skip
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
SUBRESOURCES = ("", "", "", "status", "token", "eviction", "binding")
NAMES = ("", "n-0", "n-1", "x-0", "x-1", "x-2")
OPTIONS = RealKubeOptions(
    users={"admin": MASTERS}, flags=("--enable-admission-plugins=NodeRestriction",)
)


@asynccontextmanager
async def both_servers(directory: Path) -> AsyncIterator[tuple[Server, Server]]:
    async with (
        real_server(directory / "real", OPTIONS) as theirs,
        embedded_server(directory / "ours", node_lifecycle=False) as ours,
    ):
        yield theirs, ours


async def create_default_account(server: Server) -> None:
    """Create the account of pods that name none: the real server's controller does not run."""
    body = {"metadata": {"name": "default"}}
    created = await server.request("POST", f"{CORE}/serviceaccounts", body)
    assert created.status in (201, 409)


async def allows(server: Server, node: str, **attributes: Any) -> Json:
    """The status of a review of a kubelet's request."""
    spec = {
        "user": f"system:node:{node}",
        "groups": ["system:nodes", "system:authenticated"],
        "resourceAttributes": attributes,
    }
    status: Json = (await server.create(REVIEWS, {"spec": spec}))["status"]
    return {"allowed": status["allowed"], "reason": status.get("reason", "")}


async def wait_observed(server: Server, number: int) -> None:
    """Wait until the authorizer knows of what was written before."""
    name = f"end-{number}"
    await server.create(VOLUMES, volume(name, name))
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
    await server.create(f"{CORE}/pods", pod(name, "n-0", volumes=volumes))

    async def observed() -> bool:
        asked = {"verb": "get", "group": "", "resource": "persistentvolumes", "name": name}
        return bool((await allows(server, "n-0", **asked))["allowed"])

    await wait_until_true(observed)


def random_pod(random_: random.Random, name: str) -> Json:
    def some() -> str:
        return f"x-{random_.randint(0, 2)}"

    volumes: list[Json] = [
        {"name": "s", "secret": {"secretName": some(), "optional": True}},
        {"name": "m", "configMap": {"name": some(), "optional": True}},
        {"name": "c", "persistentVolumeClaim": {"claimName": some()}},
        {"name": "p", "projected": {"sources": [{"secret": {"name": some()}}]}},
    ]
    sources = [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": some(), "key": "k"}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": some(), "key": "k"}}},
    ]
    container = {"env": random_.sample(sources, random_.randint(0, 2))}
    node = random_.choice(("n-0", "n-1", ""))
    chosen = random_.sample(volumes, random_.randint(0, 3))
    spec: Json = {"volumes": chosen, "serviceAccountName": some(), "container": container}
    if random_.random() < 0.3:
        spec["imagePullSecrets"] = [{"name": some()}]
    return pod(name, node, **spec)


def random_question(random_: random.Random) -> Json:
    group, resource = random_.choice(RESOURCES)
    asked: Json = {
        "verb": random_.choice(VERBS),
        "group": group,
        "resource": resource,
        "subresource": random_.choice(SUBRESOURCES),
        "namespace": random_.choice(("default", "default", "kube-node-lease", "")),
        "name": random_.choice(NAMES),
    }
    if asked["verb"] in ("list", "watch", "deletecollection") and random_.random() < 0.5:
        operator = random_.choice(("In", "In", "NotIn"))
        node = {"key": "spec.nodeName", "operator": operator, "values": ["n-0"]}
        asked["fieldSelector"] = {"requirements": [node]}
    return asked


async def test_random_pods_give_nodes_the_same_rights_on_both_servers(tmp_path: Path) -> None:
    async with both_servers(tmp_path) as servers:
        for server in servers:
            for name in ("n-0", "n-1"):
                await server.create(NODES, {"metadata": {"name": name}})
            for number in range(3):
                account = {"metadata": {"name": f"x-{number}"}}
                await server.create(f"{CORE}/serviceaccounts", account)
                await server.create(f"{CORE}/persistentvolumeclaims", claim(f"x-{number}"))
            await create_default_account(server)
            await server.create(VOLUMES, volume("x-0", "x-1", secret="x-2"))
            await server.create(VOLUMES, volume("x-1", "x-0", secret="x-0"))
        allowed = 0
        for seed in range(examples(8)):
            random_ = random.Random(seed)
            pods = [random_pod(random_, f"p-{seed}-{number}") for number in range(4)]
            questions = [random_question(random_) for _ in range(60)]
            for server in servers:
                for body in pods:
                    await server.create(f"{CORE}/pods", body)
                await wait_observed(server, seed)
            for asked in questions:
                expected, actual = [await allows(each, "n-0", **asked) for each in servers]
                assert actual == expected, (seed, asked)
                allowed += expected["allowed"]
            for server in servers:
                for body in pods[:3]:
                    path = f"{CORE}/pods/{body['metadata']['name']}?gracePeriodSeconds=0"
                    assert (await server.request("DELETE", path)).status == 200
        assert allowed


async def test_requests_of_kubelets_get_the_same_responses(tmp_path: Path) -> None:
    async with both_servers(tmp_path) as (theirs, ours):
        await create_default_account(theirs)
        for server in (theirs, ours):
            await create_objects(server)
        last = {"verb": "get", "group": "", "resource": "persistentvolumes", "name": "v-b"}

        async def observed() -> bool:
            return bool((await allows(theirs, "b", **last))["allowed"])

        await wait_until_true(observed)
        pairs = [
            *zip(READS, READS, strict=True),
            *zip(await token_requests(theirs), await token_requests(ours), strict=True),
            *zip(await mirror_requests(theirs), await mirror_requests(ours), strict=True),
            *zip(WRITES[:-1], WRITES[:-1], strict=True),
        ]
        differences = []
        for theirs_sent, ours_sent in pairs:
            expected = await _response(theirs, theirs_sent)
            actual = await _response(ours, ours_sent)
            if actual != expected or expected[0] != ours_sent.status:
                differences.append((ours_sent, expected, actual))
        assert differences == []


async def _response(server: Server, request: NodeRequest) -> tuple[int, str]:
    """The status of the response, and the message of an error."""
    response = await request.send(server)
    if response.status < 400:
        return response.status, ""
    return response.status, _without_uids(response.body["message"], request)


def _without_uids(message: str, request: NodeRequest) -> str:
    """A message without the uid of the node, which differs."""
    owners = ((request.body or {}).get("metadata") or {}).get("ownerReferences") or ()
    before, found, _ = message.partition(" got ")
    return before if owners and found else message
