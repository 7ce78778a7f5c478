"""Training controller: runs the controllers of those kinds that the API server has.

A kind whose CRD is missing is disabled alone; it is enabled when the CRD is installed, and disabled
again when it is deleted.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from ..kube.client.client import Client
from ..kube.informer.informer import Informer
from ..kube.supervision import supervise
from ..kube.timing import Timing
from ..machinery.clock import Clock, SystemClock
from ..machinery.event_recorder import SharedRecorder
from ..machinery.served import ServedResources, run_while
from ..model import names
from ..model.names import Resource
from ..model.podgroup import PodGroup
from .core_types import Group, Pod, PriorityClass, Service
from .frameworks import FRAMEWORKS
from .frameworks.base import Framework
from .gangs import Gang, VolcanoGang, gang_of
from .kind_controller import BY_JOB, KindController, SharedDependencies, index_by_job
from .metrics import TrainingMetrics
from .settings import TrainingSettings, UnknownKindError

log = logging.getLogger(__name__)


class TrainingController:
    """Reconciles training jobs; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: TrainingSettings | None = None,
        clock: Clock | None = None,
        recorder: SharedRecorder | None = None,
        podgroups: Informer[PodGroup] | None = None,
        frameworks: Iterable[Framework[Any]] = FRAMEWORKS,
    ) -> None:
        """*podgroups*: informer of Volcano's PodGroups; may be used and run by several controllers.

        Raises:
            UnknownKindError: the settings name a kind that no framework has.
        """
        self._client = client
        self._settings = settings = settings or TrainingSettings()
        self._clock = clock if clock is not None else SystemClock()
        self._frameworks = select_frameworks(frameworks, settings.kinds)
        gang = gang_of(settings.gang_scheduler_name)
        self._shared = SharedDependencies(
            client=client,
            settings=settings,
            clock=self._clock,
            recorder=recorder,
            metrics=TrainingMetrics(settings.registry),
            pods=Informer(
                client,
                names.PODS,
                Pod,
                namespace=settings.namespace,
                label_selector=names.TRAINING_JOB_NAME,
                indexes={BY_JOB: index_by_job},
            ),
            services=Informer(
                client,
                names.SERVICES,
                Service,
                namespace=settings.namespace,
                label_selector=names.TRAINING_JOB_NAME,
                indexes={BY_JOB: index_by_job},
            ),
            gang=gang,
            podgroups=_podgroup_informer(client, gang, podgroups, settings.namespace),
            priority_classes=(
                Informer(client, names.PRIORITYCLASSES, PriorityClass) if gang else None
            ),
        )
        self._served = ServedResources(
            client,
            {each for framework in self._frameworks for each in self._resources(framework)},
            clock=self._clock,
            interval=settings.served_interval,
        )

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Run the controllers of all served kinds, after *elected*, until cancelled.

        *ready* is set when those kinds that are served at the start are synced. When cancelled,
        they finish the keys that are processed or queued, then write nothing.
        """
        timing = Timing(
            monotonic=self._clock.monotonic, sleep=self._clock.sleep, now=self._clock.now
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervise("check of kinds", self._served.run, timing=timing))
            await self._served.wait_until(lambda: self._served.known)
            events = [asyncio.Event() for _ in self._frameworks]
            for framework, event in zip(self._frameworks, events, strict=True):
                if not self._is_served(framework):
                    log.info("kind not served", extra={"kind": framework.kind.name})
                    event.set()
                tasks.create_task(self._run_framework(framework, event, elected))
            for event in events:
                await event.wait()
            if ready is not None:
                ready.set()

    async def _run_framework(
        self, framework: Framework[Any], ready: asyncio.Event, elected: asyncio.Event | None
    ) -> None:
        """Run the controller of a kind whenever the API server has it."""
        name = framework.kind.name
        gauge = self._shared.metrics.served.labels(name)
        while True:
            gauge.set(0)
            await self._served.wait_until(lambda: self._is_served(framework))
            gauge.set(1)
            log.info("kind served", extra={"kind": name})
            watched = self._watched(framework)
            controller = KindController(framework, self._shared, watched=watched)
            await run_while(
                controller.run(ready=ready, elected=elected),
                self._wait_until_changed(framework, watched),
            )
            log.info("kind no longer served as before", extra={"kind": name})

    async def _wait_until_changed(
        self, framework: Framework[Any], watched: tuple[Resource, ...]
    ) -> None:
        """Wait until a kind, or one of its other resources, appears or disappears."""
        await self._served.wait_until(
            lambda: not self._is_served(framework) or self._watched(framework) != watched
        )

    def _is_served(self, framework: Framework[Any]) -> bool:
        """Whether the API server has the kind, and PodGroups if it needs them."""
        return self._served.has(*self._required(framework))

    def _required(self, framework: Framework[Any]) -> Sequence[Resource]:
        gang = self._shared.gang
        return (framework.kind.resource, *((gang.resource,) if gang is not None else ()))

    def _resources(self, framework: Framework[Any]) -> Sequence[Resource]:
        return (*self._required(framework), *framework.watched)

    def _watched(self, framework: Framework[Any]) -> tuple[Resource, ...]:
        """Return the other resources of the framework that the API server has."""
        return tuple(each for each in framework.watched if self._served.has(each))


def select_frameworks(
    frameworks: Iterable[Framework[Any]], kinds: Sequence[str]
) -> tuple[Framework[Any], ...]:
    """Return the frameworks of *kinds*, upper or lower case; all if there are none.

    Raises:
        UnknownKindError: there is no such kind.
    """
    by_kind = {each.kind.name.lower(): each for each in frameworks}
    known = [each.kind.name for each in by_kind.values()]
    for kind in kinds:
        if kind.lower() not in by_kind:
            raise UnknownKindError(kind, known)
    wanted = {kind.lower() for kind in kinds} or by_kind.keys()
    return tuple(each for name, each in by_kind.items() if name in wanted)


def _podgroup_informer(
    client: Client, gang: Gang | None, given: Informer[PodGroup] | None, namespace: str
) -> Informer[PodGroup] | Informer[Group] | None:
    if gang is None:
        return None
    if not isinstance(gang, VolcanoGang):
        return Informer(client, gang.resource, Group, namespace=namespace)
    if given is not None:
        return given
    return Informer(client, gang.resource, PodGroup, namespace=namespace)
