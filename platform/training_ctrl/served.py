"""Which resources the API server has: checked periodically, since CRDs may be installed later."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from ..kube.client.client import Client
from ..kube.errors import ApiError, ConnectionLostError, DecodeError, NotFoundError
from ..kube.informer.failure_log import FailureLog
from ..machinery.clock import Clock
from ..model.base import ApiStruct
from ..model.names import Resource

log = logging.getLogger(__name__)

_RETRY_INTERVAL = 1.0
"""Seconds until the next check after one that failed."""


class _ApiResource(ApiStruct, frozen=True):
    name: str = ""


class _ApiResourceList(ApiStruct, frozen=True):
    resources: tuple[_ApiResource, ...] = ()


class ServedResources:
    """The resources of *wanted* that the API server has; see :meth:`run`."""

    def __init__(
        self, client: Client, wanted: Iterable[Resource], *, clock: Clock, interval: float
    ) -> None:
        self._client = client
        self._wanted = frozenset(wanted)
        self._clock = clock
        self._interval = interval
        self._served: frozenset[Resource] | None = None
        self._changed = asyncio.Event()

    @property
    def known(self) -> bool:
        """Whether the API server has answered once."""
        return self._served is not None

    def has(self, *resources: Resource) -> bool:
        """Whether the API server has all *resources*."""
        return self._served is not None and self._served.issuperset(resources)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until *condition* holds; it is checked at each change."""
        while not condition():
            await self._changed.wait()

    async def run(self) -> None:
        """Check periodically until cancelled. Without a response, the last one counts."""
        failures = FailureLog(self._client.timing)
        while True:
            delay = self._interval
            try:
                served = await self._check()
            except (ApiError, ConnectionLostError, DecodeError) as error:
                level = failures.level(str(error))
                log.log(level, "cannot check served kinds", extra={"error": str(error)})
                delay = min(self._interval, _RETRY_INTERVAL)
            else:
                failures.recovered()
                self._update(served)
            await self._clock.sleep(delay)

    def _update(self, served: frozenset[Resource]) -> None:
        if served != self._served:
            self._served = served
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _check(self) -> frozenset[Resource]:
        served: set[Resource] = set()
        for path in sorted({_discovery_path(each) for each in self._wanted}):
            plurals = await self._plurals(path)
            served |= {
                each
                for each in self._wanted
                if _discovery_path(each) == path and each.plural in plurals
            }
        return frozenset(served)

    async def _plurals(self, path: str) -> frozenset[str]:
        try:
            found = await self._client.get_path(path, view=_ApiResourceList)
        except NotFoundError:
            return frozenset()
        return frozenset(each.name for each in found.resources)


def _discovery_path(resource: Resource) -> str:
    if not resource.group:
        return f"/api/{resource.version}"
    return f"/apis/{resource.group}/{resource.version}"
