"""Job controller and scheduler together in a simulated cluster, for random histories.

Time is virtual and everything runs in one loop. Users, the kubelets, the node controller and
another scheduler are the test. A request to create a pod with a node may take effect late, but not
after the time that it gives the server.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from support.inmemory_api import InMemoryClient, _Request
from support.scheduler_oracle.cycle import decide
from support.scheduler_oracle.objects import Objects, exceeding_gangs, parse_config
from support.scheduler_stateful import ENDED, SchedulerApi, bound, cpu_of, described_podgroups
from support.virtual_controller import QUIET_PERIOD, TICK, CheckedWorld

from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.plugins.registry import Registry
from batholith.job_ctrl.settings import JobSettings
from batholith.kube.errors import ConnectionLostError
from batholith.machinery.testing import FakeClock
from batholith.model.described_podgroup import PodGroupsOf
from batholith.model.names import (
    COMMANDS,
    GROUP_NAME,
    JOBS,
    MUTATING_POLICIES,
    MUTATING_POLICIES_BETA,
    NODES,
    PLAN,
    PODGROUPS,
    PODS,
    QUEUES,
)
from batholith.model.placement import REQUEST_SECONDS, Plan, decode_plan
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Queue
from batholith.scheduler import conf
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.scheduler.state.core_types import Node, Pod

Object = dict[str, Any]

PLUGINS = Registry.load()
CONTROLLER, SCHEDULER = "controller", "scheduler"
LONGEST_WAIT = 70.0
"""Seconds after which every plan and every backoff has ended."""

MAX_ROUNDS = 14

_DISCOVERY_PATHS = tuple(
    f"/apis/{kind.api_version}" for kind in (MUTATING_POLICIES, MUTATING_POLICIES_BETA)
)


class PlacementApi(SchedulerApi):
    """A server that may carry out the creation of planned pods late."""

    def __init__(self, clock: FakeClock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(clock, loop)
        self.is_slow = False
        """Whether planned pods are created late, and their responses lost."""
        self.late: list[tuple[float, str, _Request]] = []

    async def serve(self, client: InMemoryClient, request: _Request) -> bytes:
        """Handle one request."""
        if request.path in _DISCOVERY_PATHS:
            return b'{"resources": []}'
        if not self.is_slow or "timeout" not in request.query:
            return await super().serve(client, request)
        assert request.query["timeout"] == f"{REQUEST_SECONDS:g}s"
        if not client.killed:
            self.late.append((self.clock.monotonic() + REQUEST_SECONDS, client.name, request))
        raise ConnectionLostError("late")

    async def carry_out_late(self, *, keep: bool = False) -> None:
        """Carry out what is in flight, apart from what is in flight for too long.

        With *keep*, a copy of each request stays in flight.
        """
        late, self.late = self.late, list(self.late) if keep else []
        for until, name, request in late:
            if self.clock.monotonic() < until:
                self.requesting_client = name
                try:
                    await self._handle(request)  # type: ignore[arg-type]
                finally:
                    self.requesting_client = ""


@dataclass(slots=True)
class RunningComponent:
    """A component that runs."""

    client: InMemoryClient
    component: Any
    task: asyncio.Task[None]


class PlacementWorld(CheckedWorld[Any]):
    """A server with at most one job controller and one scheduler."""

    def __init__(self) -> None:
        super().__init__()
        self.api: PlacementApi = PlacementApi(self.clock, self.loop)
        self.api.on_change = self._on_change
        self.components: dict[str, RunningComponent] = {}
        self.controller_skew = 0.0
        self.podgroups = PodGroupsOf.ALL
        """Which jobs get PodGroups from the next job controller."""
        self._started = 0
        self._excused: dict[str, float] = {}
        """Until when nodes may be overcommitted by us, as they have become smaller."""
        self.created_with_node = 0
        """Pods that were created with their node."""
        self.put_queue("default")

    # Components.

    def _make(self, name: str, client: InMemoryClient) -> Any:
        if name == SCHEDULER:
            settings = SchedulerSettings(conf=conf.DEFAULT, place_at_creation=True)
            return Scheduler(client, settings=settings, clock=self.clock, recorder=self.recorder)
        return JobController(
            client,
            settings=JobSettings(workers=2, place_at_creation=True, podgroups=self.podgroups),
            clock=_with_skew(self.clock, self.controller_skew),
            recorder=self.recorder,
            plugins=PLUGINS,
        )

    async def start_component(self, name: str) -> None:
        """Start a component unless it runs."""
        if name in self.components and self.components[name].client.killed:
            await self.stop_component(name)
        if name not in self.components:
            self._started += 1
            client = InMemoryClient(self.api, f"{name}-{self._started}")
            component = self._make(name, client)
            task = asyncio.create_task(component.run())
            self.components[name] = RunningComponent(client, component, task)

    async def stop_component(self, name: str, *, kill: bool = True) -> None:
        """End a component: at once, or in order."""
        found = self.components.pop(name, None)
        if found is None:
            return
        found.client.killed = found.client.killed or kill
        found.task.cancel()
        self.api.release_watches()
        for _ in range(40):
            await self.run_until_idle()
            if found.task.done():
                break
            self.clock.tick(TICK)
        assert found.task.done(), f"INV-LC-3: {name} does not end"
        found.client.killed = True
        if not found.task.cancelled():
            found.task.result()

    async def start(self) -> None:
        for name in (SCHEDULER, CONTROLLER):
            await self.start_component(name)

    async def kill(self) -> None:
        for name in list(self.components):
            await self.stop_component(name)

    async def stop(self) -> None:
        for name in list(self.components):
            await self.stop_component(name, kill=False)

    # What there is.

    @property
    def pods(self) -> dict[str, Object]:
        return self.objects(PODS)

    def pods_of(self, job: str) -> list[Object]:
        """The pods of a job that are not ended."""
        return [
            pod
            for name, pod in self.pods.items()
            if name.startswith(f"{job}-t-") and pod.get("status", {}).get("phase") not in ENDED
        ]

    def plan_of(self, job: str) -> Plan | None:
        """The plan of the PodGroup of a job."""
        for name, group in self.objects(PODGROUPS).items():
            text = group["metadata"].get("annotations", {}).get(PLAN)
            if text and name.startswith(f"{job}-"):
                return decode_plan(text)
        return None

    def first_node_of(self, job: str) -> str:
        """A node in the plan of a job; empty for none."""
        plan = self.plan_of(job)
        return next(iter(plan.nodes.values()), "") if plan is not None else ""

    # What others do.

    def put_node(self, name: str, *, cpu: int, cordoned: bool = False) -> None:
        """Create or update a node."""
        old = self.objects(NODES).get(name)
        if old is not None and int(old["status"]["allocatable"]["cpu"]) > cpu:
            self._excuse(name)
        offered = {"cpu": str(cpu), "memory": "64Gi", "pods": "110"}
        spec = {"unschedulable": cordoned}
        self.api.put(NODES, name, spec=spec, status={"allocatable": offered})

    def remove_node(self, name: str) -> None:
        """Delete a node with its pods."""
        self._excuse(name)
        self.api.remove(NODES, name)

    def _excuse(self, name: str) -> None:
        self._excused[name] = self.clock.monotonic() + LONGEST_WAIT

    async def lose_node(self, name: str, how: str) -> None:
        """Let a node be cordoned or filled by another scheduler for a moment, or removed."""
        node = self.objects(NODES).get(name)
        if node is None:
            return
        cpu = int(node["status"]["allocatable"]["cpu"])
        if how == "node cordoned":
            self.put_node(name, cpu=cpu, cordoned=True)
            await self.pass_time(0.5)
            self.put_node(name, cpu=cpu)
        elif how == "node filled":
            self.put_other("filler", name, cpu=cpu)
            await self.pass_time(0.5)
            self.api.force_delete(PODS, "filler")
        else:
            self.remove_node(name)

    async def lose_pods(self, job: str, *, with_job: bool) -> None:
        """Delete a job, or its pods with those whose creation is in flight, maybe twice."""
        if with_job:
            self.delete_job(job)
            return
        await self.api.carry_out_late(keep=True)
        for pod in self.pods_of(job):
            self.api.force_delete(PODS, pod["metadata"]["name"])

    async def recover(self) -> None:
        """Let all go well from now on, with both components."""
        self.api.dies_after, self.api.is_slow = None, False
        await self.run_until_idle()  # a write in flight may be the one at which a component dies
        self.api.clear_faults()
        self.api.release_watches()
        await self.start()

    def collect_pods(self) -> None:
        """Remove the pods of nodes and of jobs that do not exist, as the garbage collectors do.

        A job's pods may be created after its deletion, by requests that were in flight.
        """
        nodes = self.objects(NODES)
        jobs = {job["metadata"]["uid"] for job in self.objects(JOBS).values()}
        for name, pod in self.pods.items():
            node = pod["spec"].get("nodeName")
            owners = {each["uid"] for each in pod["metadata"].get("ownerReferences", ())}
            if (node and node not in nodes) or owners - jobs:
                self.api.force_delete(PODS, name)

    def put_queue(self, name: str, **spec: Any) -> None:
        self.api.put(QUEUES, name, spec={"weight": 1, **spec}, status={"state": "Open"})

    def submit(self, name: str, replicas: int, minimum: int, *, cpu: int, queue: str) -> None:
        """Create a job with one task."""
        container = {"name": "m", "image": "i", "resources": {"requests": {"cpu": str(cpu)}}}
        template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
        spec = {
            "queue": queue,
            "minAvailable": minimum,
            "maxRetry": 5,
            "schedulerName": "volcano",
            "policies": [{"event": "PodEvicted", "action": "RestartJob"}],
            "tasks": [
                {"name": "t", "replicas": replicas, "minAvailable": minimum, "template": template}
            ],
        }
        self.api.put(JOBS, name, spec=spec)

    def submit_gang(self, name: str, size: int) -> None:
        """Create a PodGroup and its pods, for which no job controller is needed."""
        status = {"phase": "Pending"}
        spec = {"minMember": size, "queue": "default"}
        self.api.put(PODGROUPS, name, spec=spec, status=status)
        container = {"name": "m", "image": "i", "resources": {"requests": {"cpu": "1"}}}
        for index in range(size):
            self.api.put(
                PODS,
                f"{name}-bare-{index}",
                metadata={"annotations": {GROUP_NAME: name}},
                spec={"schedulerName": "volcano", "containers": [container]},
                status=status,
            )

    def scale(self, name: str, replicas: int) -> None:
        """Change the number of pods of a job."""
        job = self.objects(JOBS)[name]
        task = {**job["spec"]["tasks"][0], "replicas": replicas}
        task["minAvailable"] = min(task["minAvailable"], replicas)
        least = min(job["spec"]["minAvailable"], replicas)
        self.api.put(JOBS, name, spec={"tasks": [task], "minAvailable": least})

    def command(self, name: str, action: str) -> None:
        target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": name}
        self.api.put(COMMANDS, f"c{self.api.version}", action=action, target=target)

    def delete_job(self, name: str) -> None:
        """Delete a job with all that it owns."""
        uid = self.objects(JOBS)[name]["metadata"]["uid"]
        self.api.force_delete(JOBS, name)
        for resource in (PODGROUPS, PODS):
            for each, obj in self.objects(resource).items():
                owners = obj["metadata"].get("ownerReferences", ())
                if any(owner["uid"] == uid for owner in owners):
                    self.api.request_delete(resource, each)

    def put_other(self, name: str, node: str, *, cpu: int) -> None:
        """Another scheduler binds its pod."""
        container = {"name": "m", "image": "i", "resources": {"requests": {"cpu": str(cpu)}}}
        spec = {"schedulerName": "other", "nodeName": node, "containers": [container]}
        self.api.put(PODS, name, spec=spec, status={"phase": "Pending"})

    def run_kubelets(self) -> None:
        """Admit or reject the pods of nodes, and end those that are being deleted."""
        nodes = self.objects(NODES)
        for name, pod in self.pods.items():
            node = nodes.get(pod["spec"].get("nodeName", ""))
            if "deletionTimestamp" in pod["metadata"]:
                self.api.force_delete(PODS, name)
            elif node is not None and pod.get("status", {}).get("phase", "Pending") == "Pending":
                running = sum(
                    cpu_of(each)
                    for each in self.pods.values()
                    if each["spec"].get("nodeName") == node["metadata"]["name"]
                    and each.get("status", {}).get("phase") == "Running"
                )
                fits = running + cpu_of(pod) <= int(node["status"]["allocatable"]["cpu"])
                rejected = {"phase": "Failed", "reason": "OutOfcpu"}
                self.api.put(PODS, name, status={"phase": "Running"} if fits else rejected)

    # Checks.

    def _on_change(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        if self.api.requesting_client:
            self.controller_writes += 1
        if prefix != PODS.path() or change == "DELETED" or not self.api.requesting_client:
            return
        node = new["spec"].get("nodeName", "")
        if not node or (old or {"spec": {}})["spec"].get("nodeName"):
            return
        self.created_with_node += change == "ADDED"
        if self.clock.monotonic() < self._excused.get(node, 0.0):
            return
        there = self.objects(NODES).get(node)
        ours = [
            pod
            for pod in self.pods.values()
            if pod["spec"].get("nodeName") == node
            and GROUP_NAME in pod["metadata"].get("annotations", {})
            and pod.get("status", {}).get("phase") not in ENDED
        ]
        used = sum(map(cpu_of, ours))
        limit = int(there["status"]["allocatable"]["cpu"]) if there is not None else 0
        if there is not None and used > limit:
            names = [pod["metadata"]["name"] for pod in ours]
            self.violations.append(f"{node} is overcommitted by us: {used} of {limit} for {names}")

    async def run_until_quiet(self) -> None:
        """Let all go well from now on, until nothing is left to do."""
        self.controller_skew = 0.0
        self.api.late.clear()
        await self.recover()
        for _ in range(MAX_ROUNDS):
            before = self.controller_writes
            self.collect_pods()
            self.run_kubelets()
            await self._settle()
            self.collect_pods()
            self.run_kubelets()
            await self.pass_time(LONGEST_WAIT)
            if before == self.controller_writes and not self._kubelet_has_work():
                return
        raise AssertionError("INV-PIPE-1: it never becomes idle")

    def _kubelet_has_work(self) -> bool:
        return any(
            "deletionTimestamp" in pod["metadata"]
            or (pod["spec"].get("nodeName") and pod.get("status", {}).get("phase") == "Pending")
            for pod in self.pods.values()
        )

    async def _settle(self) -> None:
        quiet = self.clock.monotonic()
        while self.clock.monotonic() - quiet < QUIET_PERIOD:
            asked = self.api.requests
            await self.pass_time(TICK)
            if asked != self.api.requests:
                quiet = self.clock.monotonic()

    def check_invariants(self) -> None:
        """Check that gangs are complete or wait, and that the scheduler charges what there is.

        Raises:
            AssertionError: it is not so.
        """
        for name, job in self.objects(JOBS).items():
            self._check_job(name, job)
        self.check_charges()
        objects = Objects(
            nodes=[msgspec.convert(each, Node) for each in self.objects(NODES).values()],
            pods=[msgspec.convert(each, Pod) for each in self.pods.values()],
            podgroups=[
                *(msgspec.convert(each, PodGroup) for each in self.objects(PODGROUPS).values()),
                *described_podgroups(
                    self.components[SCHEDULER].component, self.pods, self.objects(PODGROUPS)
                ).values(),
            ],
            queues=[msgspec.convert(each, Queue) for each in self.objects(QUEUES).values()],
            exceeding=exceeding_gangs(self.components[SCHEDULER].component.cache),
        )
        outcome = decide(objects, parse_config(conf.DEFAULT))
        assert not outcome.placements, f"schedulable: {outcome.placements}"
        assert not outcome.enqueued, f"admissible: {outcome.enqueued}"

    def _check_job(self, name: str, job: Object) -> None:
        phase = job.get("status", {}).get("state", {}).get("phase")
        pods = self.pods_of(name)
        on_nodes = bound(pods)
        if phase == "Running":
            replicas = job["spec"]["tasks"][0]["replicas"]
            indices = {pod["metadata"]["name"] for pod in self.pods.values()}
            missing = [i for i in range(replicas) if f"{name}-t-{i}" not in indices]
            assert not missing, f"{name} lacks pods {missing}"
        if phase == "Running" and self.podgroups is PodGroupsOf.ALL:
            group = f"{name}-{job['metadata']['uid']}"
            assert group in self.objects(PODGROUPS), f"{name} has no PodGroup"
        if phase == "Pending":
            assert not on_nodes or len(on_nodes) >= job["spec"]["minAvailable"], (
                f"{name} has {len(on_nodes)} of {job['spec']['minAvailable']} pods on nodes"
            )

    def check_charges(self) -> None:
        """Check that nothing is planned any more, and that nodes have what their pods leave."""
        cache = self.components[SCHEDULER].component.cache
        planned = cache.planned
        assert not planned._gangs, f"planned: {list(planned._gangs)}"
        assert not planned._assumed, f"assumed: {planned._assumed}"
        matrix = cache.node_matrix
        for name, node in self.objects(NODES).items():
            used = sum(
                cpu_of(pod)
                for pod in self.pods.values()
                if pod["spec"].get("nodeName") == name
                and pod.get("status", {}).get("phase") not in ENDED
            )
            idle = int(matrix.idle[0, matrix.index_of(name)])
            expected = (int(node["status"]["allocatable"]["cpu"]) - used) * 1000
            assert idle == expected, f"{name} has {expected}, the scheduler believes {idle}"
        matrix.validate()
        cache.task_table.validate(cache.gangs.values())

    @property
    def plans(self) -> int:
        """PodGroups that have a plan."""
        groups = self.objects(PODGROUPS).values()
        return sum(PLAN in group["metadata"].get("annotations", {}) for group in groups)


def _with_skew(clock: FakeClock, seconds: float) -> Any:
    """Return *clock* with another time of day."""

    class Skewed:
        def now(self) -> datetime:
            return clock.now() + timedelta(seconds=seconds)

        def __getattr__(self, name: str) -> Any:
            return getattr(clock, name)

    return Skewed()
