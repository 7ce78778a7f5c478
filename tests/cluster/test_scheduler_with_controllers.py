"""All controllers and the scheduler together, as the recordings saw Volcano's at work."""

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
    """What the tests read of a Job."""

    metadata: ObjectMeta = ObjectMeta()
    status: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def phase(self) -> str:
        state = msgspec.json.decode(self.status).get("state") or {}
        return str(state.get("phase", ""))


class SchedulingCluster:
    """A cluster of four nodes of 32 CPU with everything at work; a kubelet runs what is bound."""

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

    def _record_phase(self, about: Job | PodGroup | None, phase: str) -> None:
        if about is not None:
            kind = "job" if isinstance(about, Job) else "group"
            seen = self.phases[f"{kind} {about.metadata.name}"]
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
        whole = {"schedulerName": "volcano", "minAvailable": minimum, "tasks": [task]}
        await self.apply(JOBS, name, whole | spec)

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
async def cluster(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[SchedulingCluster]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            servers.start(tmp_path, webhooks=WEBHOOKS, crds=crds.load())
        )
        client = await stack.enter_async_context(server.client("admin"))
        it = SchedulingCluster(server, client)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        caches = [tasks.create_task(c.run()) for c in (it.pods, it.groups, it.jobs, it.queues)]
        for i in range(4):
            await add_node(server, f"node-{i}", cpu="32", memory="128Gi")
        notes = it.recorder
        for controller in (
            QueueController(client),
            PodGroupController(client),
            JobController(client),
            Scheduler(client, recorder=notes),
        ):
            await stack.enter_async_context(running(controller))
        await wait_for(lambda: open_queue(it, "default"))
        yield it
        await it.close()
        for cache in caches:
            cache.cancel()


def open_queue(cluster: SchedulingCluster, name: str) -> bool:
    queue = cluster.queues.get(name)
    return queue is not None and queue.status.state == "Open"


async def test_a_job_starts_and_completes(servers: ServerFactory, tmp_path: Path) -> None:
    """Scenario complete: Inqueue, Running, and a Job that follows."""
    async with cluster(servers, tmp_path) as it:
        await it.job("j", replicas=3, cpu="100m", minimum=3)
        await wait_for(lambda: it.phases["job j"][-1:] == ["Running"])
        await wait_for(lambda: len(it.groups) == 1)
        group = it.group("j").metadata.name
        await wait_for(lambda: it.phases[f"group {group}"] == ["Inqueue", "Running"])
        await it.finish_pods()
        await wait_for(lambda: it.phases["job j"][-1:] == ["Completed"])
        assert it.phases["job j"] == ["Pending", "Running", "Completed"]
        told = ("PodGroup", group, "Normal", "Scheduled", "pod group is ready")
        await wait_for(lambda: told in it.recorder.events)


async def test_a_small_job_costs_few_writes(servers: ServerFactory, tmp_path: Path) -> None:
    """Each step of Job, PodGroup and Pod is written once, and numbers alone once more at most."""
    async with cluster(servers, tmp_path) as it:
        writes: Counter[str] = Counter()
        it.jobs.add_event_handler(lambda old, new: writes.update(["Job"]))
        it.groups.add_event_handler(lambda old, new: writes.update(["PodGroup"]))
        it.pods.add_event_handler(lambda old, new: writes.update(["Pod"]))
        await it.job("j", replicas=1, cpu="100m", minimum=1)
        await wait_for(lambda: it.phases["job j"][-1:] == ["Running"])
        await wait_for(lambda: len(it.groups) == 1 and it.group("j").status.running == 1)
        await wait_for(lambda: writes["Pod"] >= 3)
        assert writes["Pod"] == 3  # made, bound, running
        assert writes["Job"] <= 4  # made, Pending, (its pod pending), Running
        assert writes["PodGroup"] <= 5  # made, Inqueue, (scheduled), Running, (its pod running)


async def test_tasks_that_wait_for_others_need_no_minimum_of_their_own(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """In Volcano such a job never starts: its gang waits for pods that wait for it."""
    async with cluster(servers, tmp_path) as it:
        template = {"spec": pod_spec("100m")}
        first = {"name": "first", "replicas": 1, "template": template}
        then = {"name": "then", "replicas": 2, "template": template}
        await it.apply(JOBS, "j", {"tasks": [first, then | {"dependsOn": {"name": ["first"]}}]})
        await wait_for(lambda: it.phases["job j"][-1:] == ["Running"])
        await wait_for(lambda: it.running() == 3)


async def test_a_bare_pod_goes_by_a_group_of_its_own(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """Scenario bare-pod: Pending, Inqueue, Running."""
    async with cluster(servers, tmp_path) as it:
        await it.apply(PODS, "p", pod_spec("100m") | {"schedulerName": "volcano"})
        await wait_for(lambda: it.running() == 1 and len(it.groups) == 1)
        group = next(iter(it.groups)).metadata.name
        expected = ["Pending", "Inqueue", "Running"]
        await wait_for(lambda: it.phases[f"group {group}"] == expected)


async def test_a_job_larger_than_the_cluster_gets_no_pods(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """Scenario gang-too-big."""
    async with cluster(servers, tmp_path) as it:
        await it.job("j", replicas=3, cpu="60", minimum=3)
        await wait_for(lambda: list(it.groups) and it.group("j").status.conditions)
        status = it.group("j").status
        assert status.phase == "Pending"
        told = "overused cpu (requested 180, free 153.6)"
        assert told in status.conditions[0].message
        assert list(it.pods) == []


async def test_an_elastic_job_runs_with_as_many_pods_as_fit(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """Scenario gang-elastic-partly: four of six run, the others say what they lack.

    Which of them run depends on which were made first.
    """
    async with cluster(servers, tmp_path) as it:
        await it.job("j", replicas=6, cpu="20", minimum=2)
        await wait_for(lambda: it.running() == 4)
        await wait_for(lambda: it.phases["job j"][-1:] == ["Running"])
        lacks = "0/4 nodes are unavailable: 4 Insufficient cpu (requested 20, most free 12)."
        said = ("Warning", "FailedScheduling", lacks)
        await wait_for(lambda: any(event[2:] == said for event in it.recorder.events))
        await wait_for(lambda: it.group("j").status.phase == "Running")


async def test_a_queue_takes_no_more_than_its_capability(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """Scenario queue-capability."""
    async with cluster(servers, tmp_path) as it:
        await it.apply(QUEUES, "gq-s", {"weight": 1, "capability": {"cpu": "1"}})
        await wait_for(lambda: open_queue(it, "gq-s"))
        await it.job("one", replicas=1, cpu="600m", minimum=1, queue="gq-s")
        await wait_for(lambda: it.running() == 1)
        await it.job("two", replicas=1, cpu="600m", minimum=1, queue="gq-s")

        def refused() -> bool:
            names = [each.metadata.name for each in it.groups]
            return any(name.startswith("two-") for name in names) and bool(
                it.group("two").status.conditions
            )

        await wait_for(refused)
        status = it.group("two").status
        told = (
            "queue resource quota insufficient: insufficient cpu (requested 600m, free 400m of 1)"
        )
        assert status.phase == "Pending" and told in status.conditions[0].message
        expected = {"cpu": "600m", "memory": "64Mi", "pods": "1"}

        def allocated() -> bool:
            queue = it.queues.get("gq-s")
            return queue is not None and queue.status.allocated == expected

        await wait_for(allocated)
