"""What plugins see of a pod in addition to its spec: annotations, declared fields, the node groups
of its queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ....model.podgroup import PodGroup
from ....model.queue import Queue, QueueAffinity, QueueSpec
from ..core_types import Pod
from .declared_fields import FieldValues, PodFields
from .numa_request import NumaRequest, numa_request

PREEMPTABLE = "volcano.sh/preemptable"
REVOCABLE_ZONE = "volcano.sh/revocable-zone"
GROUP_LIMITS = "volcano.sh/nodegroup-resource-limits"
STRATEGY_TYPE = "volcano.sh/resource-strategy-scoring-type"
STRATEGY_WEIGHT = "volcano.sh/resource-strategy-weight"

TOPOLOGY_ANNOTATIONS = (
    "volcano.sh/task-topology-affinity",
    "volcano.sh/task-topology-anti-affinity",
    "volcano.sh/task-topology-task-order",
)
"""Annotations of a PodGroup whose tasks belong together or apart."""

_TOPOLOGY = frozenset(TOPOLOGY_ANNOTATIONS)
_TRUE = ("true", "True", "TRUE", "t", "T", "1")


@dataclass(frozen=True, slots=True)
class PodTraits:
    """Traits by which pods with equal specs belong to different equivalence classes."""

    revocable: bool = False
    """Whether it may run on nodes of revocable zones."""
    node_groups: QueueAffinity | None = None
    """Affinity of its queue to groups of nodes."""
    inherited_node_groups: QueueAffinity | None = None
    """That of the nearest ancestor of a queue that has none."""
    group_limits: tuple[str, str] = ("", "")
    """Its queue, and the limits of that for node groups, if it has any."""
    strategy: tuple[str, str] = ("", "")
    """Type and weights of the strategy for its resources."""
    topology: tuple[str, str] = ("", "")
    """Its gang and its role, if those of the gang belong together or apart."""
    numa_request: NumaRequest | None = None
    """What it needs from NUMA nodes, if it has a policy for these."""
    fields: FieldValues = ()
    """The fields that plugins declare."""

    def with_topology(self, podgroup: PodGroup | None, role: tuple[str, str]) -> "PodTraits":
        """Return the traits with *role*, a gang and its task, if its PodGroup requires that."""
        topology = role if has_topology(podgroup) else ("", "")
        return self if self.topology == topology else replace(self, topology=topology)


NO_TRAITS = PodTraits()


def own_traits(pod: Pod, declared: PodFields) -> PodTraits:
    """Return the traits of *pod* by its annotations and *declared* fields."""
    annotations = pod.metadata.annotations
    revocable = (
        annotations.get(REVOCABLE_ZONE) == "*"
        if REVOCABLE_ZONE in annotations
        else annotations.get(PREEMPTABLE) in _TRUE
    )
    strategy = (annotations.get(STRATEGY_TYPE, ""), annotations.get(STRATEGY_WEIGHT, ""))
    numa = numa_request(pod)
    if not revocable and strategy == ("", "") and numa is None and not declared:
        return NO_TRAITS
    return PodTraits(
        revocable=revocable,
        strategy=strategy,
        numa_request=numa,
        fields=declared.values(pod),
    )


class QueueAffinities:
    """The affinity of queues to groups of nodes, and which have limits for groups, for the few
    clusters that use that."""

    def __init__(self) -> None:
        """Start without queues."""
        self._by_queue: dict[str, QueueAffinity] = {}
        self._limits: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._by_queue or self._limits)

    def update(self, name: str, old: Queue | None, new: Queue | None) -> bool:
        """Add, update or delete a queue; returns whether traits of pods may have changed."""
        before, after = old.spec if old else QueueSpec(), new.spec if new else QueueSpec()
        limits = new.metadata.annotations.get(GROUP_LIMITS) if new else None
        unchanged = limits == self._limits.get(name)
        if unchanged and (before.affinity, before.parent) == (after.affinity, after.parent):
            return False
        affected = bool(self)
        self._limits.pop(name, None)
        if limits is not None:
            self._limits[name] = limits
        if after.affinity is None:
            self._by_queue.pop(name, None)
        else:
            self._by_queue[name] = after.affinity
        return affected or bool(self)

    def add_to(self, traits: PodTraits, path: Sequence[str]) -> PodTraits:
        """Return *traits* with the affinity of a queue; *path* is its name and those of its
        ancestors."""
        affinities = [self._by_queue.get(name) for name in path]
        own = affinities[0] if affinities else None
        inherited = None if own else next(filter(None, affinities), None)
        limits = (path[0], self._limits[path[0]]) if path and path[0] in self._limits else ("", "")
        return replace(
            traits, node_groups=own, inherited_node_groups=inherited, group_limits=limits
        )


def has_topology(podgroup: PodGroup | None) -> bool:
    """Return whether tasks of a PodGroup belong together or apart."""
    return podgroup is not None and not _TOPOLOGY.isdisjoint(podgroup.metadata.annotations)


def is_preemptable_gang(podgroup: PodGroup | None) -> bool:
    """Return whether a PodGroup permits its preemption; by default it does not."""
    if podgroup is None:
        return False
    for source in (podgroup.metadata.annotations, podgroup.metadata.labels):
        if PREEMPTABLE in source:
            return _is_true(source)
    return False


def _is_true(source: Mapping[str, str]) -> bool:
    return source[PREEMPTABLE] in _TRUE
