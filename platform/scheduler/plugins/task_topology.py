"""``task-topology``: tasks of a gang that belong together on a node, or apart.

Annotations of the PodGroup list groups of tasks: ``ps,worker;evaluator`` are two groups. All tasks
of a group belong together on a node. If a task of a group belongs apart from itself, as ``ps`` may,
the group is divided into as many equal buckets as it has pods, each for one node.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...model.podgroup import PodGroup
from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import Stage
from ..state.gangs.gang import Gang, Task
from ..state.gangs.role_counts import RoleCounts
from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.pod_traits import TOPOLOGY_ANNOTATIONS
from ..state.resources import PODS, IntVector, Matrix
from .arguments import integer
from .extension_points import UNSUPPORTED_FIELD, NodeAmounts, Rejection, Scores

_AFFINITY, _ANTI_AFFINITY, _TASK_ORDER = TOPOLOGY_ANNOTATIONS
_SELF_APART, _TOGETHER, _SELF_TOGETHER, _APART, _NONE = range(5)
"""Ranks: tasks with the strictest terms are first."""

_MAX_NAMES = 500
"""Names in an annotation. Each name of a group has the others as partners, so that one long
annotation would take the memory of the scheduler."""


@dataclass(frozen=True, slots=True)
class TaskTopology:
    """The annotations of a PodGroup, parsed."""

    groups: Mapping[str, Set[str]]
    """By task: the tasks of its group, with itself."""
    apart: Mapping[str, frozenset[str]]
    """By task: the tasks on whose nodes it is not to be."""
    ranks: Mapping[str, int]
    order: tuple[str, ...]


class TaskTopologyPlugin:
    """Orders the tasks of gangs, and scores nodes by the tasks that are there."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the weight."""
        self._weight = integer(arguments, "task-topology.weight", default=1, minimum=0)
        self._nodes = NodeMatrix()
        self._gangs: Mapping[str, Gang] = {}
        self._counts = RoleCounts()

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep nodes, gangs and where their tasks are."""
        self._nodes, self._gangs = cache.node_matrix, cache.gangs
        self._counts = cache.role_counts

    def job_valid(self, gang: Gang) -> Rejection | None:
        """Reject a gang whose annotations have too many names."""
        if gang.podgroup is None:
            return None
        for name in TOPOLOGY_ANNOTATIONS:
            if _is_too_long(gang.podgroup.metadata.annotations.get(name, "")):
                message = f"the annotation {name} has more than {_MAX_NAMES} names"
                return Rejection(UNSUPPORTED_FIELD, message, Stage.GANG)
        return None

    def task_order(self, task: Task) -> float:
        """Declared order first, then tasks with stricter terms."""
        topology = topology_of(task.gang.podgroup) if task.gang else None
        if topology is None:
            return 0.0
        if task.role in topology.order:
            return float(topology.order.index(task.role))
        return float(len(topology.order) + topology.ranks.get(task.role, _NONE))

    def score(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> Scores:
        """Score by the tasks of the group on the node, by those that would still fit, and by those
        that belong apart.

        On a node with a whole bucket, or with a task that belongs apart from this one, the task
        would begin another bucket. The score depends on the tasks of that node only, since scores
        of other nodes are kept.
        """
        node_indexes, used = amounts.node_indexes, amounts.used
        key, role = eq_class.traits.topology
        gang = self._gangs.get(key)
        topology = topology_of(gang.podgroup) if gang is not None else None
        if gang is None or topology is None:
            return np.zeros(len(node_indexes))
        current = self._nodes.allocatable[PODS, node_indexes] - self._nodes.idle[PODS, node_indexes]
        ahead = {role: used[PODS] - current}  # pods of this class that are assumed to be there
        roles = topology.groups.get(role, frozenset())
        members = [task for task in gang.tasks.values() if task.role in roles]
        counts = Counter(task.role for task in members)
        size = _bucket_size(topology, counts)
        opponents = self._present(key, topology.apart.get(role, frozenset()), node_indexes, ahead)
        in_bucket = self._present(key, counts, node_indexes, ahead) % size
        in_bucket[opponents > 0] = 0
        fitting = np.minimum(self._fitting(members, node_indexes, used), size - in_bucket)
        scores = (2 * in_bucket + fitting - opponents).astype(np.float64)
        return scores * (100 * self._weight / size)

    def _present(
        self,
        gang_key: str,
        roles: Iterable[str],
        node_indexes: IntVector,
        ahead: Mapping[str, IntVector],
    ) -> IntVector:
        """Return how many tasks with one of *roles* are on each node, or *ahead* of the next."""
        counts = np.zeros(self._nodes.columns, np.int64)
        total = np.zeros(len(node_indexes), np.int64)
        for role in roles:
            for node_index, count in self._counts.of(gang_key, role).items():
                counts[node_index] += count
            if role in ahead:
                total += ahead[role]
        present: IntVector = total + counts[node_indexes]
        return present

    def _fitting(self, tasks: list[Task], node_indexes: IntVector, used: Matrix) -> IntVector:
        """Return how many of *tasks* would fit on each node, class by class."""
        counts: dict[EquivalenceClass, int] = {}
        for task in tasks:
            counts[task.eq_class] = counts.get(task.eq_class, 0) + 1
        left = self._nodes.allocatable[:, node_indexes] - used
        total = np.zeros(len(node_indexes), np.int64)
        for eq_class, count in counts.items():
            request = eq_class.request_vector(self._nodes.resource_index)
            rows = np.flatnonzero(request)
            fitting = (left[rows] // request[rows, None]).min(axis=0, initial=count)
            fitting = np.clip(fitting, 0, count)
            left = left - request[:, None] * fitting
            total += fitting
        return total


def _bucket_size(topology: TaskTopology, counts: Mapping[str, int]) -> int:
    """Return how many tasks of a group, of which there are *counts* by role, are to be on one node;
    at least 1."""
    apart = (count for role, count in counts.items() if role in topology.apart.get(role, ()))
    return max(-(-sum(counts.values()) // max(apart, default=1)), 1)


def topology_of(podgroup: PodGroup | None) -> TaskTopology | None:
    """Return the parsed annotations of a PodGroup, or ``None`` if it has none of them."""
    if podgroup is None:
        return None
    annotations = podgroup.metadata.annotations
    values = tuple(annotations.get(name, "") for name in TOPOLOGY_ANNOTATIONS)
    if not any(values):
        return None
    return None if any(map(_is_too_long, values)) else _parse(*values)


def _is_too_long(value: str) -> bool:
    return value.count(",") + value.count(";") >= _MAX_NAMES


@lru_cache(maxsize=1024)
def _parse(affinity: str, anti_affinity: str, order: str) -> TaskTopology:
    together, apart = _groups(affinity), _groups(anti_affinity)
    ranks: dict[str, int] = {}
    for groups, own, others in (
        (apart, _SELF_APART, _APART),
        (together, _SELF_TOGETHER, _TOGETHER),
    ):
        for name, partners in groups.items():
            for is_own in {partner == name for partner in partners}:
                ranks[name] = min(ranks.get(name, _NONE), own if is_own else others)
    return TaskTopology(_connected(affinity), apart, ranks, tuple(_names(order)))


def _connected(text: str) -> dict[str, Set[str]]:
    """Return the group of each task; groups with a task in common are one."""
    groups: dict[str, set[str]] = {}
    for names in map(_names, text.split(";")):
        group = set[str]()
        for name in names:
            other = groups.setdefault(name, {name})
            if other is not group:
                smaller, group = sorted((group, other), key=len)
                group |= smaller
                groups.update(dict.fromkeys(smaller, group))
    return dict(groups)


def _groups(text: str) -> dict[str, frozenset[str]]:
    """Return the partners of each task; a group of one name is a task with itself."""
    partners: dict[str, frozenset[str]] = {}
    for group in text.split(";"):
        names = list(_names(group))
        for name in names:
            others = frozenset(names) - ({name} if len(names) > 1 else set())
            partners[name] = partners.get(name, frozenset()) | others
    return partners


def _names(text: str) -> Iterator[str]:
    return filter(None, (name.strip() for name in text.split(",")))
