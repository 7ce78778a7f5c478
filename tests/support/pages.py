"""The pages of a REST API, requested as a browser does it."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from support.embedded_apiserver import EmbeddedServer
from support.rest import cluster, running_api, sqlite

from batholith.api.history.tasks import HistorySettings
from batholith.api.pages.app import PagesSettings
from batholith.api.pages.sessions import prepare_sign_in
from batholith.kube.client.client import Client
from batholith.machinery.clock import Clock


@dataclass(slots=True)
class PagesClient:
    """A browser without scripts, and the cluster behind the pages."""

    url: str
    session: aiohttp.ClientSession
    client: Client
    server: EmbeddedServer
    code: str = ""

    async def get(self, path: str, *, fragment: bool = False) -> tuple[int, str]:
        headers = {"Accept": "text/html", **({"HX-Request": "true"} if fragment else {})}
        async with self.session.get(self.url + path, headers=headers) as response:
            return response.status, await response.text()

    async def post(
        self, path: str, form: dict[str, str | list[str]], *, origin: str | None = None
    ) -> tuple[int, str]:
        """Send a form, by default as the pages of this server do."""
        data = [
            (name, value)
            for name, given in form.items()
            for value in ([given] if isinstance(given, str) else given)
        ]
        headers = {"Accept": "text/html", "Origin": self.url if origin is None else origin}
        async with self.session.post(
            self.url + path, data=data, headers=headers, allow_redirects=False
        ) as response:
            return response.status, await response.text()

    async def sign_in(self) -> None:
        status, _ = await self.post("/login", {"token": self.server.running.tokens["admin"]})
        assert status == 303


@contextlib.asynccontextmanager
async def pages_client(
    directory: Path,
    *,
    clock: Clock | None = None,
    with_link: bool = False,
    history: HistorySettings | None = None,
) -> AsyncIterator[PagesClient]:
    """The pages of a cluster that holds one job; the user is not signed in.

    *with_link*: the one-time code of a link is in :attr:`PagesClient.code`.
    """
    async with cluster(directory) as (server, client):
        file = directory / "sign-in.json" if with_link else None
        code = "" if file is None else prepare_sign_in(file, server.running.tokens["admin"])
        settings = PagesSettings(sign_in_file=file)
        serving = running_api(
            client, sqlite(directory), pages=settings, clock=clock, history=history
        )
        jar = aiohttp.CookieJar(unsafe=True)  # also of an IP address
        async with serving as url, aiohttp.ClientSession(cookie_jar=jar) as session:
            yield PagesClient(url=url, session=session, client=client, server=server, code=code)
