"""The REST API under test, and what a job controller does behind it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from support.admission import cronjob
from support.controller_api import ControllerApi
from support.embedded_apiserver import EmbeddedServer, embedded_server

from batholith.api.history.tasks import HistorySettings
from batholith.api.identity.authentication import SecuritySettings
from batholith.api.pages.app import PagesSettings
from batholith.api.serving.server import ApiSettings, serve
from batholith.kube.client.client import Client
from batholith.machinery.clock import Clock, SystemClock
from batholith.model import crds
from batholith.model.command import Command
from batholith.model.controlled_resources import COMMAND_PHASE, COMMAND_UID
from batholith.model.names import COMMANDS, CRONJOBS, JOBS, PODGROUPS, QUEUES, Resource

CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io",
    "v1",
    "clusterrolebindings",
    "ClusterRoleBinding",
    namespaced=False,
)
IMPERSONATION = {
    "metadata": {"name": "rest-impersonation"},
    "subjects": [{"kind": "User", "name": "api", "apiGroup": "rbac.authorization.k8s.io"}],
    "roleRef": {
        "kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io",
    },
}  # fmt: skip
"""Lets the account of the REST API act as any caller."""

JOB = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "minAvailable": 1,
        "tasks": [{"name": "t", "replicas": 1, "template": {"spec": {"containers": []}}}],
    },
}
PATH = "/v1/namespaces/default/jobs/train"


@dataclass(slots=True)
class RestClient:
    """The REST API under test, and the cluster behind it."""

    url: str
    token: str
    session: aiohttp.ClientSession
    client: Client
    server: EmbeddedServer

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        data: object = None,
        token: str | None = None,
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        async with self.session.request(
            method, self.url + path, json=json, data=data, headers=headers
        ) as response:
            if response.status >= 400:
                assert response.content_type == "application/problem+json"
            return response.status, await response.json(content_type=None)

    async def command(self, action: str) -> dict[str, Any]:
        status, body = await self.call("POST", f"{PATH}/commands", json={"action": action})
        assert status == 202, body
        found: dict[str, Any] = body
        return found

    async def commands(self) -> Sequence[Command]:
        return (await self.client.list(COMMANDS, view=Command)).items

    async def wait_outcome(self, id_: str) -> dict[str, Any]:
        """The command, once it has an outcome."""
        async with asyncio.timeout(100):
            while True:
                _, body = await self.call("GET", f"{PATH}/commands/{id_}")
                if body["state"] not in ("Accepted", "Issued"):
                    found: dict[str, Any] = body
                    return found
                await asyncio.sleep(0.01)

    async def complete_command(self, command: Command, *, phase: str) -> None:
        """Do what the job controller does: write the status, then delete the Command."""
        state = {"phase": phase, "reason": command.action, "message": "Command executed"}
        marks = {COMMAND_UID: command.metadata.uid, COMMAND_PHASE: phase}
        status = {"state": state, "controlledResources": marks}
        await self.client.patch(
            JOBS, "train", {"status": status}, namespace="default", subresource="status"
        )
        await self.drop_command(command)

    async def drop_command(self, command: Command) -> None:
        await self.client.delete(COMMANDS, command.metadata.name, namespace="default")


@contextlib.asynccontextmanager
async def starting_api(
    client: Client,
    store_url: str,
    *,
    security: SecuritySettings | None = None,
    history: HistorySettings | None = None,
    send_buffer: int = 0,
    pages: PagesSettings | None = None,
    clock: Clock | None = None,
    port: int = 0,
    store_timeout: float = 60,
) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Task[None]]]:
    """The API's URL, its readiness, and the task that it is.

    *store_timeout*: seconds; the disk of a busy machine may be slow.
    *send_buffer*: bytes that the kernel buffers for a client; 0 for as many as it likes.
    """
    listener = socket.create_server(("127.0.0.1", port))
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    settings = ApiSettings(
        store_url=store_url,
        store_timeout=store_timeout,
        listener=listener,
        security=security or SecuritySettings(),
        history=history or HistorySettings(),
        pages=pages,
    )
    ready = asyncio.Event()
    serving = asyncio.create_task(
        serve(client, settings, clock=clock or SystemClock(), ready=ready)
    )
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", ready, serving
    finally:
        serving.cancel()
        await asyncio.wait((serving,))
        listener.close()


@contextlib.asynccontextmanager
async def running_api(
    client: Client,
    store_url: str,
    *,
    security: SecuritySettings | None = None,
    history: HistorySettings | None = None,
    pages: PagesSettings | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[str]:
    starting = starting_api(
        client, store_url, security=security, history=history, pages=pages, clock=clock
    )
    async with starting as (url, ready, _):
        await ready.wait()
        yield url


def sqlite(directory: Path) -> str:
    return f"sqlite:///{directory / 'api.db'}"


@contextlib.asynccontextmanager
async def cluster(
    directory: Path, *, with_training_jobs: bool = False
) -> AsyncIterator[tuple[EmbeddedServer, Client]]:
    """A cluster that holds one job, and a client of it."""
    definitions = (*crds.load(), *(crds.load_training() if with_training_jobs else ()))
    async with (
        embedded_server(directory / "cluster", crds=definitions) as server,
        server.client() as client,
    ):
        await client.create(JOBS, JOB, namespace="default")
        yield server, client


@contextlib.asynccontextmanager
async def rest_api(
    directory: Path, *, with_training_jobs: bool = False
) -> AsyncIterator[RestClient]:
    """The API on a cluster that holds one job."""
    async with (
        cluster(directory, with_training_jobs=with_training_jobs) as (server, client),
        running_api(client, sqlite(directory)) as url,
        rest_at(url, server, client) as found,
    ):
        yield found


@contextlib.asynccontextmanager
async def cronjob_api(
    directory: Path, security: SecuritySettings | None = None, *, user: str = "admin"
) -> AsyncIterator[tuple[ControllerApi, aiohttp.ClientSession]]:
    """An API server with a CronJob, and a session of *user* at a REST API with its own account."""
    async with controller_api_with_cronjob() as (api, client):
        headers = {"Authorization": f"Bearer {api.credentials_of(user).token}"} if user else {}
        async with (
            running_api(client, sqlite(directory), security=security) as url,
            aiohttp.ClientSession(url, headers=headers) as session,
        ):
            yield api, session


@contextlib.asynccontextmanager
async def controller_api_with_cronjob() -> AsyncIterator[tuple[ControllerApi, Client]]:
    """An API server with a CronJob, and a client of the REST API's account."""
    async with ControllerApi(CRONJOBS, COMMANDS, JOBS, PODGROUPS, QUEUES) as api:
        await api.create(CRONJOBS, {**cronjob(), "metadata": {"name": "report"}})
        await api.create(CLUSTER_ROLE_BINDINGS, IMPERSONATION)
        async with Client(api.credentials_of("api"), user_agent="rest") as client:
            yield api, client


@contextlib.asynccontextmanager
async def rest_at(url: str, server: EmbeddedServer, client: Client) -> AsyncIterator[RestClient]:
    """A caller of the API at *url*."""
    # The API soon hangs up on who is idle; a command sent in that moment would be lost.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        token = server.running.tokens["admin"]
        yield RestClient(url=url, token=token, session=session, client=client, server=server)
