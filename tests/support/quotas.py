"""ResourceQuotas for tests on both API servers."""

from typing import Any

from support.api_servers import add_namespace, merge_patch
from support.embedded_apiserver import RawResponse, Server
from support.polling import wait_until_equal, wait_until_true

from batholith.model.names import LEASES, NETWORKPOLICIES, PODS, RESOURCEQUOTAS, Resource
from batholith.model.quantity import parse

Json = dict[str, Any]
NAMESPACE = "limited"
"""A namespace of the tests: a real server applies a quota for a while after its deletion."""

_PROBE = "probe"
_PROBED = (LEASES, NETWORKPOLICIES)
"""Kinds of which the namespace has no object, and whose objects need no contents."""


class QuotaServer:
    """A server with a namespace that has quotas."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.pods = PODS.path(NAMESPACE)
        self._probed = NETWORKPOLICIES

    async def prepare(self) -> None:
        """Create the namespace, and a quota that shows which state the server applies."""
        await add_namespace(self.server, NAMESPACE)
        await self._create(_PROBE, {"hard": _none_of(self._probed)})

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
        """Wait until the status of a quota has exactly these amounts, and the server applies it."""
        nanos = {each: parse(text).nanos for each, text in expected.items()}
        await wait_until_equal(lambda: self.used(name), nanos)
        await self._wait_applied()

    async def recount(self, name: str) -> None:
        """Change a quota, and change it back, so that the quota controller counts again."""
        path = RESOURCEQUOTAS.path(NAMESPACE, name)
        hard = (await self.server.get(path))["spec"]["hard"]
        key = "requests.memory"  # which quotas of any scope may limit, and none of the tests does
        for more in ({key: "9Pi"}, {}):
            body = {"spec": {"hard": {key: None} | more}}
            await merge_patch(self.server, path, body)
            await self._wait_hard(name, hard | more)

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
        forbidden, self._probed = self._probed, next(k for k in _PROBED if k is not self._probed)
        limit = _none_of(self._probed)
        await merge_patch(
            self.server,
            RESOURCEQUOTAS.path(NAMESPACE, _PROBE),
            {"spec": {"hard": dict.fromkeys(_none_of(forbidden)) | limit}},
        )
        await self._wait_hard(_PROBE, limit)

        async def is_applied() -> bool:
            path = self._probed.path(NAMESPACE)
            body = {"metadata": {"name": "x"}, "spec": {}}
            response = await self.create(path, body, dry_run=True)
            assert response.status in (201, 403), response.body
            return response.status == 403

        await wait_until_true(is_applied)


def _none_of(kind: Resource) -> dict[str, str]:
    """A limit that forbids each creation, also before the quota controller has seen any usage."""
    return {f"count/{kind.plural}.{kind.group}": "0"}
