"""``numa-aware``: nodes whose kubelet can give pods the CPUs of few NUMA nodes.

It concerns Guaranteed pods with whole CPUs that name the policy of a topology manager. Which CPUs
are free is in the Numatopology of a node, which lists a pod only after it has started. Until then
the CPUs of the pods that have been allocated are counted here, as the kubelet will assign them.
"""

from collections.abc import Mapping

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Task
from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.nodes.numa_topology import NumaNodes
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.exclusive_cpus import ExclusiveCpus
from ..state.resources import CPU, IntVector
from .arguments import integer
from .extension_points import Allocation, NodeAmounts, Scores
from .numa_hints import Cpus, fit, take_all

NO_TOPOLOGY = "node(s) had no valid Numatopology"
NOT_STATIC = "node(s) had another CPU manager policy than static"
OTHER_POLICY = "node(s) had another topology manager policy than the pod"
NOT_ADMITTED = "node(s) had no NUMA nodes with enough free CPUs for the policy of the pod"

_SCORE = 100.0
_NO_LIMIT = 1 << 30

_Unlisted = dict[str, dict[str, ExclusiveCpus]]
"""What pods need, by node and uid."""


class NumaAwarePlugin:
    """Filters, limits and scores nodes by the free CPUs of their NUMA nodes."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the weight."""
        self._weight = integer(arguments, "weight", default=1, minimum=0)
        self._nodes = NodeMatrix()
        self._topologies: Mapping[str, NumaNodes] = {}
        self._gangs: set[str] | None = None
        """The gangs that may have pods which are not listed; all before the first session."""
        self._unlisted: _Unlisted = {}
        """Pods that their Numatopology does not list, as of the start of the session."""
        self._allocated: _Unlisted = {}
        """Pods that this session has allocated."""
        self._free: dict[str, Cpus] = {}
        """What is free on nodes, as far as it has been computed since a pod was allocated there."""
        self._used: IntVector = np.zeros(0, np.int64)
        """The CPU that pods on each node request, those in :attr:`_allocated` included."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Select the pods on nodes that are not listed yet."""
        self._nodes, self._topologies = cache.node_matrix, cache.numa_topologies.by_node
        self._used = self._nodes.allocatable[CPU] - self._nodes.idle[CPU]
        gangs = cache.gangs if self._gangs is None else self._gangs
        self._gangs, self._unlisted, self._allocated, self._free = set(), {}, {}, {}
        for gang in [gang for key in gangs if (gang := cache.gangs.get(key)) is not None]:
            for task in gang.tasks.values():
                cpus = task.eq_class.traits.exclusive_cpus
                if cpus is not None and task.status.on_node and not self._is_listed(task):
                    self._unlisted.setdefault(task.node, {})[task.uid] = cpus
                    self._gangs.add(gang.key)

    def allocated(self, change: Allocation) -> None:
        """Count CPUs that are allocated; a pod whose eviction is undone has them already."""
        self._note_usage(change)
        cpus = change.eq_class.traits.exclusive_cpus
        if cpus is None or self._gangs is None:
            return
        self._gangs.add(change.gang.key)
        for task in change.tasks:
            if not self._is_listed(task) and task.uid not in self._unlisted.get(task.node, ()):
                self._allocated.setdefault(task.node, {})[task.uid] = cpus
                self._free.pop(task.node, None)

    def deallocated(self, change: Allocation) -> None:
        """Release CPUs that this session has allocated; an evicted pod keeps its own until its
        end."""
        self._note_usage(change)
        if change.eq_class.traits.exclusive_cpus is None:
            return
        for task in change.tasks:
            if self._allocated.get(task.node, {}).pop(task.uid, None) is not None:
                self._free.pop(task.node, None)

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Exclude nodes with other policies."""
        pod = eq_class.traits.exclusive_cpus
        if pod is None:
            return None
        topology = self._topologies.get(node.name)
        if topology is None:
            return NO_TOPOLOGY
        if not topology.is_static:
            return NOT_STATIC
        return OTHER_POLICY if topology.policy != pod.policy else None

    def node_limit(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector | None:
        """Accept as many pods as the kubelet admits one after the other."""
        pod = eq_class.traits.exclusive_cpus
        if pod is None:
            return None
        columns = range(nodes.columns) if node_indexes is None else node_indexes.tolist()
        return np.array([self._admitted_count(pod, self._name(each)) for each in columns], np.int64)

    def node_limit_reason(self, eq_class: EquivalenceClass) -> str:
        """Return that the kubelet would not admit the pod."""
        return NOT_ADMITTED

    def score(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> Scores:
        """Prefer nodes on which the pod gets CPUs of few NUMA nodes."""
        scores = np.zeros(len(amounts.node_indexes))
        pod = eq_class.traits.exclusive_cpus
        if pod is None or not self._weight:
            return scores
        # The placer asks for the scores after several pods at once.
        more = np.maximum(amounts.used[CPU] - self._used[amounts.node_indexes], 0)
        before = more // amounts.request[CPU]
        for position, node_index in enumerate(amounts.node_indexes.tolist()):
            count = self._numa_count(pod, self._name(node_index), int(before[position]))
            scores[position] = self._weight * _SCORE / count if count else 0.0
        return scores

    # -- private -------------------------------------------------------------------------------

    def _is_listed(self, task: Task) -> bool:
        topology = self._topologies.get(task.node)
        return topology is not None and task.uid in topology.pods

    def _note_usage(self, change: Allocation) -> None:
        indexes = change.node_indexes
        self._used[indexes] = self._nodes.allocatable[CPU, indexes] - self._nodes.idle[CPU, indexes]

    def _name(self, node_index: int) -> str:
        return self._nodes.names[node_index] if node_index < len(self._nodes.names) else ""

    def _free_on(self, node: str, topology: NumaNodes) -> Cpus:
        free = self._free.get(node)
        if free is None:
            pods = (self._unlisted.get(node, {}), self._allocated.get(node, {}))
            cpus = (each for by_uid in pods for each in by_uid.values())
            free = self._free[node] = take_all(cpus, topology.total, topology.free)
        return free

    def _admitted_count(self, pod: ExclusiveCpus, node: str) -> int:
        topology = self._topologies.get(node)
        if topology is None:
            return 0
        free, count = self._free_on(node, topology), 0
        while (found := fit(pod, topology.total, free)) is not None:
            if found.free == free:  # only init containers need CPUs for themselves
                return _NO_LIMIT
            free, count = found.free, count + 1
        return count

    def _numa_count(self, pod: ExclusiveCpus, node: str, before: int) -> int:
        """Return the NUMA nodes of a pod after *before* others like it; 0 if it is not admitted."""
        topology = self._topologies.get(node)
        if topology is None:
            return 0
        free = self._free_on(node, topology)
        for _ in range(before + 1):
            found = fit(pod, topology.total, free)
            if found is None:
                return 0
            free = found.free
        return len(found.nodes) if found else 0
