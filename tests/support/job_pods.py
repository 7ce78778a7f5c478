"""Jobs with pods that tests create themselves, on either API server, and the REST API in front."""

import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import aiohttp
from support.agent import container
from support.agent_cluster import NODE, AgentCluster, agent_cluster
from support.api_servers import ServerFactory, ServerOptions, add_namespace
from support.embedded_apiserver import Server
from support.polling import DEFAULT_TIMEOUT, wait_until_true
from support.rest import running_api, sqlite

from batholith.admission.settings import AdmissionSettings
from batholith.admission.webhooks import webhooks as admission_webhooks
from batholith.local.agent.settings import AgentSettings
from batholith.model import crds as definitions
from batholith.model.names import JOB_NAME, JOB_NAMESPACE, JOBS, PODS, QUEUES, TASK_INDEX, TASK_SPEC

Json = dict[str, Any]


class WithDefinitions(ServerFactory):
    """Servers that serve Volcano's kinds."""

    def __init__(self, servers: ServerFactory) -> None:
        self._servers = servers
        self.name, self.concurrent = servers.name, servers.concurrent

    def start(
        self, directory: Path, **options: Unpack[ServerOptions]
    ) -> contextlib.AbstractAsyncContextManager[Server]:
        """A server for the length of the block."""
        options["crds"] = definitions.load()
        return self._servers.start(directory, **options)


@dataclass(slots=True)
class RestSession:
    """A caller of the REST API, and the cluster behind it."""

    url: str
    session: aiohttp.ClientSession
    cluster: AgentCluster
    token: str = ""
    job_uids: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> str:
        """Path of the namespace."""
        return f"/v1/namespaces/{self.cluster.namespace}"

    def request(self, method: str, path: str, *, token: str = "", **more: Any) -> Any:
        """A request; a context manager."""
        headers = {"Authorization": f"Bearer {token or self.token}", **more.pop("headers", {})}
        return self.session.request(method, self.url + path, headers=headers, **more)

    async def get(self, path: str, *, token: str = "") -> tuple[int, Any]:
        """Status and body of a GET."""
        async with self.request("GET", path, token=token) as response:
            if response.content_type == "text/plain":
                return response.status, await response.text()
            return response.status, await response.json(content_type=None)

    async def call(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and body of a request; underscores in *headers* are dashes."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.request(method, path, json=body, headers=given) as response:
            if response.status == 304:
                return 304, dict(response.headers)
            return response.status, await response.json(content_type=None)

    async def text(self, path: str) -> str:
        """The text at *path*, which must be complete."""
        status, body = await self.get(path)
        assert status == 200, body
        assert isinstance(body, str)
        return body

    async def create_job(
        self, name: str = "train", *, tasks: Mapping[str, int] | None = None, queue: str = "default"
    ) -> None:
        """A Volcano job that no controller acts on."""
        template = {"spec": {"containers": [container("true")], "restartPolicy": "Never"}}
        spec = {
            "minAvailable": 1,
            "queue": queue,
            "tasks": [
                {"name": task, "replicas": count, "template": template}
                for task, count in (tasks or {"w": 2}).items()
            ],
        }
        job = await self.cluster.create({"metadata": {"name": name}, "spec": spec}, JOBS)
        self.job_uids[name] = job["metadata"]["uid"]

    async def create_pod(
        self,
        task: str,
        index: int,
        *containers: Mapping[str, Any],
        job: str = "train",
        run: bool = True,
        **spec: Any,
    ) -> Json:
        """A pod as the job controller creates it; *run*: bound to the node of the agent."""
        uid = self.job_uids[job]
        owner = {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "name": job,
            "uid": uid,
            "controller": True,
        }
        meta = {
            "name": f"{job}-{task}-{index}",
            "labels": {JOB_NAME: job, JOB_NAMESPACE: self.cluster.namespace, TASK_SPEC: task},
            "annotations": {TASK_SPEC: task, TASK_INDEX: str(index)},
            "ownerReferences": [owner],
        }
        bound = {"nodeName": NODE, "terminationGracePeriodSeconds": 0} if run else {}
        content = {"containers": list(containers), "restartPolicy": "Never", **bound, **spec}
        return await self.cluster.create({"metadata": meta, "spec": content})

    async def set_queue_state(self, name: str, state: str) -> None:
        """Write the state of a queue as its controller does."""
        status = {"status": {"state": state}}
        await self.cluster.client.patch(QUEUES, name, status, subresource="status")

    async def wait_podgroup(self) -> None:
        """Wait until the informer of the REST API has the PodGroup of the namespace."""

        async def is_listed() -> bool:
            _, body = await self.get(f"{self.root}/podgroups")
            return bool(body["items"])

        await wait_until_true(is_listed)

    async def set_job_phase(self, phase: str, *, job: str = "train", **more: Any) -> None:
        """Write the phase of a job as its controller does."""
        state = {"phase": phase, "lastTransitionTime": "2026-01-02T03:04:05Z", **more}
        await self.set_job_status({"state": state}, job=job)

    async def set_job_status(self, status: Json, *, job: str = "train") -> None:
        """Write the status of a job as its controller does."""
        await self.cluster.client.patch(
            JOBS,
            job,
            {"status": status},
            namespace=self.cluster.namespace,
            subresource="status",
        )

    async def set_pod_status(self, name: str, status: Json) -> None:
        """Write the status of a pod as a kubelet does."""
        await self.cluster.client.patch(
            PODS,
            name,
            {"status": status},
            namespace=self.cluster.namespace,
            subresource="status",
        )


async def in_own_namespace(shared: RestSession) -> RestSession:
    """The same caller in a namespace of one test."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await add_namespace(shared.cluster.server, name)
    return replace(shared, cluster=replace(shared.cluster, namespace=name), job_uids={})


@contextlib.asynccontextmanager
async def rest_of(cluster: AgentCluster, directory: Path) -> AsyncIterator[RestSession]:
    """The REST API of a cluster."""
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    timeout = aiohttp.ClientTimeout(total=DEFAULT_TIMEOUT)
    async with (
        running_api(cluster.client, sqlite(directory)) as url,
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
    ):
        token = cluster.server.tokens["admin"]
        yield RestSession(url=url, session=session, cluster=cluster, token=token)


@contextlib.asynccontextmanager
async def logs_cluster(servers: ServerFactory, directory: Path) -> AsyncIterator[RestSession]:
    """A server, an agent that runs pods, and the REST API."""
    async with (
        agent_cluster(WithDefinitions(servers), directory) as cluster,
        cluster.agent(),
        rest_of(cluster, directory) as rest,
    ):
        yield rest


@contextlib.asynccontextmanager
async def objects_cluster(servers: ServerFactory, directory: Path) -> AsyncIterator[RestSession]:
    """A server with Volcano's admission and the REST API; nothing runs pods."""
    hooks = admission_webhooks(AdmissionSettings())
    factory = WithDefinitions(servers)
    async with (
        factory.start(directory / "server", webhooks=hooks) as server,
        server.client() as client,
    ):
        settings = AgentSettings(data_dir=directory / "agent", node_name=NODE)
        async with rest_of(AgentCluster(server, client, settings), directory) as rest:
            yield rest
