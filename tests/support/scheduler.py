"""Builders for the scheduler's tests: objects as decoded from a watch."""

from batholith.model.hypernode import HyperNode
from batholith.model.job import NetworkTopology
from batholith.model.meta import ObjectMeta
from batholith.model.names import GROUP_NAME, QUEUE_GATE, TASK_SPEC
from batholith.model.pod_resources import Resources
from batholith.model.podgroup import (
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    SubGroupPolicy,
)
from batholith.model.queue import Queue, QueueSpec, QueueStatus
from batholith.scheduler import conf
from batholith.scheduler.cycle_runner import CycleRunner
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.framework.framework import Framework
from batholith.scheduler.framework.podgroup_status import PodGroupReport
from batholith.scheduler.state.cache.cache import SchedulerCache
from batholith.scheduler.state.cache.events import DeclarationsChanged, HyperNodeEvent
from batholith.scheduler.state.core_types import (
    Affinity,
    Container,
    ContainerPort,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSchedulingGate,
    PodSpec,
    PodStatus,
    Taint,
    Toleration,
)
from batholith.scheduler.state.podinfo.declared_fields import PodFields
from batholith.scheduler.state.resources import amounts, pod_request

Amount = str | int | float


def node(
    name: str,
    *,
    labels: dict[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    cordoned: bool = False,
    extra: dict[str, Amount] | None = None,
    **offers: Amount,
) -> Node:
    """A node that offers 8 CPU, 16Gi and 110 pods, unless given."""
    offered: dict[str, Amount] = {"cpu": 8, "memory": "16Gi", "pods": 110}
    return Node(
        metadata=ObjectMeta(name=name, uid=f"node-{name}", labels=labels or {}),
        spec=NodeSpec(unschedulable=cordoned, taints=taints),
        status=NodeStatus(allocatable=offered | offers | (extra or {})),
    )


def pod(
    name: str,
    group: str = "",
    *,
    role: str = "",
    node_name: str = "",
    phase: str = "Pending",
    terminating: bool = False,
    gates: tuple[str, ...] = (),
    gated_only_by_queue: bool = False,
    scheduler: str = "volcano",
    selector: dict[str, str] | None = None,
    affinity: Affinity | None = None,
    tolerations: tuple[Toleration, ...] = (),
    priority: int | None = None,
    ports: tuple[ContainerPort, ...] = (),
    extra: dict[str, Amount] | None = None,
    labels: dict[str, str] | None = None,
    **requests: Amount,
) -> Pod:
    """A pod of *group* that requests one CPU unless given; ``cpu=0`` requests nothing."""
    asked: dict[str, Amount] = {"cpu": 1} | requests | (extra or {})
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ns",
            uid=f"uid-{name}",
            labels=labels or {},
            annotations=({GROUP_NAME: group} if group else {})
            | ({TASK_SPEC: role} if role else {})
            | ({QUEUE_GATE: "true"} if gated_only_by_queue else {}),
            deletion_timestamp="2026-01-01T00:00:00Z" if terminating else None,
        ),
        spec=PodSpec(
            scheduler_name=scheduler,
            node_name=node_name,
            priority=priority,
            containers=(
                Container(
                    resources=Resources(requests={k: v for k, v in asked.items() if v}),
                    ports=ports,
                ),
            ),
            node_selector=selector or {},
            affinity=affinity,
            tolerations=tolerations,
            scheduling_gates=tuple(PodSchedulingGate(name=gate) for gate in gates),
        ),
        status=PodStatus(phase=phase),
    )


def podgroup(
    name: str,
    min_member: int,
    *,
    phase: str = "Inqueue",
    queue: str = "default",
    roles: dict[str, int] | None = None,
    priority_class: str = "",
    resources: dict[str, str | int | float] | None = None,
    created: str = "2026-01-01T00:00:00Z",
    topology: NetworkTopology | None = None,
    sub_groups: tuple[SubGroupPolicy, ...] = (),
) -> PodGroup:
    """A PodGroup, Inqueue unless *phase* is given."""
    return PodGroup(
        metadata=ObjectMeta(
            name=name, namespace="ns", uid=f"group-{name}", creation_timestamp=created
        ),
        spec=PodGroupSpec(
            min_member=min_member,
            min_task_member=roles or {},
            queue=queue,
            priority_class_name=priority_class,
            min_resources=resources,
            network_topology=topology,
            sub_group_policy=sub_groups,
        ),
        status=PodGroupStatus(phase=phase),
    )


def queue(
    name: str = "default",
    *,
    state: str = "Open",
    weight: int = 1,
    priority: int = 0,
    capability: dict[str, str | int | float] | None = None,
) -> Queue:
    """An open queue without limits unless given."""
    return Queue(
        metadata=ObjectMeta(name=name, uid=f"queue-{name}"),
        spec=QueueSpec(weight=weight, capability=capability or {}, priority=priority),
        status=QueueStatus(state=state),
    )


class SchedulerWorld:
    """A cluster, and who decides over it."""

    def __init__(
        self,
        text: str = conf.DEFAULT,
        *,
        single: str = "default-scheduler",
        queue_gates: bool = False,
        place_at_creation: bool = False,
    ) -> None:
        read = conf.load(text)
        self.cluster = SchedulerCache(
            pod_scheduler_names=(single,),
            queue_gates=queue_gates,
            place_at_creation=place_at_creation,
        )
        self.core = CycleRunner(self.cluster, Framework(read.tiers), read.actions)
        self.cluster.update_queue(None, queue())
        self.pod_objects: dict[str, Pod] = {}
        self.time: float | None = None
        """Unix time of the next cycle; that of the monotonic clock by default."""

    def reload(self, text: str) -> None:
        """Use another configuration."""
        read = conf.load(text)
        self.core.configure(Framework(read.tiers), read.actions)
        self._reclassify()

    def declare(self, fields: PodFields) -> None:
        """Let plugins read *fields* of pods."""
        self.cluster.pod_fields = fields
        self._reclassify()

    def _reclassify(self) -> None:
        for each in self.pod_objects.values():
            self.cluster.apply(DeclarationsChanged(each))

    def upsert(self, *objects: Node | Pod | PodGroup | Queue | HyperNode) -> None:
        """Add or update *objects*."""
        for each in objects:
            match each:
                case Node():
                    self.cluster.update_node(None, each)
                case Pod():
                    self.cluster.native.update_pod(self.pod_objects.get(each.metadata.uid), each)
                    self.pod_objects[each.metadata.uid] = each
                case PodGroup():
                    self.cluster.described.update_podgroup(None, each)
                case Queue():
                    self.cluster.update_queue(None, each)
                case HyperNode():
                    self.cluster.apply(HyperNodeEvent(None, each))

    def remove(self, deleted: Node | Pod | PodGroup | Queue | HyperNode) -> None:
        """Let an object go."""
        match deleted:
            case Node():
                self.cluster.update_node(deleted, None)
            case Pod():
                self.cluster.native.update_pod(deleted, None)
                self.pod_objects.pop(deleted.metadata.uid, None)
            case PodGroup():
                self.cluster.described.update_podgroup(deleted, None)
            case Queue():
                self.cluster.update_queue(deleted, None)
            case HyperNode():
                self.cluster.apply(HyperNodeEvent(deleted, None))

    def schedule(self) -> dict[str, str]:
        """Run a cycle; return the node of each pod that it allocated."""
        return {each.name: each.node for each in self.decision().placements}

    def decision(self, *, now: float = 0.0, busy: bool = False) -> Decision:
        """Run a cycle and validate the node matrix."""
        decision = self.core.run_once(now=now, time=self.time, busy=busy)
        self.validate()
        return decision

    def validate(self) -> None:
        """Check that node matrix and task table are consistent."""
        self.cluster.node_matrix.validate()
        self.cluster.task_table.validate(self.cluster.gangs.values())

    def report(self, group: str, *, now: float = 0.0, busy: bool = False) -> PodGroupReport:
        """Run a cycle and return its report on *group*."""
        key = f"ns/{group}"
        self.cluster.changes.mark(self.cluster.gangs[key])
        reports = self.decision(now=now, busy=busy).reports
        return next(report for report in reports if report.key == key)

    def fit_message(self, group: str) -> str:
        """Why a group is pending: the rejection, or the first fit error."""
        finding = self.cluster.gangs[f"ns/{group}"].diagnosis
        if finding is None:
            return ""
        return finding.message or next(iter(finding.fit_errors.values())).message


def reference_fits(request: Pod, free: Node) -> bool:
    """Whether an empty *there* may take *asked*, by the rules written out longhand."""
    tolerant = any(t.operator == "Exists" and not t.key for t in request.spec.tolerations)
    if (free.spec.unschedulable or free.spec.taints) and not tolerant:
        return False
    for key, value in request.spec.node_selector.items():
        if free.metadata.labels.get(key) != value:
            return False
    offered = amounts(free.status.allocatable)
    return all(offered.get(name, 0) >= n for name, n in pod_request(request.spec).items())
