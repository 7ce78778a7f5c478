"""Which resources the API server has: checked periodically, since CRDs may be installed later."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from ..kube.client.client import Client
from ..kube.errors import ApiError, ConnectionLostError, DecodeError, NotFoundError
from ..kube.informer.failure_log import FailureLog
from ..kube.supervision import supervise
from ..kube.timing import Timing
from ..model.base import ApiStruct
from ..model.names import Resource
from .clock import Clock
from .lifecycle import LeaderElectionRunnable

log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two checks."""

RETRY_INTERVAL = 1.0
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
                delay = min(self._interval, RETRY_INTERVAL)
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


class ServedController:
    """Runs a controller while the API server has what it needs, since CRDs may be installed later,
    and the server may be upgraded.

    *choices* are alternatives, such as the versions of a kind: the first one counts whose resources
    are all served. *create* returns a new controller for it each time.
    """

    def __init__(
        self,
        create: Callable[[tuple[Resource, ...]], LeaderElectionRunnable],
        choices: Sequence[tuple[Resource, ...]],
        *,
        client: Client,
        clock: Clock,
    ) -> None:
        self._choices = choices
        self._create = create
        self._clock = clock
        wanted = [each for choice in choices for each in choice]
        self._served = ServedResources(client, wanted, clock=clock, interval=INTERVAL)

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Run until cancelled; ready without the resources, too."""
        clock = self._clock
        timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)
        wanted = {each for choice in self._choices for each in choice}
        kinds = ", ".join(sorted({f"{each.plural}.{each.group}" for each in wanted}))
        log_fields = {"resource": kinds}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervise("check of kinds", self._served.run, timing=timing))
            await self._served.wait_until(lambda: self._served.known)
            while True:
                if self._choice() is None:
                    log.info("kind not served", extra=log_fields)
                    if ready is not None:
                        ready.set()
                    await self._served.wait_until(lambda: self._choice() is not None)
                if (chosen := self._choice()) is not None:
                    await run_while(
                        self._create(chosen).run(ready=ready, elected=elected),
                        self._served.wait_until(partial(self._has_changed, chosen)),
                    )

    def _choice(self) -> tuple[Resource, ...] | None:
        return next((each for each in self._choices if self._served.has(*each)), None)

    def _has_changed(self, chosen: tuple[Resource, ...]) -> bool:
        return self._choice() != chosen


async def run_while(work: Coroutine[Any, Any, None], end: Coroutine[Any, Any, object]) -> None:
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
