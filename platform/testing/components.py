"""The components of Batholith as tasks of a test."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ..batch_ctrl.controller import BatchJobController
from ..batch_ctrl.settings import ALL_JOBS, BatchJobSettings
from ..cron_ctrl import kubernetes, volcano
from ..cron_ctrl.controller import CronJobController
from ..flow_ctrl.controller import JobFlowController
from ..flow_ctrl.template_controller import JobTemplateController
from ..job_ctrl.controller import JobController
from ..job_ctrl.settings import JobSettings
from ..kube.client.client import Client
from ..kube.client.config import Credentials
from ..kube.client.events import EventRecorder, EventRecorderOptions
from ..kube.informer.informer import Informer
from ..kube.timing import Timing
from ..local.agent.service import Agent
from ..local.agent.settings import AgentSettings, SimulationSettings
from ..machinery.clock import Clock, SystemClock
from ..machinery.lifecycle import Runnable
from ..model.described_podgroup import PodGroupsOf
from ..model.names import PODGROUPS
from ..model.podgroup import PodGroup
from ..podgroup_ctrl.controller import PodGroupController
from ..queue_ctrl.controller import QueueController, QueueSettings
from ..scheduler.scheduler import Scheduler, SchedulerSettings


class ComponentError(Exception):
    """A component ended before the cluster was stopped."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the {name} ended before the cluster was stopped")


class Components:
    """Runs components, and keeps the error of the first that ends before :meth:`stop`."""

    def __init__(self, on_failure: Callable[[], None], clock: Clock) -> None:
        self.failure: ComponentError | None = None
        self._clock = clock
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []
        self._clients = AsyncExitStack()
        self._stopping = False

    async def client(self, credentials: Credentials, name: str) -> Client:
        """Return a client that is open until the components have stopped."""
        client = Client(credentials, user_agent=f"batholith-{name}")
        return await self._clients.enter_async_context(client)

    def recorder(self, client: Client, component: str) -> EventRecorder:
        """Return an event recorder that runs."""
        options = EventRecorderOptions(timing=Timing(now=self._clock.now))
        recorder = EventRecorder(client, component=component, options=options)
        self._run(f"event recorder of {component}", recorder.run())
        return recorder

    async def start(self, components: Mapping[str, Runnable]) -> None:
        """Start *components*, and wait until they work.

        Raises:
            ComponentError: one of them ended.
        """
        waiting = []
        for name, component in components.items():
            ready = asyncio.Event()
            task = self._run(name, component.run(ready=ready))
            waiting.append(_either(task, ready))
        await asyncio.gather(*waiting)
        if self.failure is not None:
            raise self.failure

    async def stop(self) -> None:
        """Stop all components, the last first."""
        self._stopping = True
        for task in reversed(self._tasks):
            task.cancel()
            await asyncio.wait([task])
        await self._clients.aclose()

    def _run(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self.failure is None and not self._stopping:
            self.failure = ComponentError(task.get_name())
            self.failure.__cause__ = error
            self._on_failure()


async def _either(task: asyncio.Task[None], ready: asyncio.Event) -> None:
    """Return when *ready* is set or *task* has ended."""
    waiting = asyncio.get_running_loop().create_task(ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def agent(
    client: Client, simulation: SimulationSettings, data_dir: Path, clock: Clock | None = None
) -> Mapping[str, Runnable]:
    """Return the agent of simulated nodes."""
    settings = AgentSettings(data_dir=data_dir, simulation=simulation)
    return {"agent": Agent(client, settings=settings, clock=clock)}


def controllers(
    client: Client,
    recorder: EventRecorder,
    *,
    place_at_creation: bool = False,
    podgroups_of: PodGroupsOf = PodGroupsOf.ALL,
    clock: Clock | None = None,
) -> Mapping[str, Runnable]:
    """Return Volcano's controllers."""
    podgroups = Informer(client, PODGROUPS, PodGroup)
    clock = clock or SystemClock()
    return {
        "queue controller": QueueController(
            client,
            settings=QueueSettings(count_described=podgroups_of is PodGroupsOf.GANGS),
            clock=clock,
            recorder=recorder,
            podgroups=podgroups,
        ),
        "job controller": JobController(
            client,
            settings=JobSettings(place_at_creation=place_at_creation, podgroups=podgroups_of),
            clock=clock,
            recorder=recorder,
            podgroups=podgroups,
        ),
        "jobflow controller": JobFlowController(client, clock=clock, recorder=recorder),
        "jobtemplate controller": JobTemplateController(client, clock=clock),
        "podgroup controller": PodGroupController(
            client, clock=clock, recorder=recorder, podgroups=podgroups
        ),
        "cronjob controller": CronJobController(
            client, volcano.KIND, clock=clock, recorder=recorder
        ),
    }


def batch_controllers(
    client: Client, recorder: EventRecorder, clock: Clock
) -> Mapping[str, Runnable]:
    """Return the controllers of Jobs and CronJobs of ``batch/v1``."""
    return {
        "batch job controller": BatchJobController(
            client,
            settings=BatchJobSettings(managed_by=ALL_JOBS, delete_finished=True),
            clock=clock,
            recorder=recorder.with_component("job-controller"),
        ),
        "batch cronjob controller": CronJobController(
            client,
            kubernetes.KIND,
            clock=clock,
            recorder=recorder.with_component("cronjob-controller"),
        ),
    }


def scheduler(
    client: Client,
    recorder: EventRecorder,
    *,
    place_at_creation: bool = False,
    clock: Clock | None = None,
) -> Mapping[str, Runnable]:
    """Return the scheduler, for pods of ``volcano`` and of ``default-scheduler``."""
    settings = SchedulerSettings(
        pod_scheduler_names=("default-scheduler",),
        queue_gates=True,
        place_at_creation=place_at_creation,
    )
    clock = clock or SystemClock()
    return {"scheduler": Scheduler(client, settings=settings, clock=clock, recorder=recorder)}
