"""ResourceQuotas for tests on both API servers."""

from typing import Any

from support.api_servers import add_namespace, merge_patch
from support.embedded_apiserver import RawResponse, Server
from support.polling import wait_until_equal, wait_until_true

from batholith.model.names import CONFIGMAPS, PODS, RESOURCEQUOTAS
from batholith.model.quantity import parse

Json = dict[str, Any]
NAMESPACE = "limited"
"""A namespace of the tests: a real server applies a quota for a while after its deletion."""

_PROBE = "probe"


class QuotaServer:
    """A server with a namespace that has quotas."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.pods = PODS.path(NAMESPACE)
        self._probe_limit = 0

    async def prepare(self) -> None:
        """Create the namespace, and a quota that shows which state the server applies."""
        await add_namespace(self.server, NAMESPACE)
        await self._create(_PROBE, {"hard": {"count/configmaps": "1"}})

    async def limit(self, name: str, hard: dict[str, str], **spec: Any) -> None:
        """Create or change a quota; wait until the server applies it."""
        path = RESOURCEQUOTAS.path(NAMESPACE, name)
        if (await self.server.request("GET", path)).status == 200:
            old = (await self.server.get(path))["spec"]["hard"]
            await merge_patch(
                self.server, path, {"spec": {"hard": dict.fromkeys(old) | hard, **spec}}
            )
        else:
            await self._create(name, {"hard": hard, **spec})
        await self._wait_hard(name, hard)
        await self._wait_applied()

    async def used(self, name: str) -> dict[str, int]:
        """The usage in a quota's status, in billionths."""
        status = (await self.server.get(RESOURCEQUOTAS.path(NAMESPACE, name))).get("status", {})
        return {each: parse(text).nanos for each, text in status.get("used", {}).items()}

    async def wait_used(self, name: str, **expected: str) -> None:
        """Wait until the status of a quota has these amounts, given with ``_`` for ``.``."""
        await self.wait_amounts(name, {k.replace("_", "."): v for k, v in expected.items()})

    async def wait_amounts(self, name: str, expected: dict[str, str]) -> None:
        """Wait until the status of a quota has exactly these amounts."""
        nanos = {each: parse(text).nanos for each, text in expected.items()}
        await wait_until_equal(lambda: self.used(name), nanos)

    async def create(self, path: str, body: Json, *, dry_run: bool = False) -> RawResponse:
        query = "?dryRun=All" if dry_run else ""
        return await self.server.request("POST", path + query, body)

    async def message(self, path: str, body: Json) -> str:
        """The error of a creation; empty if it succeeded."""
        response = await self.create(path, body)
        assert response.status in (201, 403), response.body
        return "" if response.status == 201 else str(response.body["message"])

    async def _create(self, name: str, spec: Json) -> None:
        body = {"metadata": {"name": name}, "spec": spec}
        await self.server.create(RESOURCEQUOTAS.path(NAMESPACE), body)
        await self._wait_hard(name, spec["hard"])

    async def _wait_hard(self, name: str, hard: dict[str, str]) -> None:
        async def observed() -> object:
            found = await self.server.get(RESOURCEQUOTAS.path(NAMESPACE, name))
            return found.get("status", {}).get("hard")

        await wait_until_equal(observed, {each: str(parse(text)) for each, text in hard.items()})

    async def _wait_applied(self) -> None:
        """Change the probing quota, and wait until the change has an effect.

        A real server observes quotas in the order of their changes, with a delay.
        """
        self._probe_limit = 1 - self._probe_limit
        limit = {"count/configmaps": str(self._probe_limit)}
        await merge_patch(
            self.server, RESOURCEQUOTAS.path(NAMESPACE, _PROBE), {"spec": {"hard": limit}}
        )
        await self._wait_hard(_PROBE, limit)
        body = {"metadata": {"name": "x"}}

        async def is_applied() -> bool:
            path = CONFIGMAPS.path(NAMESPACE)
            response = await self.create(path, body, dry_run=True)
            expected = f"limited: count/configmaps={self._probe_limit}"
            return expected in str(response.body.get("message"))

        await wait_until_true(is_applied)
