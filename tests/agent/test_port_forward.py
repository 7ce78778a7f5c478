"""Port-forward to pods, on both API servers, with kubectl and the official Python client."""

import asyncio
import gc
import hashlib
import random
import re
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kubernetes.stream import portforward
from support.agent import container, manifest
from support.agent_cluster import AgentCluster
from support.kubectl import Kubectl, needs_kubectl
from support.official_client import official_core

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]

SERVER = r"""
import asyncio, sys

async def response(reader, writer):
    # A line, or until the client has sent all.
    data = await (reader.readline() if sys.argv[2] == "line" else reader.read())
    writer.write(data[::-1])
    writer.close()

async def main():
    server = await asyncio.start_server(response, sys.argv[1], 0, limit=2**22)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
"""Sends back what it receives, in reverse, once it has received all."""

MIB = 2**20


async def run_server(
    cluster: AgentCluster,
    address: str = "0.0.0.0",
    until: str = "end",
) -> int:
    """Run a pod with a server; return its port."""
    argv = (sys.executable, "-c", SERVER, address, until)
    await cluster.run(manifest("p", container(*argv)))
    await cluster.phase("p", "Running")
    log = await cluster.wait_log("p", "\n")
    return int(log.split()[1])


@pytest.fixture(params=["websocket", "spdy"])
def kubectl(request: pytest.FixtureRequest, cluster: AgentCluster, tmp_path: Path) -> Kubectl:
    """kubectl with each of its protocols."""
    needs_kubectl()
    websockets = {"KUBECTL_PORT_FORWARD_WEBSOCKETS": str(request.param == "websocket").lower()}
    return Kubectl(cluster.server, tmp_path, environment=websockets)


@asynccontextmanager
async def forwarding(
    kubectl: Kubectl, cluster: AgentCluster, port: int
) -> AsyncIterator[tuple[int, asyncio.subprocess.Process]]:
    """A local port from which kubectl forwards."""
    arguments = ("port-forward", "-n", cluster.namespace, "pod/p", f":{port}")
    process = await kubectl.start(*arguments)
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    found = re.search(r"127\.0\.0\.1:(\d+) ->", line)
    assert found is not None, line
    try:
        yield int(found[1]), process
    finally:
        process.kill()
        await process.communicate()


async def exchange(port: int, data: bytes) -> bytes:
    """Send *data* and the end to a local port; return the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    response = await reader.read()
    writer.close()
    return response


async def test_connections_are_forwarded_in_parallel_and_half_closed(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    port = await run_server(cluster)
    texts = [random.Random(number).randbytes(MIB) for number in range(20)]
    async with forwarding(kubectl, cluster, port) as (local, _):
        responses = await asyncio.gather(*(exchange(local, text) for text in texts))
        for text, response in zip(texts, responses, strict=True):
            assert hashlib.sha256(response).digest() == hashlib.sha256(text[::-1]).digest()
        assert await exchange(local, b"again") == b"niaga"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_server_on_loopback_is_reached(
    cluster: AgentCluster, kubectl: Kubectl, address: str
) -> None:
    port = await run_server(cluster, address)
    async with forwarding(kubectl, cluster, port) as (local, _):
        assert await exchange(local, b"abc") == b"cba"


async def refusal(kubectl: Kubectl, cluster: AgentCluster, port: int) -> str:
    """Connect through kubectl; return what it reports."""
    async with forwarding(kubectl, cluster, port) as (local, process):
        assert await exchange(local, b"x") == b""
        assert process.stderr is not None
        return (await process.stderr.readline()).decode()


async def test_port_without_a_server_is_refused(cluster: AgentCluster, kubectl: Kubectl) -> None:
    await run_server(cluster)
    assert "connection refused" in await refusal(kubectl, cluster, 1)


async def test_servers_of_the_machine_are_not_reached(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    await run_server(cluster)
    accepted = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.close()

    for address in ("127.0.0.1", "0.0.0.0"):
        async with await asyncio.start_server(accept, address, 0) as server:
            port = server.sockets[0].getsockname()[1]
            assert "connection refused" in await refusal(kubectl, cluster, port)
    assert accepted == 0


# The client leaves its socket to the garbage collector, which runs in the test for this.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_official_client_forwards(cluster: AgentCluster) -> None:
    port = await run_server(cluster, until="line")
    text = b"x" * MIB + b"y\n"

    def forward() -> tuple[bytes, str | None]:
        with official_core(cluster.server) as core:
            connect = core.connect_get_namespaced_pod_portforward
            forwarded = portforward(connect, "p", cluster.namespace, ports=f"{port},1")
        assert forwarded.socket(1).recv(1) == b""
        connection, received = forwarded.socket(port), b""
        connection.sendall(text)
        while data := connection.recv(65536):
            received += data
        error = forwarded.error(1)
        forwarded.close()
        for thread in threading.enumerate():
            if thread.name.startswith("Kubernetes port forward proxy"):
                thread.join()  # it has the socket
        return received, error

    received, error = await asyncio.to_thread(forward)
    gc.collect()
    assert received == text[::-1]
    assert "connection refused" in str(error)
