"""The component ``scheduling-gates``: its rights are enough, and each of them is used."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.kubectl import Kubectl, needs_kubectl
from support.manifests import MANIFESTS, dumped, kustomized
from support.polling import wait_until_true
from support.rbac import (
    ComponentProcesses,
    Permission,
    forbidden_requests,
    granted_permissions,
    redirected,
    used_permissions,
)
from support.realkube import RealKubeOptions, RealServer, free_ports, real_server, require_realkube

from batholith.model.names import PODS, QUEUE_GATE, QUEUES

pytestmark = pytest.mark.timeout(300)  # four processes and a fresh server

OVERLAY = MANIFESTS / "overlays" / "scheduling-gates"
TEST_NAMESPACE = "default"
OPTIONS = RealKubeOptions(audit=True, flags=("--feature-gates=WatchList=false",))
"""Without lists at the head of watches both rights are used, to list and to watch."""
ADDED = {
    "scheduler": {Permission("", "pods", "patch")},
    "admission": {
        Permission(
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations",
            verb,
            "batholith-pods-mutate",
        )
        for verb in ("list", "watch", "patch")
    },
}


def test_the_component_gives_these_rights_and_no_others() -> None:
    for component in ("controllers", "scheduler", "admission", "api"):
        more = granted_permissions(kustomized(OVERLAY), component) - granted_permissions(
            kustomized(), component
        )
        assert more == ADDED.get(component, set())


async def test_a_gate_is_set_and_lifted_with_exactly_these_rights(tmp_path: Path) -> None:
    needs_kubectl()
    require_realkube()
    async with real_server(tmp_path, OPTIONS) as server:
        async with _components(server, tmp_path) as components:
            gated = await _add(server, "gated", asks=True)
            assert gated["spec"]["schedulingGates"] == [{"name": QUEUE_GATE}]
            other = await _add(server, "other", asks=False)
            assert "schedulingGates" not in other["spec"]
            await wait_until_true(lambda: _is_bound(server, "gated"))
            await wait_until_true(lambda: _is_bound(server, "other"))
            assert "schedulingGates" not in (await _pod_of(server, "gated"))["spec"]
            assert forbidden_requests(server.kube.audit()) == []
            await components.stop()  # a watch is logged when it ends
        log = server.kube.audit()
    for component, rights in ADDED.items():
        did = used_permissions(log, component)
        assert [right for right in rights if not any(map(right.covers, did))] == []


@asynccontextmanager
async def _components(server: RealServer, directory: Path) -> AsyncIterator[ComponentProcesses]:
    """The overlay applied, one process of each component that gates need, and a node."""
    kubectl = Kubectl(server, directory)
    found = kustomized(OVERLAY)
    (port,) = free_ports(1)
    url = f"https://127.0.0.1:{port}"
    await kubectl("apply", "-f", "-", stdin=dumped(redirected(found, url).values()))
    components = ComponentProcesses(found, kubectl, directory, url=server.url)
    try:
        ports = {":11251": 0, ":8081": 0}
        await components.start("admission", f"--webhook-url={url}", ports=ports | {"8443": port})
        await components.start("controllers", ports=ports)
        await components.start("scheduler", ports=ports)
        simulated = ("--simulate=1", f"--data-dir={directory / 'agent'}")
        await components.run(
            "agent", "agent", *simulated, f"--kubeconfig={server.kubeconfig_of('agent')}"
        )
        await wait_until_true(lambda: _has(server, QUEUES.path(name="default"), "'state': 'Open'"))
        await wait_until_true(lambda: _webhooks_respond(server))
        yield components
    except BaseException:
        for each in components.running:  # for failed tests
            print(f"== {each.name}\n{each.log.read_text()[-3000:]}")  # noqa: T201
        raise
    finally:
        await components.stop()


async def _has(server: RealServer, path: str, text: str) -> bool:
    seen = await server.request("GET", path)
    return seen.status == 200 and text in str(seen.body)


async def _webhooks_respond(server: RealServer) -> bool:
    """Whether webhooks respond: the server trusts them shortly after they are ready."""
    path = f"{PODS.path(TEST_NAMESPACE)}?dryRun=All"
    tried = await server.request("POST", path, _pod("tried", asks=True))
    return tried.status == 201 and "schedulingGates" in str(tried.body)


async def _add(server: RealServer, name: str, *, asks: bool) -> dict[str, Any]:
    return await server.create(PODS.path(TEST_NAMESPACE), _pod(name, asks=asks))


def _pod(name: str, *, asks: bool) -> dict[str, Any]:
    notes = {QUEUE_GATE: "true"} if asks else {}
    container = {
        "name": "c",
        "image": "busybox",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"schedulerName": "volcano", "containers": [container]},
    }


async def _pod_of(server: RealServer, name: str) -> dict[str, Any]:
    found: dict[str, Any] = await server.get(PODS.path(TEST_NAMESPACE, name))
    return found


async def _is_bound(server: RealServer, name: str) -> bool:
    return bool((await _pod_of(server, name))["spec"].get("nodeName"))
