"""The embedded API server for tests: in the test's own loop, on a free port, in a fresh folder."""

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from batholith.cluster.apiserver.server import Running, Settings, running
from batholith.kube.client import Client
from batholith.kube.config import Credentials
from batholith.model.review import Webhook

Json = dict[str, Any]


@dataclass(slots=True)
class Answer:
    """What the server said to a raw request."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class EmbeddedServer:
    """A server that runs while a test does."""

    running: Running
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def kubeconfig(self) -> Path:
        """Of the admin, for kubectl."""
        return self.running.kubeconfig

    @property
    def credentials(self) -> Credentials:
        """Of the admin."""
        return self.credentials_of("admin")

    def credentials_of(self, user: str) -> Credentials:
        return Credentials(
            server=self.url, ca_data=self.running.pki.ca_data, token=self.running.tokens[user]
        )

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
    ) -> Answer:
        """A raw request by the admin; *body* is JSON unless it is bytes."""
        said = {"Authorization": f"Bearer {token or self.running.tokens['admin']}"}
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        data = None if body is None else io.BytesIO(raw)
        if data is not None:
            said["Content-Type"] = content_type
        said |= headers or {}
        async with self.session.request(method, self.url + path, data=data, headers=said) as got:
            text = await got.read()
            json = "json" in got.headers.get("Content-Type", "")
            read = msgspec.json.decode(text) if json and text else text.decode()
            return Answer(got.status, read, dict(got.headers))

    async def get(self, path: str) -> Any:
        """The JSON at *path*, which must be there."""
        answer = await self.request("GET", path)
        assert answer.status == 200, answer.body
        return answer.body

    async def create(self, path: str, body: Json) -> Json:
        """Create an object, which must succeed."""
        answer = await self.request("POST", path, body)
        assert answer.status == 201, answer.body
        created: Json = answer.body
        return created

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator["Lines"]:
        """A watch stream; *path* has its query."""
        headers = {"Authorization": f"Bearer {self.running.tokens['admin']}"}
        async with self.session.get(self.url + path, headers=headers) as answer:
            yield Lines(answer)


class Lines:
    """The events of a watch stream."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self._answer = answer

    async def next(self, *, timeout: float = 20) -> Json:
        """The next event; the timeout only keeps a broken test from hanging."""
        async with asyncio.timeout(timeout):
            line = await self._answer.content.readuntil(b"\n")
        event: Json = msgspec.json.decode(line)
        return event

    async def rest(self) -> list[Json]:
        """All events up to the end of the stream."""
        raw = await self._answer.read()
        return [msgspec.json.decode(line) for line in raw.splitlines()]


@asynccontextmanager
async def embedded_server(
    tmp_path: Path,
    *,
    webhooks: Sequence[Webhook] = (),
    crds: Sequence[Json] = (),
    collect_garbage: bool = True,
) -> AsyncIterator[EmbeddedServer]:
    """An API server for the length of the block; the same *tmp_path* again is a restart."""
    settings = Settings(
        data=tmp_path, port=0, webhooks=webhooks, crds=crds, collect_garbage=collect_garbage
    )
    async with running(settings) as server:
        context = ssl.create_default_context(cadata=server.pki.ca_data.decode())
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=2**22) as session:
            yield EmbeddedServer(server, session)
