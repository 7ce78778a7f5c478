"""A scheduler and an API server: gangs, nodes, and where pods are bound."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from support.controller_api import ControllerApi
from support.polling import wait_for
from support.running_controller import FakeRecorder

from batholith.model.names import GROUP_NAME, NODES, PODGROUPS, PODS, QUEUES
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings

Json = dict[str, Any]


class GangServer(ControllerApi):
    """An API server with an open queue."""

    def __init__(self, **options: Any) -> None:
        super().__init__(PODGROUPS, QUEUES, **options)

    def prepare(self) -> None:
        """Store the queue."""
        self.put(QUEUES, "default", spec={"weight": 1}, status={"state": "Open"})

    def node(self, name: str, cpu: int = 1, **spec: Any) -> None:
        """Store a node that fits *cpu* members."""
        allocatable = {"cpu": str(cpu), "memory": "64Gi", "pods": "110"}
        self.put(NODES, name, spec=spec, status={"allocatable": allocatable})

    def gang(self, name: str, members: int, minimum: int | None = None, **more: Any) -> None:
        """Store a gang and its pods, each of which requests one CPU."""
        spec = {"minMember": members if minimum is None else minimum, "queue": "default"}
        self.put(PODGROUPS, name, spec=spec, status={"phase": more.pop("phase", "Inqueue")})
        for number in range(members):
            self.member(name, number, **more)

    def member(self, gang: str, number: int, *, node: str = "", **more: Any) -> None:
        """Store a pod of a gang, bound to *node* if that is given."""
        spec = {
            "schedulerName": "volcano",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            **({"nodeName": node} if node else {}),
            **more,
        }
        meta = {"annotations": {GROUP_NAME: gang}}
        self.put(PODS, f"{gang}-{number}", metadata=meta, spec=spec, status={"phase": "Pending"})

    def nodes_of(self, gang: str) -> list[str]:
        """Return the nodes of the gang's bound pods, sorted."""
        found = (
            pod["spec"].get("nodeName", "")
            for pod in self.objects(PODS).values()
            if pod["metadata"]["annotations"][GROUP_NAME] == gang
        )
        return sorted(filter(None, found))

    async def wait_bound(self, gang: str, count: int) -> list[str]:
        """Wait until *count* pods of the gang are bound; return their nodes."""
        await wait_for(
            lambda: len(self.nodes_of(gang)) == count, f"{count} pods of {gang} are bound"
        )
        return self.nodes_of(gang)

    @asynccontextmanager
    async def scheduler(self, **settings: Any) -> AsyncIterator["RunningScheduler"]:
        """Run a scheduler for the length of the block."""
        async with self.client() as client:
            started = RunningScheduler(client, settings)
            await started.start()
            try:
                yield started
            finally:
                await started.stop()


class RunningScheduler:
    """A scheduler that runs, its events and its metrics."""

    def __init__(self, client: Any, settings: Json) -> None:
        self.recorder = FakeRecorder()
        self.registry = CollectorRegistry()
        self.scheduler = Scheduler(
            client,
            settings=SchedulerSettings(registry=self.registry, **settings),
            recorder=self.recorder,
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start, and wait until it is synced."""
        ready = asyncio.Event()
        self._task = asyncio.create_task(self.scheduler.run(ready=ready))
        await asyncio.wait_for(ready.wait(), 60)

    async def stop(self) -> None:
        """Stop after the writes in flight."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric; 0 without one."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def events(self, *reasons: str) -> Iterable[str]:
        """Return the messages of the events with one of *reasons*."""
        return [event[4] for event in self.recorder.events if event[3] in reasons]
