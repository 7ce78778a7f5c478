"""The REST API for tests of jobs: replies with their headers, on either API server."""

import contextlib
import io
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from multidict import CIMultiDictProxy
from support.api_servers import ServerFactory
from support.embedded_apiserver import Server
from support.rest import running_api, sqlite

from batholith.kube.client.client import Client
from batholith.model import crds as definitions
from batholith.model.admission import Webhook

Json = dict[str, Any]
CRDS = definitions.load()
PROBLEM = "application/problem+json"


@dataclass(slots=True)
class Reply:
    """One response."""

    status: int
    headers: CIMultiDictProxy[str]
    content: bytes

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.content)


@dataclass(slots=True)
class JobsApi:
    """The REST API, and the cluster behind it."""

    url: str
    session: aiohttp.ClientSession
    server: Server
    client: Client

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        status: int | None = None,
    ) -> Reply:
        """Send a request below ``/v1``; *body* is JSON unless it is bytes."""
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        data = None if body is None else io.BytesIO(raw)
        given = {"Authorization": f"Bearer {self.server.tokens['admin']}", **(headers or {})}
        async with self.session.request(
            method, f"{self.url}/v1/{path}", data=data, headers=given
        ) as response:
            content = await response.read()
            reply = Reply(response.status, response.headers, content)
            if response.status >= 400:
                assert response.content_type == PROBLEM, content
            assert status in (None, response.status), content
            return reply

    async def get(self, path: str) -> Any:
        return (await self.send("GET", path, status=200)).body

    async def refusal(self, method: str, path: str, body: object = None, **headers: str) -> Json:
        """The problem of a request that must fail."""
        reply = await self.send(method, path, body, headers=headers)
        assert reply.status >= 400, reply.content
        problem: Json = reply.body
        assert problem["status"] == reply.status
        return problem


@contextlib.asynccontextmanager
async def jobs_api(
    servers: ServerFactory,
    directory: Path,
    *,
    crds: Sequence[Json] = CRDS,
    webhooks: Sequence[Webhook] = (),
) -> AsyncIterator[JobsApi]:
    """The REST API on one of both servers."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        servers.start(directory / "cluster", crds=crds, webhooks=webhooks) as server,
        server.client() as client,
        running_api(client, sqlite(directory)) as url,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        yield JobsApi(url=url, session=session, server=server, client=client)


def volcano_job(name: str = "", **spec: Any) -> Json:
    """A manifest of a Volcano job with two tasks."""
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name} if name else {},
        "spec": {
            "minAvailable": 1,
            "schedulerName": "volcano",
            "queue": "default",
            "tasks": [
                {"name": task, "replicas": 2, "minAvailable": 1, "template": template()}
                for task in ("master", "worker")
            ],
            **spec,
        },
    }


def batch_job(name: str = "", **spec: Any) -> Json:
    """A manifest of a Job of batch/v1."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name} if name else {},
        "spec": {"template": template(), **spec},
    }


def template(**spec: Any) -> Json:
    container = {"name": "main", "image": "busybox", "command": ["true"]}
    return {"spec": {"containers": [container], "restartPolicy": "Never", **spec}}
