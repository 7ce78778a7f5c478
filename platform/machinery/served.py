"""Which resources the API server has: checked periodically, since CRDs may be installed later."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Protocol

from ..kube.client.client import Client
from ..kube.errors import ApiError, ConnectionLostError, DecodeError, NotFoundError
from ..kube.informer.failure_log import FailureLog
from ..kube.supervision import supervise
from ..kube.timing import Timing
from ..model.base import ApiStruct
from ..model.names import Resource
from .clock import Clock

log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two checks."""

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


class Controller(Protocol):
    """What runs until it is cancelled."""

    def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> Coroutine[Any, Any, None]:
        """Run; set *ready* once synced, and begin work after *elected*."""
        ...


class ServedController:
    """Runs a controller while the API server has *resources*, for CRDs that may be installed later.

    *create* returns a new controller for each time.
    """

    def __init__(
        self,
        create: Callable[[], Controller],
        resources: Collection[Resource],
        *,
        client: Client,
        clock: Clock,
        interval: float = INTERVAL,
    ) -> None:
        self._create = create
        self._resources = tuple(resources)
        self._clock = clock
        self._served = ServedResources(client, resources, clock=clock, interval=interval)

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Run until cancelled; ready without the resources, too."""
        clock = self._clock
        timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)
        kinds = ", ".join(f"{each.plural}.{each.group}" for each in self._resources)
        log_fields = {"resource": kinds}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervise("check of kinds", self._served.run, timing=timing))
            await self._served.wait_until(lambda: self._served.known)
            while True:
                if not self._is_served():
                    log.info("kind not served", extra=log_fields)
                    if ready is not None:
                        ready.set()
                    await self._served.wait_until(self._is_served)
                await run_while(
                    self._create().run(ready=ready, elected=elected),
                    self._served.wait_until(lambda: not self._is_served()),
                )

    def _is_served(self) -> bool:
        return self._served.has(*self._resources)


async def run_while(work: Coroutine[Any, Any, None], end: Coroutine[Any, Any, None]) -> None:
    """Run *work* until *end* returns, then cancel it and wait for it."""
    working, ending = asyncio.create_task(work), asyncio.create_task(end)
    try:
        await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ending.cancel()
        working.cancel()
        await asyncio.wait((working, ending))
    if not working.cancelled():
        await working  # raises its error
