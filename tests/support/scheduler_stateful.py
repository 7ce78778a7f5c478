"""The scheduler in a simulated cluster, for random histories, and its invariants.

Time is virtual and everything runs in one loop, so that each history is deterministic. Objects are
called by their name; they are in namespace d. Users, the kubelet, the node controller and another
scheduler are the test.
"""

from typing import Any

import msgspec
from aiohttp import web
from support.inmemory_api import InMemoryApi, InMemoryClient, _Request
from support.inmemory_objects import Target, status_response
from support.scheduler_oracle.cycle import decide
from support.scheduler_oracle.objects import Objects, parse_config, pod_request
from support.virtual_controller import CheckedWorld

from batholith.apiserver.kinds.strategic_merge import strategic_merge
from batholith.kube.errors import ConnectionLostError
from batholith.model.names import GROUP_NAME, NODES, PODGROUPS, PODS, QUEUES, Resource
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Queue
from batholith.scheduler import conf
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.scheduler.state.core_types import Node, Pod
from batholith.scheduler.state.resources import amounts

Object = dict[str, Any]

ENDED = ("Succeeded", "Failed")
LONGEST_BACKOFF = 65.0
"""Seconds after which everything that failed is tried again."""

MAX_ROUNDS = 10
"""How often the longest backoff passes until nothing is left to do."""

QUEUE_LIMIT = 12
"""CPUs that the queue with a limit may have."""


class SchedulerApi(InMemoryApi):
    """A server with bindings and the status of pods."""

    dies_after: tuple[int, bool] | None = None
    """After how many more writes the client is killed, and whether the last one is carried out."""

    async def serve(self, client: InMemoryClient, request: _Request) -> bytes:
        """Handle one request, or let the process die at it."""
        if self.dies_after is None or request.method == "GET":
            return await super().serve(client, request)
        left, carried_out = self.dies_after
        self.dies_after = (left - 1, carried_out) if left else None
        if left:
            return await super().serve(client, request)
        try:
            if carried_out:
                await super().serve(client, request)
        finally:
            client.killed = True
        raise ConnectionLostError("dead")

    def _handle_object(self, request: web.Request, target: Target, body: Any) -> web.Response:
        old = self.stores.setdefault(target.prefix, {}).get(target.key)
        if old is not None and target.prefix == PODS.path() and isinstance(body, dict):
            if target.subresource == "binding":
                return self._bind(target, old, body)
            if target.subresource == "status" and _conflict(old, body) is None:
                new = strategic_merge(PODS, old, body)
                return web.json_response(self._store(target.prefix, target.key, new))
        elif target.subresource == "binding":
            return status_response(404, "NotFound", f"{target.key} not found")
        return super()._handle_object(request, target, body)

    def _bind(self, target: Target, old: Object, body: Object) -> web.Response:
        problem = _conflict(old, body)
        if problem is None and (old["spec"].get("nodeName") or _ends(old)):
            problem = status_response(409, "Conflict", f"pod {target.key} is already assigned")
        if problem is not None:
            return problem
        spec = {**old["spec"], "nodeName": body["target"]["name"]}
        self._store(target.prefix, target.key, {**old, "spec": spec})
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)


def _conflict(old: Object, body: Object) -> web.Response | None:
    """Return the refusal of a write whose preconditions do not hold."""
    for name in ("uid", "resourceVersion"):
        if body["metadata"].get(name) not in (None, "", old["metadata"][name]):
            return status_response(409, "Conflict", f"{name} is {old['metadata'][name]}")
    return None


def _ends(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


class SchedulerHistory(CheckedWorld[Scheduler]):
    """The server with at most one scheduler, and what others do."""

    def __init__(self) -> None:
        super().__init__()
        self.api: SchedulerApi = SchedulerApi(self.clock, self.loop)
        self.api.on_change = self._on_change
        self.settings = SchedulerSettings(conf=conf.DEFAULT)
        self.writes: list[tuple[str, Object]] = []
        """What schedulers have written."""
        self.bound_by_us: set[str] = set()
        """Uids of pods that the scheduler has bound."""
        self.overcommitted_by_others: set[str] = set()
        """Nodes that others have given more than they have."""
        self.complete: set[str] = set()
        """Uids of PodGroups that were complete once."""

    def make_controller(self, client: InMemoryClient) -> Scheduler:
        """A new scheduler."""
        return Scheduler(client, settings=self.settings, clock=self.clock, recorder=self.recorder)

    # What there is.

    def objects(self, resource: Resource) -> dict[str, Object]:
        """Objects by name, in their order."""
        return {
            key.rpartition("/")[2]: obj for key, obj in sorted(self.api.objects(resource).items())
        }

    @property
    def pods(self) -> dict[str, Object]:
        return self.objects(PODS)

    def members(self, group: str) -> list[Object]:
        """The pods of a gang."""
        return [pod for pod in self.pods.values() if _group_of(pod) == group]

    def state(self) -> dict[str, object]:
        """What the scheduler has written, without texts and times."""
        found: dict[str, object] = {}
        for name, pod in self.pods.items():
            found[f"pod {name}"] = (pod["spec"].get("nodeName"), _conditions(pod).keys())
        for name, group in self.objects(PODGROUPS).items():
            status = {**group.get("status", {}), "conditions": _conditions(group)}
            found[f"group {name}"] = status
        for name, queue in self.objects(QUEUES).items():
            found[f"queue {name}"] = queue["status"].get("allocated")
        return found

    def snapshot(self) -> Objects:
        """All objects, for the oracle."""
        return Objects(
            nodes=[msgspec.convert(each, Node) for each in self.objects(NODES).values()],
            pods=[msgspec.convert(each, Pod) for each in self.pods.values()],
            podgroups=[
                msgspec.convert(each, PodGroup) for each in self.objects(PODGROUPS).values()
            ],
            queues=[msgspec.convert(each, Queue) for each in self.objects(QUEUES).values()],
        )

    # What others do.

    def put_node(self, name: str, *, cpu: int, cordoned: bool = False) -> None:
        """Create or update a node."""
        offered = {"cpu": str(cpu), "memory": "64Gi", "pods": "110"}
        spec = {"unschedulable": cordoned}
        self.api.put(NODES, name, spec=spec, status={"allocatable": offered})

    def put_queue(self, name: str, *, state: str = "Open", **spec: Any) -> None:
        """Create or update a queue."""
        self.api.put(QUEUES, name, spec={"weight": 1, **spec}, status={"state": state})

    def put_group(self, name: str, minimum: int, queue: str, *, cpu: int) -> None:
        """Create the PodGroup of pods that request *cpu* each."""
        resources = {"cpu": str(minimum * cpu)}
        spec = {"minMember": minimum, "queue": queue, "minResources": resources}
        self.api.put(PODGROUPS, name, spec=spec)

    def put_pod(self, name: str, group: str, *, cpu: int, node: str = "") -> None:
        """Create a pod of *group*, or of another scheduler on *node*."""
        meta = {"annotations": {GROUP_NAME: group}} if group else {}
        requests = {"requests": {"cpu": str(cpu)}} if cpu else {}
        container = {"name": "main", "image": "busybox", "resources": requests}
        spec = {"schedulerName": "volcano" if group else "other", "containers": [container]}
        spec |= {"nodeName": node} if node else {}
        self.api.put(PODS, name, metadata=meta, spec=spec, status={"phase": "Pending"})

    def bind_as_another(self, name: str, node: str) -> None:
        """Another scheduler binds a pod of ours."""
        self.api.put(PODS, name, spec={"nodeName": node})

    def remove_node(self, name: str) -> None:
        """Delete a node; its pods stay until :meth:`collect_pods`."""
        self.api.remove(NODES, name)

    def collect_pods(self) -> None:
        """Remove the pods of nodes that do not exist, as the pod garbage collector does."""
        nodes = self.objects(NODES)
        for name, pod in self.pods.items():
            node = pod["spec"].get("nodeName")
            if node and node not in nodes:
                self.api.force_delete(PODS, name)

    # What happens.

    def _on_change(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        if self.api.requesting_client:
            self.controller_writes += 1
            self.writes.append((prefix, new))
            try:
                self._check_write(prefix, change, new, old or {})
            except AssertionError as error:
                self.violations.append(f"{error}")
        elif prefix in (PODS.path(), NODES.path()):
            self._note_overcommitted()
        if prefix == PODS.path() and (group := _group_of(new)) in self.objects(PODGROUPS):
            podgroup = self.objects(PODGROUPS)[group]
            if len(bound(self.members(group))) >= podgroup["spec"]["minMember"]:
                self.complete.add(podgroup["metadata"]["uid"])

    def _check_write(self, prefix: str, change: str, new: Object, old: Object) -> None:
        name = new["metadata"]["name"]
        assert change == "MODIFIED", f"{name} is {change}"
        if prefix == PODS.path():
            if new["spec"] == old["spec"]:
                assert not new["spec"].get("nodeName"), f"{name} is bound, and its status written"
                return
            assert not old["spec"].get("nodeName"), f"{name} is bound twice"
            assert {**old["spec"], "nodeName": new["spec"]["nodeName"]} == new["spec"], name
            self.bound_by_us.add(new["metadata"]["uid"])
            self._check_binding(new)
            return
        assert prefix in (PODGROUPS.path(), QUEUES.path()), f"{prefix} is written"
        assert new["spec"] == old.get("spec"), f"INV-OW-2: the spec of {name} is written"
        if prefix == QUEUES.path():
            changed = {k for k, v in new["status"].items() if old["status"].get(k) != v}
            assert changed <= {"allocated"}, f"{name}: {changed}"

    def _check_binding(self, pod: Object) -> None:
        """Check the limit of the queue after a binding."""
        group = self.objects(PODGROUPS).get(_group_of(pod))
        queue = group and self.objects(QUEUES).get(group["spec"]["queue"])
        limit = queue["spec"].get("capability", {}).get("cpu") if queue else None
        if group is not None and limit:
            used = sum(cpu_of(each) for each in self._active_in(group["spec"]["queue"]))
            assert used <= int(limit), f"queue limit: {used} of {limit} CPUs"

    def _active_in(self, queue: str) -> list[Object]:
        groups = self.objects(PODGROUPS)
        return [
            pod
            for pod in self.pods.values()
            if groups.get(_group_of(pod), {}).get("spec", {}).get("queue") == queue
            and pod in bound([pod])
            and pod["status"]["phase"] not in ENDED
            and not _ends(pod)
        ]

    def used_of(self, node: str, *, ours: bool = False) -> int:
        """CPUs that pods on *node* use; only those that the scheduler has bound with *ours*."""
        return sum(
            cpu_of(pod)
            for pod in self.pods.values()
            if pod["spec"].get("nodeName") == node
            and pod["status"]["phase"] not in ENDED
            and (not ours or pod["metadata"]["uid"] in self.bound_by_us)
        )

    def _note_overcommitted(self) -> None:
        """Note the nodes to which others have just given too much, which is not our fault."""
        for name, node in self.objects(NODES).items():
            if self.used_of(name) > int(node["status"]["allocatable"]["cpu"]):
                self.overcommitted_by_others.add(name)

    # At rest.

    async def run_until_quiet(self) -> None:
        """Wait until nothing is left to do, also after the longest backoff."""
        self.api.dies_after = None
        if self._client is not None and self._client.killed:
            await self.kill()
        await super().run_until_quiet()
        for _ in range(MAX_ROUNDS):
            asked = self.api.requests
            await self.pass_time(LONGEST_BACKOFF)
            if asked == self.api.requests:
                return
            await super().run_until_quiet()
        raise AssertionError("INV-PIPE-1: it never becomes idle")

    def check_invariants(self) -> None:
        """Check that all is as it should be when the scheduler has nothing left to do.

        Raises:
            AssertionError: it is not.
        """
        for name, node in self.objects(NODES).items():
            allocatable = int(node["status"]["allocatable"]["cpu"])
            if name not in self.overcommitted_by_others:
                assert self.used_of(name) <= allocatable, f"node {name} is overcommitted"
        for name in self.overcommitted_by_others & self.objects(NODES).keys():
            allocatable = amounts(self.objects(NODES)[name]["status"]["allocatable"])["cpu"] // 1000
            if self.used_of(name) <= allocatable:
                self.overcommitted_by_others.discard(name)
        self._check_nothing_is_schedulable()
        for name in self.objects(PODGROUPS):
            self._check_gang(name)

    def _check_nothing_is_schedulable(self) -> None:
        """Check that the oracle would neither admit a gang nor allocate a pod."""
        outcome = decide(self.snapshot(), parse_config(self.settings.conf))
        assert not outcome.placements, f"schedulable: {outcome.placements}"
        assert not outcome.enqueued, f"admissible: {outcome.enqueued}"

    def _check_gang(self, name: str) -> None:
        """Check what the scheduler has written about a gang."""
        status = self.objects(PODGROUPS)[name].get("status", {})
        members = self.members(name)
        for phase in ("Running", "Succeeded", "Failed"):
            count = sum(
                pod["status"]["phase"] == phase and not (phase == "Running" and _ends(pod))
                for pod in members
            )
            assert status.get(phase.lower(), 0) == count, f"{name}: {status}, {count} {phase}"


def bound(pods: list[Object]) -> list[Object]:
    """Return the pods that have a node."""
    return [pod for pod in pods if pod["spec"].get("nodeName")]


def cpu_of(pod: Object) -> int:
    """CPUs that *pod* requests."""
    return pod_request(msgspec.convert(pod, Pod)).get("cpu", 0) // 1000


def _conditions(owner: Object) -> dict[str, tuple[str, str]]:
    conditions = owner.get("status", {}).get("conditions", ())
    return {each["type"]: (each["status"], each["reason"]) for each in conditions}


def _group_of(pod: Object) -> str:
    group: str = pod["metadata"].get("annotations", {}).get(GROUP_NAME, "")
    return group
