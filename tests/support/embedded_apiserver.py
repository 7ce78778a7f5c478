"""The embedded API server for tests: in the test's event loop, on a free port, in a new
directory."""

import asyncio
import io
import re
import ssl
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from support.polling import DEFAULT_TIMEOUT, wait_until_true

from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.kube.gc_tuning import gc_paused
from batholith.local.apiserver.controllers.node_health import NodeLifecycleSettings
from batholith.local.supervisor.apiserver import Network, RunningServer, Settings, running
from batholith.local.supervisor.pki import Pki
from batholith.model.admission import Webhook
from batholith.model.names import CRDS
from batholith.model.service_network import PodNetwork
from batholith.testing import templates

Json = dict[str, Any]
MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
DEFINITIONS = CRDS.path()
FOOS = "/apis/ex.io/v1/namespaces/default/foos"
MERGE = "application/merge-patch+json"
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""The form in which clients ask for all kinds at a time."""

_MAX_RETRY_DELAY = 0.05
"""Seconds after which a rejected list is requested again at the latest."""


@dataclass(slots=True)
class RawResponse:
    """Response to a raw request."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """Texts of the ``Warning`` headers."""


@dataclass(slots=True)
class Server:
    """An API server that runs while a test does, embedded or real."""

    url: str
    pki: Pki
    """Its certificates, and those of agents."""
    tokens: Mapping[str, str]
    """By user; ``admin`` may do everything."""
    kubeconfig: Path
    """Of the admin, for kubectl."""
    session: aiohttp.ClientSession

    @property
    def ca(self) -> bytes:
        """PEM of the authority to trust."""
        return self.pki.ca_data

    @property
    def credentials(self) -> Credentials:
        """Of the admin."""
        return self.credentials_of("admin")

    def credentials_of(self, user: str) -> Credentials:
        return Credentials(server=self.url, ca_data=self.ca, token=self.tokens[user])

    def client(self, user: str = "admin") -> Client:
        """A client of *user*; use it as an async context manager."""
        return Client(self.credentials_of(user), user_agent="batholith-tests")

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
        token: str | None = None,
    ) -> RawResponse:
        """A raw request by the admin; *body* is JSON unless it is bytes.

        A server whose watch cache is not filled yet, for instance after a definition has changed,
        reports that a list is to be requested again.
        """
        result = {"Authorization": f"Bearer {token or self.tokens['admin']}"}
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        data = None if body is None else io.BytesIO(raw)
        if data is not None:
            result["Content-Type"] = content_type
        result |= headers or {}
        async with self._open(method, path, data=data, headers=result) as got:
            text = await got.read()
            read: Any = text.decode()
            if "json" in got.headers.get("Content-Type", "") and text:
                events = (
                    "watch" in path and got.status == 200 and "Content-Length" not in got.headers
                )
                decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
                read = decoder.decode_lines(text) if events else decoder.decode(text)
            warnings = [_warning(result) for result in got.headers.getall("Warning", [])]
            return RawResponse(got.status, read, dict(got.headers), warnings)

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        while True:
            async with self.session.request(method, self.url + path, **options) as response:
                delay = response.headers.get("Retry-After")
                if method not in ("GET", "DELETE") or response.status != 429 or delay is None:
                    yield response
                    return
            # It always reports a second, and needs some milliseconds.
            await asyncio.sleep(min(float(delay), _MAX_RETRY_DELAY))

    async def get(self, path: str) -> Any:
        """The JSON at *path*, which must be there."""
        response = await self.request("GET", path)
        assert response.status == 200, response.body
        return response.body

    async def create(self, path: str, body: Json) -> Json:
        """Create an object, which must succeed."""
        response = await self.request("POST", path, body)
        assert response.status == 201, response.body
        created: Json = response.body
        return created

    @asynccontextmanager
    async def watch(
        self, path: str, *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator["WatchStream"]:
        """A watch stream; *path* has its query."""
        headers = {"Authorization": f"Bearer {self.tokens['admin']}", **(headers or {})}
        never = aiohttp.ClientTimeout(total=None)
        async with self._open("GET", path, headers=headers, timeout=never) as response:
            try:
                yield WatchStream(response)
            finally:
                # To end TLS in order takes longer than the loop of a test may live.
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()

    async def install_crds(self, *definitions: Json) -> None:
        """Create custom resource definitions and wait until discovery lists them."""
        for definition in definitions:
            await self.create(DEFINITIONS, definition)
        for definition in definitions:
            await self.wait_established(definition["metadata"]["name"])
            await self._wait_served(definition["spec"])

        async def is_discovered() -> bool:
            found = await self.request("GET", "/apis", headers={"Accept": DISCOVERY})
            return all(is_fully_discovered(found.body, each["spec"]) for each in definitions)

        await wait_until_true(is_discovered)

    async def wait_established(self, name: str) -> None:
        """Wait until a definition is; a real server may serve its kind a little later still."""
        query = f"{DEFINITIONS}?watch=1&fieldSelector=metadata.name={name}"
        async with self.watch(query) as lines:
            while True:
                status = (await lines.next())["object"].get("status", {})
                if any(
                    (one["type"], one["status"]) == ("Established", "True")
                    for one in status.get("conditions") or ()
                ):
                    return

    async def _wait_served(self, spec: Json) -> None:
        for version in spec["versions"]:
            path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"

            async def is_served(path: str = path) -> bool:
                return (await self.request("GET", path)).status == 200

            if version["served"]:
                await wait_until_true(is_served)


class WatchStream:
    """The events of a watch stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self._response = response

    async def next(self, *, timeout: float = DEFAULT_TIMEOUT) -> Json:
        """The next event; the timeout only keeps a broken test from hanging."""
        async with asyncio.timeout(timeout):
            line = await self._response.content.readuntil(b"\n")
        event: Json = msgspec.json.decode(line)
        return event

    async def remaining(self) -> list[Json]:
        """All events up to the end of the stream."""
        raw = await self._response.read()
        return [msgspec.json.decode(line) for line in raw.splitlines()]


@dataclass(slots=True)
class EmbeddedServer(Server):
    """An embedded server in the test's own loop."""

    running: RunningServer

    async def wait_settled(self) -> None:
        """Wait for what the server itself puts into a namespace, so that tests can count."""

        async def defaults_exist() -> bool:
            return (await self.request("GET", f"{MAPS}/kube-root-ca.crt")).status == 200

        await wait_until_true(defaults_exist)


@asynccontextmanager
async def embedded_server(
    tmp_path: Path,
    *,
    webhooks: Sequence[Webhook] = (),
    crds: Sequence[Json] = (),
    collect_garbage: bool = True,
    node_lifecycle: bool = True,
    node: str = "",
    pod_network: PodNetwork = PodNetwork.HOST,
    dns_address: str = "",
    network: Network | None = None,
) -> AsyncIterator[EmbeddedServer]:
    """An API server for the length of the block; the same *tmp_path* again is a restart.

    The user ``agent`` is the kubelet of *node*, if any. With *network* others may join.

    The first start copies what a new cluster has: its certificates, tokens and default objects
    are those of all embedded clusters of this process.
    """
    with gc_paused():
        filled = await templates.fill(tmp_path, crds)
    settings = Settings(
        data_dir=tmp_path,
        port=0,
        webhooks=webhooks,
        crds=() if filled else crds,
        collect_garbage=collect_garbage,
        node_lifecycle=NodeLifecycleSettings() if node_lifecycle else None,
        node=node,
        pod_network=pod_network,
        dns_address=dns_address,
        network=network,
    )
    async with running(settings) as server:
        context = ssl.create_default_context(cadata=server.pki.ca_data.decode())
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=2**22) as session:
            embedded = EmbeddedServer(
                url=server.url,
                pki=server.pki,
                tokens=server.tokens.by_user,
                kubeconfig=server.kubeconfig,
                session=session,
                running=server,
            )
            if collect_garbage:
                await embedded.wait_settled()
            yield embedded


def _warning(header: str) -> str:
    """The text of a warning in the form that clients of Kubernetes read."""
    assert header.startswith('299 - "'), header
    assert header.endswith('"'), header
    return re.sub(r"\\(.)", r"\1", header[7:-1])


def is_fully_discovered(document: Json, spec: Json) -> bool:
    """Whether discovery lists all that a definition serves; a real server does so with a delay."""
    (versions,) = [
        group["versions"]
        for group in document["items"]
        if group["metadata"]["name"] == spec["group"]
    ] or [[]]
    reported = {
        (version["version"], resource["resource"])
        for version in versions
        for resource in version["resources"]
    }
    plural = spec["names"]["plural"]
    return {(each["name"], plural) for each in spec["versions"] if each["served"]} <= reported


def config_map(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}, "data": {"k": "v"}}


def pod(name: str, **spec: Any) -> Json:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "busybox:1"}], **spec},
    }


def definition(plural: str = "foos", kind: str = "Foo") -> Json:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {
                    "mode": {"type": "string", "enum": ["a", "b"]},
                    "size": {"type": "integer", "default": 1},
                },
            },
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.ex.io"},
        "spec": {
            "group": "ex.io",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [version],
        },
    }


def foo(name: str, **spec: Any) -> Json:
    return {"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": name}, "spec": spec}


async def wait_deleted(server: Server, path: str, name: str) -> None:
    """Wait by watch until an object is deleted."""
    query = f"{path}?watch=1&fieldSelector=metadata.name={name}"
    async with server.watch(query) as lines:
        if (await server.request("GET", f"{path}/{name}")).status == 404:
            return
        while (await lines.next())["type"] != "DELETED":
            pass


async def wait_owners_observed(server: Server, path: str, body: Json) -> None:
    """Wait until the garbage collector knows the owners of all objects that were created at *path*.

    It sees changes in their order, and deletes *body*, whose owner never existed. Objects of which
    it learns only after their owner was deleted are deleted although they should be orphaned, and
    do not keep an owner that is deleted in the foreground.
    """
    owner = {
        "apiVersion": "v1", "kind": "ConfigMap", "name": "ghost", "uid": str(uuid.uuid4()),
        "controller": True,
    }  # fmt: skip
    metadata = {"name": "witness", "ownerReferences": [owner]}
    await server.create(path, {**body, "metadata": metadata})
    await wait_deleted(server, path, "witness")
