"""What the oracle reads: objects as decoded from a watch, and the facts derived from them."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import yaml
from support.scheduler_filters import host_ports

from batholith.model.hypernode import HyperNode
from batholith.model.meta import ObjectMeta
from batholith.model.podgroup import PodGroup, PodGroupStatus
from batholith.model.queue import Queue
from batholith.scheduler.state.cache.cache import SchedulerCache
from batholith.scheduler.state.core_types import Container, Node, Pod, PriorityClass
from batholith.scheduler.state.resources import amounts

Amounts = dict[str, int]
Request = Mapping[str, int]

GROUP_NAME = "scheduling.k8s.io/group-name"
ROLE = "volcano.sh/task-spec"
PRIORITY = "volcano.sh/task-priority"
SCORERS = ("nodeorder", "binpack")


def add(target: Amounts, delta: Request, factor: int = 1) -> None:
    """Add *delta* times *factor* to *target*."""
    for name, units in delta.items():
        target[name] = target.get(name, 0) + units * factor


def total(items: Iterable[Request]) -> Amounts:
    """Return the sum of *items*."""
    found: Amounts = {}
    for item in items:
        add(found, item)
    return found


def positive(left: Request, right: Request) -> Amounts:
    """Return by how much *left* exceeds *right*, where it does."""
    return {
        name: units - right.get(name, 0)
        for name, units in left.items()
        if units > right.get(name, 0)
    }


def lacks(request: Request, free: Request) -> bool:
    """Return whether *free* has less of a requested resource; the number of pods is no limit."""
    return any(
        units > 0 and units > free.get(name, 0) for name, units in request.items() if name != "pods"
    )


@dataclass(frozen=True, slots=True)
class Config:
    """A scheduler configuration, as far as the oracle knows it."""

    actions: tuple[str, ...]
    plugins: tuple[str, ...]
    """In order, tiers joined."""

    arguments: Mapping[str, Mapping[str, object]]
    """By plugin."""

    single_names: tuple[str, ...] = ("default-scheduler",)
    gang_names: tuple[str, ...] = ("volcano",)

    @property
    def has_enqueue(self) -> bool:
        """Whether gangs are admitted by votes."""
        return "enqueue" in self.actions

    @property
    def scorers(self) -> tuple[str, ...]:
        """The plugins that score nodes."""
        return tuple(name for name in self.plugins if name in SCORERS)


def parse_config(text: str) -> Config:
    """Parse a configuration in Volcano's format."""
    parsed = yaml.safe_load(text)
    plugins = [plugin for tier in parsed["tiers"] for plugin in tier["plugins"]]
    return Config(
        actions=tuple(each.strip() for each in parsed["actions"].split(",")),
        plugins=tuple(each["name"] for each in plugins),
        arguments={each["name"]: each.get("arguments") or {} for each in plugins},
    )


def exceeding_gangs(cache: SchedulerCache) -> list[str]:
    """Return the keys of the gangs of which the scheduler has found that the nodes cannot take
    them."""
    found = ((key, gang.diagnosis) for key, gang in cache.gangs.items())
    return [key for key, diagnosis in found if diagnosis is not None and diagnosis.exceeds_nodes]


@dataclass(slots=True)
class Objects:
    """All objects of a cluster, and what the scheduler knows beyond them."""

    nodes: Sequence[Node]
    pods: Sequence[Pod]
    podgroups: Sequence[PodGroup]
    queues: Sequence[Queue]
    priority_classes: Sequence[PriorityClass] = ()
    hypernodes: Sequence[HyperNode] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)
    """Node by uid of a pod whose binding is not observed yet."""

    phases: Mapping[str, str] = field(default_factory=dict)
    """Phases by key of a PodGroup, where they differ from its status."""

    held: Mapping[str, str] = field(default_factory=dict)
    """Node by uid of a pending pod for which resources are held there."""

    exceeding: Collection[str] = ()
    """Keys of gangs of which the scheduler has found that the nodes cannot take them."""

    def node_of(self, pod: Pod) -> str:
        """Return the node of *pod*; empty if it has none."""
        return pod.spec.node_name or self.assumed.get(pod.metadata.uid, "")

    def uses_node(self, pod: Pod) -> bool:
        """Return whether *pod* uses resources of its node."""
        return pod.status.phase not in ("Succeeded", "Failed") and bool(self.node_of(pod))


def pod_request(pod: Pod) -> Amounts:
    """Return what a node must have free for *pod*."""
    regular = total(_container_request(each) for each in pod.spec.containers)
    side: Amounts = {}
    peak: Amounts = {}
    for container in pod.spec.init_containers:
        request = _container_request(container)
        if container.restart_policy == "Always":
            add(regular, request)
            add(side, request)
            candidate = dict(side)
        else:
            candidate = total((request, side))
        peak = _larger(peak, candidate)
    return total((_larger(regular, peak), amounts(pod.spec.overhead), {"pods": 1}))


def _larger(left: Request, right: Request) -> Amounts:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {*left, *right}}


def _container_request(container: Container) -> Amounts:
    return amounts({**container.resources.limits, **container.resources.requests})


class PodFacts:
    """A pod, as the oracle sees it."""

    def __init__(self, pod: Pod) -> None:
        meta, spec = pod.metadata, pod.spec
        self.pod = pod
        self.uid = meta.uid
        self.name = meta.name
        self.namespace = meta.namespace
        self.labels = meta.labels
        self.role = meta.annotations.get(ROLE) or meta.labels.get(ROLE, "")
        self.request = pod_request(pod)
        self.is_best_effort = not any(
            units for name, units in self.request.items() if name != "pods"
        )
        affinity = spec.affinity
        self.node_affinity = affinity.node_affinity if affinity else None
        self.ports = sorted(host_ports(pod))
        self.mark: object = self.role or self.kind
        """What is given up in an attempt if the pod does not fit."""

    @property
    def kind(self) -> str:
        """Equal for pods that differ in nothing that the oracle uses."""
        spec = self.pod.spec
        constraints = (spec.node_selector, spec.affinity, spec.tolerations, self.ports)
        return repr((sorted(self.request.items()), constraints))

    def order(self, *, by_priority: bool) -> tuple[object, ...]:
        """Sort key in a gang: best-effort last, priority, index in the name, age."""
        priority = -self._priority() if by_priority else 0
        created = self.pod.metadata.creation_timestamp or ""
        return (self.is_best_effort, priority, _index(self.name), created, self.uid)

    def _priority(self) -> int:
        annotated = self.pod.metadata.annotations.get(PRIORITY)
        if annotated is not None:
            return int(annotated)
        return 1 if self.pod.spec.priority is None else self.pod.spec.priority


def _index(name: str) -> float:
    segments = name.split("-")
    return (
        float(segments[-1])
        if len(segments) >= 3 and re.fullmatch("[0-9]+", segments[-1])
        else 1e300
    )


class GangFacts:
    """The pods of one PodGroup, or one pod that is scheduled alone."""

    def __init__(self, key: str, podgroup: PodGroup | None, priority: int, phase: str) -> None:
        spec = podgroup.spec if podgroup else None
        self.key = key
        self.podgroup = podgroup
        self.single = podgroup is None
        self.queue = (spec.queue or "default") if spec else ""
        self.priority = priority
        self.phase = phase
        self.minimum = spec.min_member if spec else 1
        self.roles = dict(spec.min_task_member) if spec else {}
        if self.minimum < sum(self.roles.values()):
            self.roles = {}  # an elastic job: its minima are not binding
        self.min_resources = amounts(spec.min_resources) if spec else {}
        self.created = (podgroup.metadata.creation_timestamp or "") if podgroup else ""
        self.pending: dict[str, PodFacts] = {}
        self.gated: list[PodFacts] = []
        self.ready: dict[str, PodFacts] = {}
        """Pods that have a node, and those that succeeded."""
        self.allocated: Amounts = {}
        self.requested: Amounts = {}
        self.exceeds_nodes = False
        self.active = 0
        """Pods that have a node and have not finished."""

    def add(self, pod: PodFacts, node: str) -> None:
        """Add a pod on *node*, or without one."""
        phase = pod.pod.status.phase
        if phase == "Succeeded":
            self.ready[pod.uid] = pod
        elif phase == "Failed" or pod.pod.metadata.deletion_timestamp:
            return
        elif node:
            self.allocate(pod)
            add(self.requested, pod.request)
        else:
            add(self.requested, pod.request)
            if pod.pod.spec.scheduling_gates:
                self.gated.append(pod)
            else:
                self.pending[pod.uid] = pod

    def allocate(self, pod: PodFacts) -> None:
        """Count *pod* as allocated."""
        self.pending.pop(pod.uid, None)
        self.ready[pod.uid] = pod
        self.active += 1
        add(self.allocated, pod.request)

    def deallocate(self, pod: PodFacts) -> None:
        """Undo :meth:`allocate` of a pending pod."""
        del self.ready[pod.uid]
        self.pending[pod.uid] = pod
        self.active -= 1
        add(self.allocated, pod.request, -1)

    # -- votes ---------------------------------------------------------------------------------

    def awaits_admission(self) -> bool:
        """Return whether it is not admitted yet."""
        return not self.single and self.phase in ("", "Pending")

    def phase_admitted(self) -> bool:
        """Return whether its pods may be allocated."""
        return self.single or self.phase not in ("", "Pending")

    def is_valid(self) -> bool:
        """Return whether it has enough pods, not counting those that are gated."""
        return self._suffices([*self.ready.values(), *self.pending.values()])

    def is_ready(self) -> bool:
        """Return whether enough of its pods have a node or succeeded."""
        return self._suffices(list(self.ready.values()))

    def _suffices(self, pods: Sequence[PodFacts]) -> bool:
        of_role = {role: sum(pod.role == role for pod in pods) for role in self.roles}
        return len(pods) >= self.minimum and all(
            of_role[role] >= minimum for role, minimum in self.roles.items()
        )

    def missing(self) -> int:
        """Return how many pods it lacks to be ready, of any role."""
        return max(self.minimum - len(self.ready), 0)

    def is_incomplete(self) -> bool:
        """Return whether pods of it have a node, but fewer than it needs."""
        return not self.single and self.active > 0 and not self.is_ready()

    def was_complete(self) -> bool:
        """Return whether it had the pods that it needs once."""
        status = self.podgroup.status if self.podgroup else PodGroupStatus()
        scheduled = any((c.type, c.status) == ("Scheduled", "True") for c in status.conditions)
        return scheduled or status.phase in ("Running", "Unknown", "Completed")

    def requesting_pending(self) -> bool:
        """Return whether a pending pod requests anything."""
        return any(not pod.is_best_effort for pod in self.pending.values())

    def best_effort_pending(self) -> bool:
        """Return whether a pending pod requests nothing."""
        return any(pod.is_best_effort for pod in self.pending.values())

    # -- order ---------------------------------------------------------------------------------

    def ordered_pending(self, config: Config) -> list[PodFacts]:
        """Return its pending pods in task order."""
        by_priority = "priority" in config.plugins
        return sorted(self.pending.values(), key=lambda pod: pod.order(by_priority=by_priority))

    def grouped(self, pods: Sequence[PodFacts]) -> list[PodFacts]:
        """Return *pods*, role by role and kind by kind if all are needed."""
        if self.missing() < len(pods):
            return list(pods)
        groups: dict[tuple[str, str], list[PodFacts]] = {}
        for pod in pods:
            groups.setdefault((pod.kind, pod.role), []).append(pod)
        return [pod for group in groups.values() for pod in group]

    # -- amounts -------------------------------------------------------------------------------

    def min_request(self) -> Amounts:
        """Return its minimum without what is gated."""
        return positive(self.min_resources, total(pod.request for pod in self.gated))

    def reserved(self) -> Amounts:
        """Return what it was admitted for and has not got yet."""
        started = self.phase == "Running" and self.active >= self.minimum
        if self.exceeds_nodes or (self.phase != "Inqueue" and not started):
            return {}
        return positive(self.min_request(), self.allocated)

    def elastic(self) -> Amounts:
        """Return what it has beyond its minimum."""
        return positive(self.allocated, self.min_resources) if self.min_resources else {}


def gangs_of(objects: Objects, config: Config) -> dict[str, GangFacts]:
    """Return the gangs by key; pods without a PodGroup that exists belong to none."""
    values = {each.metadata.name: each.value for each in objects.priority_classes}
    default = next((each.value for each in objects.priority_classes if each.global_default), 0)
    gangs = {}
    for group in objects.podgroups:
        key = _key(group.metadata)
        priority = values.get(group.spec.priority_class_name, default)
        phase = objects.phases.get(key, group.status.phase)
        gangs[key] = GangFacts(key, group, priority, phase)
        gangs[key].exceeds_nodes = key in objects.exceeding
    for pod in objects.pods:
        facts = PodFacts(pod)
        if pod.spec.scheduler_name in config.single_names:
            key = f"{pod.metadata.namespace}/pod:{pod.metadata.uid}"
            gangs[key] = gang = GangFacts(key, None, facts._priority(), "")
            gang.created = pod.metadata.creation_timestamp or ""
        elif pod.spec.scheduler_name not in config.gang_names:
            continue
        else:
            group_name = pod.metadata.annotations.get(GROUP_NAME)
            found = gangs.get(f"{pod.metadata.namespace}/{group_name}")
            if found is None:
                continue
            gang = found
        gang.add(facts, objects.node_of(pod))
    return gangs


def _key(meta: ObjectMeta) -> str:
    return f"{meta.namespace}/{meta.name}"
