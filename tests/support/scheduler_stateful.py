"""The scheduler in a simulated cluster, for random histories, and its invariants.

Time is virtual and everything runs in one loop, so that each history is deterministic. Objects are
called by their name; they are in namespace d. Users, the kubelet, the node controller and another
scheduler are the test.
"""

from collections.abc import Container, Mapping
from typing import Any

import msgspec
from aiohttp import web
from support.inmemory_api import InMemoryApi, InMemoryClient, _Request
from support.inmemory_objects import Target, status_response
from support.scheduler_oracle.cycle import decide
from support.scheduler_oracle.objects import Objects, exceeding_gangs, parse_config, pod_request
from support.virtual_controller import CheckedWorld

from batholith.kube.errors import ConnectionLostError
from batholith.local.apiserver.kinds.strategic_merge import strategic_merge
from batholith.model.described_podgroup import encode, podgroup_of
from batholith.model.meta import ObjectMeta
from batholith.model.names import (
    GROUP_NAME,
    NODES,
    PODGROUP,
    PODGROUPS,
    PODS,
    PRIORITYCLASSES,
    QUEUES,
    WHY,
)
from batholith.model.podgroup import PodGroup, PodGroupSpec, PodGroupStatus
from batholith.model.queue import Queue
from batholith.scheduler import conf
from batholith.scheduler.framework.decision import PREEMPTION_BY_SCHEDULER, Decision
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.scheduler.state.core_types import Node, Pod, PriorityClass

Object = dict[str, Any]

ENDED = ("Succeeded", "Failed")
LONGEST_BACKOFF = 65.0
"""Seconds after which everything that failed is tried again."""

ON_EVICTION = {"DisruptionTarget", "batholith.io/ReplacedByScheduler"}
"""Conditions of a pod that is evicted."""

MAX_ROUNDS = 10
"""How often the longest backoff passes until nothing is left to do."""

PRIORITIES = {"low": 1, "high": 1000}
"""Values of priority classes."""

PREEMPTING = conf.DEFAULT.replace("enqueue, allocate", "allocate, preempt, reclaim").replace(
    "name: gang", "name: gang\n    enablePreemptable: false\n    enableReclaimable: false"
)
"""Evicts single pods of gangs, too. Without ``enqueue``, which admits no gang beyond the capability
of its queue."""

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
            if target.subresource == "eviction":
                return self._evict(target, old, body)
            if target.subresource == "status" and _conflict(old, body) is None:
                new = strategic_merge(PODS, old, body)
                return web.json_response(self._store(target.prefix, target.key, new))
        elif target.subresource in ("binding", "eviction"):
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

    def _evict(self, target: Target, old: Object, body: Object) -> web.Response:
        preconditions = body.get("deleteOptions", {}).get("preconditions", {})
        if (problem := _conflict(old, {"metadata": preconditions})) is not None:
            return problem
        self._delete(target.prefix, target.key)
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
        self._has_run_a_cycle = False
        self.writes: list[tuple[str, Object]] = []
        """What schedulers have written."""
        self.bound_by_us: set[str] = set()
        """Uids of pods that the scheduler has bound."""
        self.excused: set[str] = set()
        """Nodes that are overcommitted since they have fewer resources than before, or since
        others have used them before the first cycle of the scheduler."""
        self.changed_nodes: set[str] = set()
        """Nodes that have changed since all was quiet: the scheduler may bind by earlier versions
        of them, if the event is late or the binding was in flight."""
        self.complete: set[str] = set()
        """Uids of PodGroups that were complete once, and names of those that were described."""

    def make_controller(self, client: InMemoryClient) -> Scheduler:
        """A new scheduler, whose first cycle is noted."""
        scheduler = Scheduler(
            client, settings=self.settings, clock=self.clock, recorder=self.recorder
        )
        runner = scheduler.cycle_runner
        run_once, self._has_run_a_cycle = runner.run_once, False

        def run_and_note(**arguments: Any) -> Decision:
            self._has_run_a_cycle = True
            return run_once(**arguments)

        runner.run_once = run_and_note  # type: ignore[method-assign]
        return scheduler

    # What there is.

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
                *(msgspec.convert(each, PodGroup) for each in self.objects(PODGROUPS).values()),
                *self.described().values(),
            ],
            queues=[msgspec.convert(each, Queue) for each in self.objects(QUEUES).values()],
            priority_classes=[
                msgspec.convert(each, PriorityClass)
                for each in self.objects(PRIORITYCLASSES).values()
            ],
            exceeding=(exceeding_gangs(self.controller.cache) if self.controller else ()),
        )

    def described(self) -> dict[str, PodGroup]:
        """The PodGroups that are not stored, by name."""
        if self.controller is None:
            return {}
        return described_podgroups(self.controller, self.pods, self.objects(PODGROUPS))

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

    def put_pod(
        self,
        name: str,
        group: str,
        *,
        cpu: int,
        node: str = "",
        described: PodGroup | None = None,
        priority_class: str = "",
    ) -> None:
        """Create a pod of *group*, which it may describe, or of another scheduler on *node*."""
        annotations = {GROUP_NAME: group} if group else {}
        annotations |= {PODGROUP: encode(described)} if described is not None else {}
        meta = {"annotations": annotations} if group else {}
        requests = {"requests": {"cpu": str(cpu)}} if cpu else {}
        container = {"name": "main", "image": "busybox", "resources": requests}
        spec: Object = {
            "schedulerName": "volcano" if group else "other",
            "containers": [container],
        }
        spec |= {"nodeName": node} if node else {}
        if priority_class:
            spec |= {"priorityClassName": priority_class, "priority": PRIORITIES[priority_class]}
        self.api.put(PODS, name, metadata=meta, spec=spec, status={"phase": "Pending"})

    def put_described_pod(
        self, group: str, queue: str, *, cpu: int, priority_class: str = ""
    ) -> None:
        """Create a pod that describes its PodGroup."""
        spec = PodGroupSpec(
            min_member=1,
            queue=queue,
            min_resources={"cpu": str(cpu)},
            priority_class_name=priority_class,
        )
        name = f"{group}-t-0"
        described = PodGroup(spec=spec)
        self.put_pod(name, group, cpu=cpu, described=described, priority_class=priority_class)

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
            if prefix == PODS.path() and new["spec"].get("nodeName") in self.changed_nodes:
                self._excuse_overcommitted()
        elif prefix == NODES.path() or not self._is_observing():
            self._excuse_overcommitted()
        if prefix == NODES.path():
            self.changed_nodes.add(new["metadata"]["name"])
        if prefix == PODS.path() and (group := _group_of(new)):
            self._note_complete(group)

    def _note_complete(self, group: str) -> None:
        """Note whether a gang has enough pods on nodes."""
        podgroup = self.objects(PODGROUPS).get(group)
        pods = bound(self.members(group))
        if podgroup is None and any(PODGROUP in pod["metadata"]["annotations"] for pod in pods):
            self.complete.add(group)
        elif podgroup is not None and len(pods) >= podgroup["spec"]["minMember"]:
            self.complete.add(podgroup["metadata"]["uid"])

    def _check_write(self, prefix: str, change: str, new: Object, old: Object) -> None:
        name = new["metadata"]["name"]
        if prefix == PODS.path():
            self._check_pod_write(name, change, new, old)
            return
        assert change == "MODIFIED", f"{name} is {change}"
        assert prefix in (PODGROUPS.path(), QUEUES.path()), f"{prefix} is written"
        assert new["spec"] == old.get("spec"), f"INV-OW-2: the spec of {name} is written"
        if prefix == QUEUES.path():
            changed = {k for k, v in new["status"].items() if old["status"].get(k) != v}
            assert changed <= {"allocated"}, f"{name}: {changed}"

    def _check_pod_write(self, name: str, change: str, new: Object, old: Object) -> None:
        node = old["spec"].get("nodeName")
        if change == "DELETED" or _ends(new) != _ends(old):
            assert "DisruptionTarget" in _conditions(old), f"{name} is evicted without a condition"
            assert node and old["status"]["phase"] not in ENDED, f"{name} is deleted"
        elif new["spec"] == old["spec"]:
            self._check_annotations(new, old)
            changed = _conditions(new).items() ^ _conditions(old).items()
            kinds = {kind for kind, _ in changed}
            assert kinds <= (ON_EVICTION if node else {"PodScheduled"}), f"{name}: {kinds}"
        else:
            assert not node, f"{name} is bound twice"
            assert {**old["spec"], "nodeName": new["spec"]["nodeName"]} == new["spec"], name
            self.bound_by_us.add(new["metadata"]["uid"])
            self._check_binding(new)

    def _check_annotations(self, new: Object, old: Object) -> None:
        """Check that the only annotation that is written is the explanation of a described gang."""
        after, before = (each["metadata"].get("annotations", {}) for each in (new, old))
        changed = {name for name in after | before if after.get(name) != before.get(name)}
        members = self.members(_group_of(new))
        is_described = any(PODGROUP in each["metadata"]["annotations"] for each in members)
        allowed = {WHY} if is_described else set()
        assert changed <= allowed, f"{new['metadata']['name']}: {changed}"

    def _check_binding(self, pod: Object) -> None:
        """Check the limit of the queue after a binding."""
        name = self._queue_of(pod)
        queue = self.objects(QUEUES).get(name)
        limit = queue["spec"].get("capability", {}).get("cpu") if queue else None
        if limit:
            used = sum(cpu_of(each) for each in self._active_in(name))
            assert used <= int(limit), f"queue limit: {used} of {limit} CPUs"

    def _queue_of(self, pod: Object) -> str:
        """The queue of a pod by its PodGroup; empty if it has none."""
        group = self.objects(PODGROUPS).get(_group_of(pod))
        if group is not None:
            return str(group["spec"]["queue"])
        meta = msgspec.convert(pod["metadata"], ObjectMeta)
        described = podgroup_of(meta, PodGroupStatus())
        return described.spec.queue if described is not None else ""

    def _active_in(self, queue: str) -> list[Object]:
        return [
            pod
            for pod in self.pods.values()
            if self._queue_of(pod) == queue
            and pod in bound([pod])
            and pod["status"]["phase"] not in ENDED
            and not _ends(pod)
        ]

    def used_of(self, node: str) -> int:
        """CPUs that pods on *node* use."""
        return sum(
            cpu_of(pod)
            for pod in self.pods.values()
            if pod["spec"].get("nodeName") == node and pod["status"]["phase"] not in ENDED
        )

    def _is_observing(self) -> bool:
        """Whether a scheduler runs that has had its first cycle."""
        alive = self._client is not None and not self._client.killed
        return alive and self._has_run_a_cycle

    async def start(self) -> None:
        """Start a scheduler; it is not checked for what it finds."""
        if self.controller is None:
            self._excuse_overcommitted()
        await super().start()

    def _excuse_overcommitted(self) -> None:
        for name, node in self.objects(NODES).items():
            if self.used_of(name) > int(node["status"]["allocatable"]["cpu"]):
                self.excused.add(name)

    # At rest.

    async def run_until_quiet(self) -> None:
        """Wait until nothing is left to do, also after the longest backoff."""
        self.api.dies_after = None
        await self.run_until_idle()  # a write in flight may be the one at which it dies
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
            self._check_node(name, int(node["status"]["allocatable"]["cpu"]))
        self.changed_nodes.clear()
        self._check_nothing_is_schedulable()
        for name in self.objects(PODGROUPS):
            self._check_gang(name)
            self._check_not_stranded(name)
        for name in self.described():
            self._check_described(name)

    def _check_node(self, name: str, allocatable: int) -> None:
        """Check that a node which others have filled, too, has no pod of ours in excess."""
        pods = [
            pod
            for pod in self.pods.values()
            if pod["spec"].get("nodeName") == name
            and pod["status"]["phase"] not in ENDED
            and not _ends(pod)
        ]
        used = sum(map(cpu_of, pods))
        if used <= allocatable:
            self.excused.discard(name)
            return
        if name in self.excused:
            return
        mine = sum(cpu_of(pod) for pod in pods if pod["metadata"]["uid"] in self.bound_by_us)
        assert mine <= allocatable, f"node {name} is overcommitted by {mine} CPUs of ours"
        ours = [pod["metadata"]["name"] for pod in pods if cpu_of(pod) and _group_of(pod)]
        assert not ours, f"node {name} is overcommitted, and has {ours}"

    def _check_not_stranded(self, name: str) -> None:
        """Check that a gang that was never complete has enough pods on nodes, or none."""
        group = self.objects(PODGROUPS)[name]
        pods = [pod for pod in bound(self.members(name)) if not _ends(pod)]
        active = [pod for pod in pods if pod["status"]["phase"] not in ENDED]
        ready = sum(pod["status"]["phase"] != "Failed" for pod in pods)
        if not {group["metadata"]["uid"], name} & self.complete and active:
            assert ready >= group["spec"]["minMember"], f"{name} is stranded with {ready} pods"

    def _check_nothing_is_schedulable(self) -> None:
        """Check that the oracle would neither admit a gang nor allocate a pod."""
        text = self.settings.conf.replace(", preempt, reclaim", "")  # the oracle evicts nothing
        outcome = decide(self.snapshot(), parse_config(text))
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

    def _check_described(self, name: str) -> None:
        """Check that a pod that waits has a report, which keeps its PodGroup from being created."""
        for pod in self.members(name):
            conditions = {each["type"]: each for each in pod["status"].get("conditions", ())}
            if pod in bound([pod]) or PODGROUP not in pod["metadata"]["annotations"] or _ends(pod):
                continue
            assert "PodScheduled" in conditions, f"{pod['metadata']['name']} has no report"


class PreemptingHistory(SchedulerHistory):
    """The same with a scheduler that evicts pods."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = SchedulerSettings(conf=PREEMPTING)
        self.evictions = 0
        """Pods that the scheduler has evicted."""
        for name, value in PRIORITIES.items():
            self.api.put(PRIORITYCLASSES, name, value=value)

    def _check_pod_write(self, name: str, change: str, new: Object, old: Object) -> None:
        super()._check_pod_write(name, change, new, old)
        if change == "DELETED" or _ends(new) != _ends(old):
            self.evictions += 1
            is_preempted = _conditions(old)["DisruptionTarget"][1] == PREEMPTION_BY_SCHEDULER
            assert not is_preempted or self._is_wanted(old), f"{name} is evicted for no pod"

    def _is_wanted(self, victim: Object) -> bool:
        """Whether a pod that waits is nominated for the node of *victim*, or, as it may need the
        quota of its queue only, for any node if it is in the queue of *victim*.

        That quota is free once the eviction is decided, so the pod may be bound before the eviction
        is sent; it does not run yet.
        """
        node, queue = victim["spec"]["nodeName"], self._queue_of(victim)
        for pod in self.pods.values():
            uid = pod["metadata"]["uid"]
            if pod["status"]["phase"] != "Pending" or uid == victim["metadata"]["uid"]:
                continue
            nominated, is_same_queue = (
                pod["status"].get("nominatedNodeName"),
                self._queue_of(pod) == queue,
            )
            if pod in bound([pod]):
                if is_same_queue and uid in self.bound_by_us:
                    return True
            elif nominated and (nominated == node or is_same_queue):
                return True
        return False

    async def run_until_quiet(self) -> None:
        """Let evicted pods terminate, too."""
        for _ in range(MAX_ROUNDS):
            await super().run_until_quiet()
            left = [name for name, pod in self.pods.items() if _ends(pod)]
            if not left:
                return
            for name in left:
                self.api.force_delete(PODS, name)
        raise AssertionError("INV-PIPE-1: it never stops to evict")


def described_podgroups(
    scheduler: Scheduler, pods: Mapping[str, Object], stored: Container[str]
) -> dict[str, PodGroup]:
    """The PodGroups that *pods* describe and that are not *stored*, by name.

    Their phases are kept by *scheduler* in memory alone.
    """
    found: dict[str, PodGroup] = {}
    for pod in pods.values():
        meta = msgspec.convert(pod["metadata"], ObjectMeta)
        gang = scheduler.cache.gangs.get(f"{meta.namespace}/{_group_of(pod)}")
        group = podgroup_of(meta, PodGroupStatus(phase=gang.phase if gang is not None else ""))
        if group is not None and group.metadata.name not in stored:
            found[group.metadata.name] = group
    return found


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
