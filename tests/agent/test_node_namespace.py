"""Network namespaces of pods without root: in the namespace of the node, which pasta connects."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.agent import container, manifest
from support.datagrams import ECHO, response_of
from support.embedded_cluster import (
    EmbeddedCluster,
    connect,
    denied_requests,
    processes_of,
    run,
)
from support.pod_network import FORBIDDEN, SERVER, free_host_port, is_ready
from support.polling import wait_until_true

from batholith.local.agent.network.uplink import CHECK_INTERVAL, watch_uplink
from batholith.local.network import node_namespace
from batholith.machinery.testing import FakeClock
from batholith.model.names import EVENTS, NETWORKPOLICIES, PODS, SERVICES
from batholith.model.service_network import NAMESPACE_RANGES

pytestmark = pytest.mark.process

AS_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
"""Runs a program as a user that is not root, but has the files of this one."""

CONNECT = """
import socket, subprocess, sys, time
changed = subprocess.run([sys.argv.pop(1), "link", "set", "lo", "down"], stderr=subprocess.DEVNULL)
print("changed" if changed.returncode == 0 else "unchanged", flush=True)
for target in sys.argv[1:]:
    host, _, port = target.lstrip("+").rpartition(":")
    retried = (
        "Connection refused", "Name or service not known", "Temporary failure in name resolution"
    )
    result = retried[0]
    while result in retried:
        try:
            socket.create_connection((host, int(port)), timeout=20).close()
            result = "connected"
        except OSError as error:
            result = error.strerror
        if target[0] != "+":
            break
        time.sleep(0.05)
    print(result, flush=True)
"""
"""Prints whether the pod may change its network, and how connections end.

One to an address with a plus is repeated until it is not refused, and has an address.
"""

REFUSED = "Connection refused"
Json = dict[str, Any]


@pytest.fixture
def supported() -> None:
    reason = node_namespace.missing_support()
    if reason and "pasta" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


async def batholith(*arguments: str) -> None:
    outcome = await run(*AS_USER, sys.executable, "-m", "batholith", *arguments)
    assert outcome.code == 0, outcome.err


async def start(cluster: EmbeddedCluster, name: str, program: Json, **spec: Any) -> Json:
    body = manifest(name, program, restartPolicy="Never", **spec)
    body["metadata"] = {"name": name, "namespace": "default", "labels": {"app": name}}
    return await cluster.client.create(PODS, body, namespace="default", view=dict)


async def wait_pod(cluster: EmbeddedCluster, name: str, *phases: str, ready: bool = False) -> Json:
    async for event in cluster.client.watch(
        PODS, namespace="default", view=dict, field_selector=f"metadata.name={name}",
        resource_version="",
    ):  # fmt: skip
        pod = event.object
        if pod.get("status", {}).get("phase") in phases and (
            is_ready(pod) or phases[0] != "Running"
        ):
            return pod
    raise AssertionError("the watch ended")


async def attempts(cluster: EmbeddedCluster, name: str, *targets: str, **spec: Any) -> list[str]:
    """What a new pod can do."""
    ip = shutil.which("ip") or ""
    await start(cluster, name, container(sys.executable, "-c", CONNECT, ip, *targets), **spec)
    await wait_pod(cluster, name, "Succeeded", "Failed")
    return (await cluster.log(name)).splitlines()


async def test_a_user_has_pods_with_namespaces_and_policies(
    tmp_path: Path, supported: None
) -> None:
    root = tmp_path / "data"
    host_port = free_host_port()
    ports = ("--port", "0", "--api-port", "0", "--pod-network=namespaces")
    await batholith("up", "--detach", "--data-dir", str(root), *ports)
    try:
        async with connect(root) as cluster:
            await check(cluster, host_port)
    finally:
        await batholith("down", "--data-dir", str(root))
    assert processes_of(root) == []
    assert denied_requests(root) == []


async def check(cluster: EmbeddedCluster, host_port: int) -> None:
    ready = {"httpGet": {"path": "/", "port": 80}}
    listening = [{"containerPort": 80, "hostPort": host_port}]
    for name, ports in (("web", listening), ("other", [])):
        program = container(
            sys.executable, "-c", SERVER, "0.0.0.0", "80", name, readinessProbe=ready, ports=ports
        )
        await start(cluster, name, program)
    names = [{"containerPort": 53, "hostPort": host_port, "protocol": "UDP"}]
    await start(cluster, "names", container(sys.executable, "-c", ECHO, "names", ports=names))
    policy = {
        "metadata": {"name": "none"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}},
    }
    await cluster.client.create(NETWORKPOLICIES, policy, namespace="default", view=dict)
    spec = {"ports": [{"port": 8000, "targetPort": 80}], "selector": {"app": "other"}}
    service = await cluster.client.create(
        SERVICES, {"metadata": {"name": "other"}, "spec": spec}, namespace="default", view=dict
    )
    alias = {"type": "ExternalName", "externalName": "other.default.svc.cluster.local"}
    await cluster.client.create(
        SERVICES, {"metadata": {"name": "alias"}, "spec": alias}, namespace="default", view=dict
    )
    web, other = [
        (await wait_pod(cluster, name, "Running", ready=True))["status"]["podIP"]
        for name in ("web", "other")
    ]
    node, rest = NAMESPACE_RANGES.node_ip, cluster.state.ports["rest"]
    targets = (
        f"{other}:80", f"+{service['spec']['clusterIP']}:8000",
        f"+{NAMESPACE_RANGES.api_server_ip}:443", "+alias:8000",
        f"{web}:80", f"{node}:{host_port}", f"127.0.0.1:{rest}", f"{node}:{rest}",
    )  # fmt: skip
    expected = ["unchanged"] + ["connected"] * 4 + [FORBIDDEN] * 2 + [REFUSED] * 2
    assert await attempts(cluster, "client", *targets) == expected
    url = f"http://127.0.0.1:{host_port}/"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert await response.text() == "web"

    async def has_datagrams() -> bool:
        return await response_of(("127.0.0.1", host_port)) == b"names"

    await wait_until_true(has_datagrams)
    restarts = cluster.state.components["agent"].restarts
    cluster.kill("agent")

    async def is_back() -> bool:
        agent = cluster.state.components["agent"]
        return agent.restarts > restarts and agent.ready

    await wait_until_true(is_back)
    assert await attempts(cluster, "later", *targets) == expected
    await check_restarted_pasta(cluster)


async def check_restarted_pasta(cluster: EmbeddedCluster) -> None:
    """Kill what connects the node: it is connected again, and an event reports it."""
    cluster.kill("pasta")

    async def is_reported() -> bool:
        events = await cluster.client.list(EVENTS, namespace="default", view=dict)
        return any(each.get("reason") == "NodeNetworkRestarted" for each in events.items)

    await wait_until_true(is_reported)
    # This port of the machine is reached through pasta alone.
    target = f"+127.0.0.1:{cluster.state.ports['kubernetes']}"
    assert (await attempts(cluster, "after", target, hostNetwork=True))[1] == "connected"


async def test_each_new_connection_of_the_node_is_reported() -> None:
    clock, reports = FakeClock(), list[str]()
    device = 0

    async def changes(to: int) -> list[str]:
        nonlocal device
        device = to
        await clock.advance(CHECK_INTERVAL)
        return reports

    watching = asyncio.create_task(
        watch_uplink(
            lambda kind, reason, _: reports.append(reason), clock=clock, read=lambda: device
        )
    )
    await clock.advance(0)
    assert await changes(2) == []  # pasta starts with the node
    assert await changes(2) == []
    assert await changes(0) == ["NodeNetworkLost"]
    assert await changes(3) == ["NodeNetworkLost", "NodeNetworkRestarted"]
    assert await changes(4) == ["NodeNetworkLost", "NodeNetworkRestarted", "NodeNetworkRestarted"]
    watching.cancel()


def test_programs_that_a_normal_user_does_not_search_for_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_namespace, "SYSTEM_PROGRAMS", (str(tmp_path),))
    monkeypatch.setenv("PATH", "/usr/games")
    assert node_namespace.find_program("filter") is None
    (tmp_path / "filter").touch(mode=0o755)
    assert node_namespace.find_program("filter") == str(tmp_path / "filter")


def test_what_a_user_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None if name == "pasta" else name)
    assert "passt" in node_namespace.missing_support()
    monkeypatch.setattr(shutil, "which", lambda name, path: name)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "/dev/net/tun" in node_namespace.missing_support()
