"""A server and an agent for the length of a test, and what tests do with pods."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.api_servers import ServerFactory
from support.embedded_apiserver import Server
from support.polling import DEFAULT_TIMEOUT

from batholith.kube.client.client import Client
from batholith.kube.client.events import EventRecorder
from batholith.kube.errors import NotFoundError
from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.runtime.runs import kill_tagged
from batholith.local.agent.service import Agent
from batholith.local.agent.settings import AgentSettings, ServingFiles
from batholith.local.agent.state.status import BackOff
from batholith.machinery.clock import Clock
from batholith.model.names import (
    DIR_PROVISIONER,
    DIR_STORAGE_CLASS,
    EVENTS,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    PODS,
    STORAGECLASSES,
    Resource,
)

Json = dict[str, Any]

NODE = "here"
FAST = BackOff(initial_delay=0.05, max_delay=0.2)


def make_world_writable(directory: Path) -> Path:
    """Return a host directory that pods of any user may write; create it if missing."""
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    return directory


@dataclass(slots=True)
class AgentCluster:
    """A cluster of one agent, as its user sees it."""

    server: Server
    client: Client
    settings: AgentSettings
    namespace: str = "default"

    async def create(self, body: Mapping[str, Any], resource: Resource = PODS) -> Json:
        """Create an object in its namespace."""
        manifest = {**body, "metadata": {**body["metadata"], "namespace": self.namespace}}
        return await self.client.create(resource, manifest, namespace=self.namespace, view=dict)

    async def run(self, body: Mapping[str, Any]) -> Json:
        """Create a pod that is bound to the node."""
        spec = {"nodeName": NODE, "terminationGracePeriodSeconds": 5, **body["spec"]}
        return await self.create({**body, "spec": spec})

    async def pod(self, name: str) -> Json:
        """A pod as it is now."""
        return await self.client.get(PODS, name, namespace=self.namespace, view=dict)

    async def wait_pod(
        self, name: str, holds: Callable[[Json], object], *, since: str = ""
    ) -> Json:
        """The pod, once it is as wanted; after the version *since*, or now."""
        async with asyncio.timeout(DEFAULT_TIMEOUT):
            async for event in self.client.watch(
                PODS,
                namespace=self.namespace,
                view=dict,
                field_selector=f"metadata.name={name}",
                resource_version=since,
            ):
                seen = {"status": {}, **event.object}
                if event.type != "DELETED" and holds(seen):
                    return seen
        raise AssertionError("the watch ended")

    async def phase(self, name: str, *wanted: str, since: str = "") -> Json:
        """The pod, once it is in one of these phases; or when it first was, after *since*."""
        return await self.wait_pod(
            name, lambda pod: pod["status"].get("phase") in wanted, since=since
        )

    async def delete(self, name: str, *, grace: int | None = None) -> None:
        """Ask for a pod's end."""
        await self.client.delete(PODS, name, namespace=self.namespace, grace_period=grace)

    async def wait_pod_deleted(self, name: str) -> None:
        """Wait until the pod is deleted from the API."""
        async with asyncio.timeout(DEFAULT_TIMEOUT):
            while True:
                try:
                    await self.pod(name)
                except NotFoundError:
                    return
                await asyncio.sleep(0.02)

    async def logs(self, name: str, query: str = "") -> str:
        """A pod's log through the API server."""
        response = await self.server.request(
            "GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}/log{query}"
        )
        assert response.status == 200, response.body
        return str(response.body)

    async def wait_log(self, name: str, text: str) -> str:
        """Wait for *text* in a pod's log; return the log."""
        async with asyncio.timeout(DEFAULT_TIMEOUT):
            while True:
                log = await self.logs(name)
                if text in log:
                    return log
                await asyncio.sleep(0.02)

    async def wait_event(self, name: str, reason: str, text: str = "") -> Json:
        """Wait for an event about a pod with *text* in its message."""
        async with asyncio.timeout(DEFAULT_TIMEOUT):
            while True:
                found = await self.client.list(EVENTS, namespace=self.namespace, view=dict)
                for event in found.items:
                    about = (event["involvedObject"]["name"], event["reason"])
                    if about == (name, reason) and text in event["message"]:
                        return event
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def agent(self, *, clock: Clock | None = None, **changes: Any) -> AsyncIterator[Agent]:
        """An agent of this node for the length of the block; its pods outlive it."""
        settings = replace(self.settings, **changes)
        async with (
            self.server.client("agent") as client,
            self.server.client("node-extensions") as extensions,
        ):
            recorder = EventRecorder(client.background(), component="batholith-agent")
            agent = Agent(
                client, settings=settings, recorder=recorder, clock=clock, extensions=extensions
            )
            ready = asyncio.Event()
            tasks = [
                asyncio.create_task(agent.run(ready=ready)),
                asyncio.create_task(recorder.run()),
            ]
            waiting = asyncio.create_task(ready.wait())
            try:
                await asyncio.wait({waiting, tasks[0]}, return_when=asyncio.FIRST_COMPLETED)
                if tasks[0].done():
                    tasks[0].result()
                yield agent
            finally:
                for task in (waiting, *tasks):
                    task.cancel()
                await asyncio.gather(waiting, *tasks, return_exceptions=True)

    def kill_orphaned_pods(self) -> None:
        """Kill everything that pods of this test left running."""
        for _, record in PodDir.all(self.settings.data_dir):
            while kill_tagged(record.uid):
                continue


@asynccontextmanager
async def agent_cluster(
    servers: ServerFactory, tmp_path: Path, **changes: Any
) -> AsyncIterator[AgentCluster]:
    """A server with a client; start agents with `AgentCluster.agent`."""
    node = "" if changes.get("simulation") else NODE
    async with (
        servers.start(tmp_path / "server", node=node) as server,
        server.client() as client,
    ):
        pki = server.pki
        serving = ServingFiles(
            certificate=pki.agent.certificate, key=pki.agent.key, client_ca=pki.ca
        )
        settings = AgentSettings(
            data_dir=tmp_path / "agent", node_name=NODE, back_off=FAST, serving=serving
        )
        created = AgentCluster(server, client, replace(settings, **changes))
        try:
            yield created
        finally:
            created.kill_orphaned_pods()


async def bind_pvc(cluster: AgentCluster, name: str) -> None:
    """Bind a claim as the embedded server does; the real one runs no controller of volumes."""
    claims, space = PERSISTENTVOLUMECLAIMS, cluster.namespace
    claim = await cluster.client.get(claims, name, namespace=space, view=dict)
    with suppress(NotFoundError):
        await cluster.client.get(STORAGECLASSES, DIR_STORAGE_CLASS, view=dict)
        return
    volume = f"pvc-{claim['metadata']['uid']}"
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "persistentVolumeReclaimPolicy": "Delete",
        "csi": {"driver": DIR_PROVISIONER, "volumeHandle": claim["metadata"]["uid"]},
    }
    await cluster.client.create(PERSISTENTVOLUMES, {"metadata": {"name": volume}, "spec": spec})
    await cluster.client.patch(claims, name, {"spec": {"volumeName": volume}}, namespace=space)
    status = {"status": {"phase": "Bound"}}
    await cluster.client.patch(claims, name, status, namespace=space, subresource="status")
