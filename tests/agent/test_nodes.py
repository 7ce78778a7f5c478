"""Node objects and their status, and containers at each isolation level."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, manifest
from support.agent_cluster import NODE, agent_cluster
from support.api_servers import ServerFactory
from support.polling import wait_until_equal, wait_until_true
from support.sandbox import detected_isolation

from batholith.local.agent.node_status import NodeConfig, NodeStatusManager
from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.machinery.clock import SystemClock
from batholith.model.names import CONFIGMAPS, LEASES, NODES, SECRETS, SERVICES

pytestmark = pytest.mark.process

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.mark.parametrize("level", list(IsolationLevel))
async def test_a_container_sees_its_environment_volumes_and_names(
    servers: ServerFactory, tmp_path: Path, level: IsolationLevel
) -> None:
    found = detected_isolation(level)
    if found.isolation is not level:
        pytest.skip("; ".join(found.reasons))
    script = (
        'R=$BATHOLITH_ROOT; echo "$GREETING $POD_IP $TASK"; cat $R/etc/volcano/worker.host; echo;'
        "cat $R/secret/key; echo; cat $R/info/name; echo; cat $R/one; echo; pwd; hostname"
    )
    env = [
        {"name": "WHO", "value": "world"},
        {"name": "GREETING", "value": "hello-$(WHO)"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TASK", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "worker.host"}}},
    ]
    mounts = [
        {"name": "m", "mountPath": "/etc/volcano"},
        {"name": "m", "mountPath": "/one", "subPath": "worker.host"},
        {"name": "s", "mountPath": "/secret"},
        {"name": "d", "mountPath": "/info"},
    ]
    items = [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]
    volumes = [
        {"name": "m", "configMap": {"name": "m"}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "d", "downwardAPI": {"items": items}},
    ]
    async with agent_cluster(servers, tmp_path) as w, w.agent(sandbox=level):
        data = {"worker.host": "p.job"}
        await w.create({"metadata": {"name": "m"}, "data": data}, CONFIGMAPS)
        await w.create({"metadata": {"name": "s"}, "data": {"key": "aHVzaA=="}}, SECRETS)
        one = container("sh", "-c", script, env=env, volumeMounts=mounts, workingDir="/job/dir")
        await w.run(manifest("p", one, restartPolicy="Never", volumes=volumes))
        pod = await w.phase("p", "Succeeded", "Failed")
        assert pod["status"]["phase"] == "Succeeded", pod["status"]
        lines = (await w.logs("p")).splitlines()
        assert lines[:5] == [
            f"hello-world {pod['status']['podIP']} p.job",
            "p.job",
            "hush",
            "p",
            "p.job",
        ]
        assert lines[5].endswith("/job/dir")
        if level is IsolationLevel.PLAIN:
            assert "BATHOLITH_ROOT" in (await w.wait_event("p", "NoSandbox"))["message"]
        else:
            assert lines[5:] == ["/job/dir", "p"]


async def test_node_reports_capacity_and_renews_its_lease(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with agent_cluster(servers, tmp_path, cpus=16, memory="64Gi") as w, w.agent():
        node = await w.client.get(NODES, NODE, view=dict)
        assert node["status"]["allocatable"]["cpu"] == "16"
        assert node["status"]["allocatable"]["memory"] == "64Gi"
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
        ready = [c for c in node["status"]["conditions"] if c["type"] == "Ready"]
        assert ready[0]["status"] == "True"
        assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] > 0
        lease = await w.client.get(LEASES, NODE, namespace="kube-node-lease", view=dict)
        assert lease["spec"]["holderIdentity"] == NODE


async def test_new_node_keeps_its_taint_until_the_agent_is_ready(
    servers: ServerFactory, tmp_path: Path
) -> None:
    own = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
    async with agent_cluster(servers, tmp_path) as w:
        body = {"metadata": {"name": NODE}, "spec": {"taints": [own]}}
        created = await w.client.create(NODES, body, view=dict)
        not_ready = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
        assert created["spec"]["taints"] == [own, not_ready]

        async def has_only_own_taint() -> bool:
            node = await w.client.get(NODES, NODE, view=dict)
            return bool(node["spec"]["taints"] == [own])

        async with w.agent():
            # A kubelet may not remove it: a controller does, once the node is ready.
            await wait_until_true(has_only_own_taint)


async def test_a_pod_may_call_the_api_by_its_service_account(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """The volume that the server's admission adds: token, CA bundle, namespace."""
    script = (
        "echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT &&"
        f'cd "$BATHOLITH_ROOT{ACCOUNT}" && cat namespace && echo && cat ca.crt && cat token'
    )
    async with agent_cluster(servers, tmp_path) as w, w.agent():
        await w.run(manifest("p", container("sh", "-c", script), restartPolicy="Never"))
        assert (await w.phase("p", "Succeeded", "Failed"))["status"]["phase"] == "Succeeded"
        log = await w.logs("p")
        address, _, log = log.partition("\n")
        service = (await w.client.get(SERVICES, "kubernetes", namespace="default", view=dict))[
            "spec"
        ]
        assert address == f"{service['clusterIP']}:{service['ports'][0]['port']}"
        namespace, _, rest = log.partition("\n")
        authority, end, token = rest.partition("-----END CERTIFICATE-----\n")
        assert namespace == "default"
        assert (authority + end).encode() == w.server.ca
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        who = await w.server.request("POST", path, body, token=token.strip())
        user = who.body["status"]["userInfo"]
        assert user["username"] == "system:serviceaccount:default:default"
        assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]


async def test_pod_that_refuses_a_token_has_the_address_of_the_api_server(
    servers: ServerFactory, tmp_path: Path
) -> None:
    options = {"automountServiceAccountToken": False, "restartPolicy": "Never"}
    async with agent_cluster(servers, tmp_path) as w, w.agent():
        script = "echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"
        await w.run(manifest("p", container("sh", "-c", script), **options))
        await w.phase("p", "Succeeded")
        service = await w.client.get(SERVICES, "kubernetes", namespace="default", view=dict)
        address, port = service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"]
        assert await w.logs("p") == f"{address}:{port}\n"


async def test_node_event_reports_weak_isolation(servers: ServerFactory, tmp_path: Path) -> None:
    async with agent_cluster(servers, tmp_path) as w, w.agent(sandbox=IsolationLevel.PLAIN):
        event = await w.wait_event(NODE, "WeakIsolation")
    assert event["type"] == "Warning"
    assert event["message"].startswith("no sandbox: pods ")


async def test_node_reports_changed_images_at_the_next_heartbeat(
    servers: ServerFactory, tmp_path: Path
) -> None:
    images: list[dict[str, Any]] = []
    config = NodeConfig(
        name=NODE, cpus=1, memory="1Gi", pods=10, runtime="unshare", images=images.copy
    )
    async with agent_cluster(servers, tmp_path) as w:
        status = NodeStatusManager(w.client, [config], clock=SystemClock(), lease_seconds=1)
        await status.register()
        images.append({"names": ["registry.example/app:1"], "sizeBytes": 7})
        running = asyncio.create_task(status.run())
        try:

            async def reported() -> object:
                node = await w.client.get(NODES, NODE, view=dict)
                return node["status"].get("images")

            await wait_until_equal(reported, images)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
