"""A second machine, which is a network namespace here, joins the cluster of ``batholith up``."""

import asyncio
import os
import re
import ssl
from pathlib import Path
from typing import Any

import pytest
from support import embedded_cluster
from support.embedded_cluster import EmbeddedCluster
from support.kubectl import KUBECTL, needs_kubectl
from support.network_namespace import SecondMachine, second_machine
from support.polling import wait_until_true

from batholith.local.agent.certificates import CLIENT_FILE
from batholith.local.supervisor.datadir import DataDir
from batholith.local.supervisor.supervisor import read_state
from batholith.model.names import JOBS, NODES, PODS, SERVICES

Json = dict[str, Any]
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

_TALK = """
import os, socket, sys, threading, time
name, peer, host = sys.argv[1:]
def connect(*address):
    while True:
        try:
            return socket.create_connection(address, 5)
        except OSError:
            time.sleep(0.1)
server = socket.create_server(("", 7000))
def serve():
    while True:
        client, _ = server.accept()
        client.sendall(name.encode())
        client.close()
threading.Thread(target=serve, daemon=True).start()
print(name, "reached", connect(peer, 7000).recv(99).decode(), flush=True)
print(name, "reached by service", connect("first", 7001).recv(99).decode(), flush=True)
print("address", os.environ["POD_IP"], socket.gethostbyname(socket.gethostname()), flush=True)
time.sleep(600)
"""


def task(name: str, peer: str, node: str) -> Json:
    """A task of one pod on a node, which connects to its peer and to a Service."""
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {
        "name": "c",
        "image": "python",
        "command": ["python3", "-c", _TALK, name, f"gang-{peer}-0.gang", node],
        "env": [address],
    }
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


async def create_gang(cluster: EmbeddedCluster, first: str) -> None:
    tasks = [task("a", "b", first), task("b", "a", "second")]
    spec = {"minAvailable": 2, "plugins": {"svc": []}, "tasks": tasks}
    await cluster.client.create(
        JOBS, {"metadata": {"name": "gang"}, "spec": spec}, namespace="default"
    )
    selector = {"volcano.sh/task-spec": "a"}
    service = {"selector": selector, "ports": [{"port": 7001, "targetPort": 7000}]}
    await cluster.client.create(
        SERVICES, {"metadata": {"name": "first"}, "spec": service}, namespace="default"
    )


async def wait_logged(cluster: EmbeddedCluster, pod: str, *texts: str) -> str:
    found = ""

    async def is_logged() -> bool:
        nonlocal found
        found = await cluster.log(pod)
        return all(text in found for text in texts)

    await wait_until_true(is_logged)
    return found


async def check_agents_refuse_nodes(cluster: EmbeddedCluster, first: str, other: DataDir) -> None:
    """The certificate of one node opens no connection to the agent of another."""
    found = await cluster.client.get(NODES, first, view=dict)
    (host,) = (
        each["address"] for each in found["status"]["addresses"] if each["type"] == "InternalIP"
    )
    port = found["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    context = ssl.create_default_context(cafile=str(other.pki / "ca.crt"))
    context.load_cert_chain(other.pki / CLIENT_FILE)
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    received = b""
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        received = await reader.read()
    except ConnectionError:
        pass  # a reset
    writer.transport.abort()
    assert b"HTTP" not in received


async def kubectl(cluster: EmbeddedCluster, *arguments: str) -> str:
    assert KUBECTL is not None
    config = f"--kubeconfig={cluster.data_dir.kubeconfig}"
    outcome = await embedded_cluster.run(KUBECTL, config, *arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out


async def test_a_gang_runs_on_two_machines(tmp_path: Path) -> None:
    needs_kubectl()
    with second_machine() as machine:
        listen = f"{machine.first_address}:0"
        first_dir, other = tmp_path / "first", DataDir(tmp_path / "second")
        async with embedded_cluster.embedded_cluster(first_dir, "--listen", listen) as cluster:
            text = (first_dir / "up.log").read_text()
            found = re.search(r"batholith join (\S+)", text)
            assert found is not None, text
            options = ("--data-dir", str(other.root), "--name", "second")
            joined = await machine.batholith("join", found[1], *options, "--detach")
            assert joined.code == 0, joined.err
            try:
                await check_second_machine(cluster, machine, other)
            finally:
                down = await machine.batholith("down", "--data-dir", str(other.root))
            assert down.code == 0, down.err
            assert embedded_cluster.processes_of(other.root) == []
            for component in ("agent", "proxy"):
                assert "orbidden" not in (other.logs / f"{component}.log").read_text()


async def check_second_machine(
    cluster: EmbeddedCluster, machine: SecondMachine, other: DataDir
) -> None:
    nodes = await cluster.client.list(NODES, view=dict)
    (first,) = {each["metadata"]["name"] for each in nodes.items} - {"second"}
    await create_gang(cluster, first)
    text = await wait_logged(cluster, "gang-b-0", "address")
    assert "b reached a" in text
    assert "b reached by service a" in text
    assert f"address {machine.address} {machine.address}" in text
    text = await wait_logged(cluster, "gang-a-0", "address")
    assert "a reached b" in text
    assert f"address {machine.first_address} {machine.first_address}" in text
    assert (await kubectl(cluster, "exec", "gang-b-0", "--", "hostname")).strip() == "gang-b-0"
    await check_agents_refuse_nodes(cluster, first, other)
    # A new agent adopts the pod; a new API server is found again.
    before = await cluster.client.get(PODS, "gang-b-0", namespace="default", view=dict)
    agent = read_state(other)
    assert agent is not None
    process = agent.components["agent"].process
    assert process is not None
    os.kill(process.pid, 9)
    cluster.kill("apiserver")

    async def is_restarted() -> bool:
        state = read_state(other)
        return (
            state is not None
            and state.components["agent"].ready
            and (state.components["agent"].process != process)
        )

    await wait_until_true(is_restarted)
    assert (await kubectl(cluster, "exec", "gang-b-0", "--", "hostname")).strip() == "gang-b-0"
    after = await cluster.client.get(PODS, "gang-b-0", namespace="default", view=dict)
    ids = [pod["status"]["containerStatuses"][0]["containerID"] for pod in (before, after)]
    assert ids[0] == ids[1]
