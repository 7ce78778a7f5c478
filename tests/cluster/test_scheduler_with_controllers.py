"""All controllers and the scheduler together, in the scenarios recorded with Volcano."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from support.api_servers import ServerFactory, add_node
from support.embedded_apiserver import Server
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.admission import WEBHOOKS
from batholith.job_ctrl.controller import JobController
from batholith.kube.client.client import Client
from batholith.kube.errors import NotFoundError
from batholith.kube.informer.informer import Informer
from batholith.model import crds
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import JOBS, PODGROUPS, PODS, QUEUES
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Queue
from batholith.podgroup_ctrl.controller import PodGroupController
from batholith.queue_ctrl.controller import QueueController
from batholith.scheduler.scheduler import Scheduler
from batholith.scheduler.state.core_types import Pod

Json = dict[str, Any]


class Job(ApiStruct, frozen=True):
    """The fields of a Job that the tests read."""

    metadata: ObjectMeta = ObjectMeta()
    status: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def phase(self) -> str:
        state = msgspec.json.decode(self.status).get("state") or {}
        return str(state.get("phase", ""))


class SchedulingCluster:
    """Four nodes of 32 CPU, all controllers, and a simulated kubelet."""

    def __init__(self, server: Server, client: Client) -> None:
        self.server = server
        self.recorder = FakeRecorder()
        self.phases: dict[str, list[str]] = defaultdict(list)
        self.pods = Informer(client, PODS, Pod)
        self.groups = Informer(client, PODGROUPS, PodGroup)
        self.jobs = Informer(client, JOBS, Job)
        self.queues = Informer(client, QUEUES, Queue)
        self.groups.add_event_handler(
            lambda _, new: self._record_phase(new, new.status.phase if new else "")
        )
        self.jobs.add_event_handler(
            lambda _, new: self._record_phase(new, new.phase if new else "")
        )
        self.pods.add_event_handler(self._run)
        self._client = client
        self._kubelet_tasks: set[asyncio.Task[None]] = set()
        self._started: set[str] = set()

    def _record_phase(self, regarding: Job | PodGroup | None, phase: str) -> None:
        if regarding is not None:
            kind = "job" if isinstance(regarding, Job) else "group"
            seen = self.phases[f"{kind} {regarding.metadata.name}"]
            if phase and seen[-1:] != [phase]:
                seen.append(phase)

    def _run(self, old: Pod | None, new: Pod | None) -> None:
        if new and new.spec.node_name and new.metadata.uid not in self._started:
            self._started.add(new.metadata.uid)
            self._kubelet_tasks.add(asyncio.create_task(self._report(new, "Running")))

    async def _report(self, pod: Pod, phase: str) -> None:
        try:
            await self._client.patch(
                PODS,
                pod.metadata.name,
                {"status": {"phase": phase}},
                namespace="default",
                subresource="status",
            )
        except NotFoundError:
            return

    async def finish_pods(self) -> None:
        for pod in list(self.pods):
            await self._report(pod, "Succeeded")

    async def apply(
        self, resource: Any, name: str, spec: Json, *, kind: Json | None = None
    ) -> None:
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        await self.server.create(resource.path("default" if resource.namespaced else ""), body)

    async def job(self, name: str, *, replicas: int, cpu: str, minimum: int, **spec: Any) -> None:
        task = {"name": "t", "replicas": replicas, "template": {"spec": pod_spec(cpu)}}
        base = {"schedulerName": "volcano", "minAvailable": minimum, "tasks": [task]}
        await self.apply(JOBS, name, base | spec)

    def group(self, job: str) -> PodGroup:
        return next(each for each in self.groups if each.metadata.name.startswith(f"{job}-"))

    def running(self) -> int:
        return sum(pod.status.phase == "Running" for pod in self.pods)

    async def close(self) -> None:
        await asyncio.gather(*self._kubelet_tasks)


def pod_spec(cpu: str) -> Json:
    resources = {"requests": {"cpu": cpu, "memory": "64Mi"}}
    container = {"name": "main", "image": "busybox", "resources": resources}
    return {"restartPolicy": "Never", "containers": [container]}


@asynccontextmanager
async def scheduling_cluster(
    servers: ServerFactory, tmp_path: Path
) -> AsyncIterator[SchedulingCluster]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            servers.start(tmp_path, webhooks=WEBHOOKS, crds=crds.load())
        )
        client = await stack.enter_async_context(server.client("admin"))
        cluster = SchedulingCluster(server, client)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        informers = (cluster.pods, cluster.groups, cluster.jobs, cluster.queues)
        informer_tasks = [tasks.create_task(informer.run()) for informer in informers]
        for i in range(4):
            await add_node(server, f"node-{i}", cpu="32", memory="128Gi")
        for controller in (
            QueueController(client),
            PodGroupController(client),
            JobController(client),
            Scheduler(client, recorder=cluster.recorder),
        ):
            await stack.enter_async_context(running(controller))
        await wait_for(lambda: open_queue(cluster, "default"))
        yield cluster
        await cluster.close()
        for task in informer_tasks:
            task.cancel()


def open_queue(cluster: SchedulingCluster, name: str) -> bool:
    queue = cluster.queues.get(name)
    return queue is not None and queue.status.state == "Open"


async def test_job_starts_and_completes(servers: ServerFactory, tmp_path: Path) -> None:
    """Scenario complete: Inqueue, Running, and a Job that follows."""
    async with scheduling_cluster(servers, tmp_path) as cluster:
        await cluster.job("j", replicas=3, cpu="100m", minimum=3)
        await wait_for(lambda: cluster.phases["job j"][-1:] == ["Running"])
        await wait_for(lambda: len(cluster.groups) == 1)
        group = cluster.group("j").metadata.name
        await wait_for(lambda: cluster.phases[f"group {group}"] == ["Inqueue", "Running"])
        await cluster.finish_pods()
        await wait_for(lambda: cluster.phases["job j"][-1:] == ["Completed"])
        assert cluster.phases["job j"] == ["Pending", "Running", "Completed"]
        event = ("PodGroup", group, "Normal", "Scheduled", "pod group is ready")
        await wait_for(lambda: event in cluster.recorder.events)


async def test_small_job_needs_few_writes(servers: ServerFactory, tmp_path: Path) -> None:
    """Each phase of Job, PodGroup and Pod is written once, counts alone at most once."""
    async with scheduling_cluster(servers, tmp_path) as cluster:
        writes: Counter[str] = Counter()
        cluster.jobs.add_event_handler(lambda old, new: writes.update(["Job"]))
        cluster.groups.add_event_handler(lambda old, new: writes.update(["PodGroup"]))
        cluster.pods.add_event_handler(lambda old, new: writes.update(["Pod"]))
        await cluster.job("j", replicas=1, cpu="100m", minimum=1)
        await wait_for(lambda: cluster.phases["job j"][-1:] == ["Running"])
        await wait_for(lambda: len(cluster.groups) == 1 and cluster.group("j").status.running == 1)
        await wait_for(lambda: writes["Pod"] >= 3)
        assert writes["Pod"] == 3  # created, bound, running
        assert writes["Job"] <= 4  # created, Pending, (its pod pending), Running
        assert writes["PodGroup"] <= 5  # created, Inqueue, (scheduled), Running, (its pod running)


async def test_tasks_that_depend_on_others_need_no_minimum(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """In Volcano such a job never starts: its gang and its pods wait for each other."""
    async with scheduling_cluster(servers, tmp_path) as cluster:
        template = {"spec": pod_spec("100m")}
        first = {"name": "first", "replicas": 1, "template": template}
        second = {"name": "second", "replicas": 2, "template": template}
        dependent = second | {"dependsOn": {"name": ["first"]}}
        await cluster.apply(JOBS, "j", {"tasks": [first, dependent]})
        await wait_for(lambda: cluster.phases["job j"][-1:] == ["Running"])
        await wait_for(lambda: cluster.running() == 3)


async def test_bare_pod_has_a_generated_podgroup(servers: ServerFactory, tmp_path: Path) -> None:
    """Scenario bare-pod: Pending, Inqueue, Running."""
    async with scheduling_cluster(servers, tmp_path) as cluster:
        await cluster.apply(PODS, "p", pod_spec("100m") | {"schedulerName": "volcano"})
        await wait_for(lambda: cluster.running() == 1 and len(cluster.groups) == 1)
        group = next(iter(cluster.groups)).metadata.name
        expected = ["Pending", "Inqueue", "Running"]
        await wait_for(lambda: cluster.phases[f"group {group}"] == expected)


async def test_job_larger_than_the_cluster_has_no_pods(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """Scenario gang-too-big."""
    async with scheduling_cluster(servers, tmp_path) as cluster:
        await cluster.job("j", replicas=3, cpu="60", minimum=3)
        await wait_for(lambda: list(cluster.groups) and cluster.group("j").status.conditions)
        status = cluster.group("j").status
        assert status.phase == "Pending"
        message = "insufficient cpu (requested 180, free 153.6, overcommit factor 1.2)"
        assert message in status.conditions[0].message
        assert list(cluster.pods) == []


async def test_elastic_job_runs_the_pods_that_fit(servers: ServerFactory, tmp_path: Path) -> None:
    """Scenario gang-elastic-partly: four of six run, the others have fit errors.

    Which of them run depends on which were created first.
    """
    async with scheduling_cluster(servers, tmp_path) as cluster:
        await cluster.job("j", replicas=6, cpu="20", minimum=2)
        await wait_for(lambda: cluster.running() == 4)
        await wait_for(lambda: cluster.phases["job j"][-1:] == ["Running"])
        message = "0/4 nodes are unavailable: 4 Insufficient cpu (requested 20, most free 12)."
        expected = ("Warning", "FailedScheduling", message)
        await wait_for(lambda: any(event[2:] == expected for event in cluster.recorder.events))
        await wait_for(lambda: cluster.group("j").status.phase == "Running")


async def test_queue_allocates_no_more_than_its_capability(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """Scenario queue-capability."""
    async with scheduling_cluster(servers, tmp_path) as cluster:
        await cluster.apply(QUEUES, "gq-s", {"weight": 1, "capability": {"cpu": "1"}})
        await wait_for(lambda: open_queue(cluster, "gq-s"))
        await cluster.job("one", replicas=1, cpu="600m", minimum=1, queue="gq-s")
        await wait_for(lambda: cluster.running() == 1)
        await cluster.job("two", replicas=1, cpu="600m", minimum=1, queue="gq-s")

        def rejected() -> bool:
            names = [each.metadata.name for each in cluster.groups]
            return any(name.startswith("two-") for name in names) and bool(
                cluster.group("two").status.conditions
            )

        await wait_for(rejected)
        status = cluster.group("two").status
        message = (
            "queue resource quota insufficient: insufficient cpu (requested 600m, free 400m of 1)"
        )
        assert status.phase == "Pending" and message in status.conditions[0].message
        expected = {"cpu": "600m", "memory": "64Mi", "pods": "1"}

        def allocated() -> bool:
            queue = cluster.queues.get("gq-s")
            return queue is not None and queue.status.allocated == expected

        await wait_for(allocated)
