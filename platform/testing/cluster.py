"""The API server with the components of Batholith, all in the process of a test."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from ..admission.settings import JOB_PLUGINS, AdmissionSettings
from ..admission.webhooks import webhooks
from ..httpserver.limits import reserve_open_files
from ..job_ctrl.plugins import entry_points
from ..local.agent.settings import SimulationSettings
from ..local.apiserver.controllers.node_health import NodeLifecycleSettings
from ..local.workloads.service import workload_controllers
from ..machinery.lifecycle import Runnable
from ..model import crds as volcano_crds
from ..model.described_podgroup import PodGroupsOf
from ..model.names import DEFAULT_QUEUE, JOB_NAME, PODS, QUEUES
from . import components
from .apiserver import DEFAULT_NODE_LIFECYCLE, ApiServer, BlockingApiServer
from .blocking import calling
from .changes import WAIT_SECONDS, Json
from .components import Components

_OPEN_FILES = 200
"""Files that a cluster may open: its components have some 70 connections to its API server, both of
whose ends are in this process."""


class Cluster(ApiServer):
    """An API server with Volcano's resources, admission, controllers, scheduler and nodes.

    Its nodes are simulated: a pod runs no process. Its command (``sleep 1``, ``exit 3``) and its
    annotations ``simulate.batholith.io/…`` determine how it ends, or :meth:`set_pod_phase` does.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        crds: Sequence[Json] = (),
        admission: bool = True,
        controllers: bool = True,
        scheduler: bool = True,
        nodes: int | SimulationSettings = 1,
        node_lifecycle: NodeLifecycleSettings | None = DEFAULT_NODE_LIFECYCLE,
        place_at_creation: bool = False,
        podgroups: Literal["all", "gangs"] = "all",
    ) -> None:
        """Prepare a cluster; entering the context starts it.

        Args:
            data_dir: directory of the cluster's state, which outlives the cluster; by default a
                temporary one.
            crds: custom resource definitions in addition to Volcano's.
            admission: whether Volcano's objects and pods are defaulted and validated.
            controllers: whether the controllers run: Volcano's, those of Jobs and CronJobs of
                ``batch/v1``, of workloads and of the endpoints of Services.
            scheduler: whether the scheduler runs.
            nodes: how many simulated nodes there are, or how they are; 0 for none.
            node_lifecycle: when nodes count as lost and their pods are deleted; by default as in
                kube-controller-manager, after 50 seconds. ``None``: never.
            place_at_creation: whether pods of gangs that fit are created with their node.
            podgroups: which jobs get PodGroups; with ``gangs`` those of one pod get none.
        """
        settings = AdmissionSettings(
            job_plugins=JOB_PLUGINS | entry_points.names(), queue_gates=True
        )
        super().__init__(
            data_dir=data_dir,
            crds=(*volcano_crds.load(), *crds),
            webhooks=webhooks(settings) if admission else (),
            node_lifecycle=node_lifecycle,
        )
        self._controllers = controllers
        self._scheduler = scheduler
        self._place_at_creation = place_at_creation
        self._podgroups = PodGroupsOf(podgroups)
        self._simulation = SimulationSettings(nodes=nodes) if isinstance(nodes, int) else nodes
        self._components = Components(self._signal.notify, self.clock)

    async def __aenter__(self) -> Self:
        """Start the API server, then the components.

        Raises:
            ComponentError: one of them ended.
            OSError: this process may not open enough files.
        """
        # Without them, connections would wait to be accepted for ever.
        reserve_open_files(_OPEN_FILES)
        async with AsyncExitStack() as stack:
            await super().__aenter__()
            stack.push_async_callback(super().__aexit__, None, None, None)
            stack.push_async_callback(self._components.stop)
            await self._start_components()
            stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the components, then the API server.

        Raises:
            ComponentError: a component had ended before, and the block raised nothing.
        """
        try:
            self.faults.clear()  # a component that waits for a held request could not stop
            await self._components.stop()
        finally:
            await super().__aexit__(kind, error, trace)
        if self._components.failure is not None and error is None:
            raise self._components.failure

    def __enter__(self) -> "BlockingCluster":
        """Start the cluster in its own thread, for a test that blocks.

        Raises:
            ComponentError: a component ended.
            OSError: this process may not open enough files.
        """
        self._blocking = BlockingCluster(self)
        return self._blocking.__enter__()

    def pods_of(self, job: str, *, namespace: str = "default") -> list[Json]:
        """Return the pods of a Volcano job, by name."""
        return [
            pod
            for pod in self.objects(PODS).values()
            if pod["metadata"]["namespace"] == namespace
            and (pod["metadata"].get("annotations") or {}).get(JOB_NAME) == job
        ]

    async def wait_until(
        self,
        condition: Callable[[], object],
        *,
        timeout: float = WAIT_SECONDS,
        describe: Callable[[], str] = str,
    ) -> None:
        """Wait until *condition* holds, as :meth:`ApiServer.wait_until` does.

        Raises:
            WaitTimeoutError: it did not hold within *timeout* seconds.
            ComponentError: a component has ended.
        """

        def holds() -> object:
            if self._components.failure is not None:
                raise self._components.failure
            return condition()

        await super().wait_until(holds, timeout=timeout, describe=describe)

    async def _start_components(self) -> None:
        run = self._components
        wanted: dict[str, Runnable] = {}
        if self._simulation.nodes:
            client = await run.client(self.credentials_of("agent"), "agent")
            wanted |= components.agent(client, self._simulation, self.kubeconfig.parent, self.clock)
        if self._controllers:
            client = await run.client(self.credentials_of("controllers"), "controllers")
            recorder = run.recorder(client, "vc-controller-manager")
            wanted |= components.controllers(
                client,
                recorder,
                place_at_creation=self._place_at_creation,
                podgroups_of=self._podgroups,
                clock=self.clock,
            )
            wanted |= components.batch_controllers(client, recorder, self.clock)
            client = await run.client(self.credentials_of("workloads"), "workloads")
            recorder = run.recorder(client, "workloads")
            wanted |= workload_controllers(client, recorder, clock=self.clock)
        if self._scheduler:
            client = await run.client(self.credentials_of("scheduler"), "scheduler")
            wanted |= components.scheduler(
                client,
                run.recorder(client, "volcano"),
                place_at_creation=self._place_at_creation,
                clock=self.clock,
            )
        await run.start(wanted)
        if self._controllers:  # a job goes to the default queue
            await self.wait_for_phase(QUEUES, DEFAULT_QUEUE, "Open")


class BlockingCluster(BlockingApiServer):
    """A cluster in its own thread; see :class:`BlockingApiServer`."""

    pods_of = calling(Cluster.pods_of)
