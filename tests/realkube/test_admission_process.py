"""`batholith admission` as it runs in a cluster: processes, with a real API server."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from support.admission import queue
from support.admission_server import NAMESPACE
from support.embedded_apiserver import pod
from support.polling import wait_until_true
from support.realkube import RealKubeOptions, RealServer, free_ports, real_server

from batholith.model import crds
from batholith.model.names import NAMESPACES, PODS, QUEUES, SECRETS

DRY_RUN = f"{QUEUES.path()}?dryRun=All"


@dataclass(slots=True)
class AdmissionReplica:
    """One process, its address and its health."""

    process: asyncio.subprocess.Process
    url: str
    health: str

    async def wait_response(self, path: str, status: int = 200) -> bool:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(self.health + path) as response:
                    return response.status == status
            except aiohttp.ClientError:
                assert self.process.returncode is None
                return False


@asynccontextmanager
async def replica(server: RealServer, *arguments: str) -> AsyncIterator[AdmissionReplica]:
    port, health = free_ports(2)
    url = f"https://127.0.0.1:{port}"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "batholith.cli",
        "admission",
        f"--kubeconfig={server.kubeconfig}",
        f"--port={port}",
        f"--webhook-url={url}",
        f"--healthz-address=127.0.0.1:{health}",
        "--register",
        *arguments,
    )
    try:
        yield AdmissionReplica(process, url, f"http://127.0.0.1:{health}")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RealServer]:
    async with real_server(tmp_path, RealKubeOptions(audit=True, crds=crds.load())) as started:
        yield started


async def rejects_queue(server: RealServer) -> bool:
    body = queue("lost", parent="nosuch") | {"apiVersion": QUEUES.api_version}
    response = await server.request("POST", DRY_RUN, body)
    return response.status == 400 and "failed to get parent queue" in response.body["message"]


async def test_two_race_for_the_secret_and_end_in_order(server: RealServer) -> None:
    """They start before their namespace exists; then one creates the Secret, and both serve it."""
    async with replica(server) as one, replica(server) as other:
        await wait_until_true(lambda: one.wait_response("/healthz"))
        assert await one.wait_response("/readyz", 503), "there is no certificate yet"
        await server.create(NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
        for each in (one, other):
            await wait_until_true(partial(each.wait_response, "/readyz"))
        await wait_until_true(lambda: rejects_queue(server))
        created = [
            line["responseStatus"]["code"]
            for line in server.kube.audit()
            if line["verb"] == "create" and line["objectRef"].get("resource") == "secrets"
        ]
        assert created.count(201) == 1
        for each in (one, other):
            each.process.send_signal(signal.SIGTERM)
        assert [await each.process.wait() for each in (one, other)] == [0, 0]
    assert (
        "tls.key"
        in (await server.get(SECRETS.path(NAMESPACE, "batholith-admission-secret")))["data"]
    )


CONFIGURATION = """
resourceGroups:
- resourceGroup: all
  object: {key: namespace, value: [default]}
  labels: {pool: batch}
"""


async def test_o9_resource_groups_are_taken_up_even_if_the_file_was_bad_at_the_start(
    server: RealServer, tmp_path: Path
) -> None:
    await server.create(NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
    file = tmp_path / "volcano-admission.conf"
    file.write_text("resourceGroups: [")
    flags = ("--enabled-admission=/pods/mutate", f"--admission-conf={file}", "--leader-elect=false")

    async def selector() -> object:
        path = f"{PODS.path('default')}?dryRun=All"
        response = await server.request("POST", path, pod("p"))
        return (
            response.body["spec"].get("nodeSelector") if response.status == 201 else response.body
        )

    async def gets_the_label() -> bool:
        return await selector() == {"pool": "batch"}

    async with replica(server, *flags) as component:
        await wait_until_true(lambda: component.wait_response("/readyz"))
        assert await selector() is None
        file.write_text(CONFIGURATION)
        await wait_until_true(gets_the_label)


async def test_files_that_cannot_be_read_are_told_in_a_line(
    server: RealServer, tmp_path: Path
) -> None:
    missing = tmp_path / "tls.crt"
    flags = (f"--tls-cert-file={missing}", f"--tls-private-key-file={missing}")
    async with replica(server, *flags) as component:
        assert await component.process.wait() == 1
