"""``numa-aware``: nodes whose kubelet can give pods the CPUs and GPUs of few NUMA nodes.

It concerns pods that name the policy of a topology manager: with GPUs, or Guaranteed ones with
whole CPUs. What is free is in the Numatopology of a node, which lists a pod only after it has
started. Until then what pods have that have been allocated is counted here, as the kubelet will
assign it.
"""

from collections.abc import Mapping

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Task
from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.nodes.numa_topology import NumaNodes
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.numa_request import NUMA_RESOURCES, NumaRequest
from ..state.resources import PODS, IntVector
from .arguments import ArgumentError, integer, text
from .extension_points import Allocation, NodeAmounts, Scores
from .numa_hints import CONTAINER, POD, ResourceAmounts, fit, take_all

NO_TOPOLOGY = "node(s) had no valid Numatopology"
NOT_STATIC = "node(s) had another CPU manager policy than static"
OTHER_POLICY = "node(s) had another topology manager policy than the pod"
NOT_ADMITTED = "node(s) had no NUMA nodes with enough free CPUs or GPUs for the policy of the pod"

SCOPE = "topologyManagerScope"
"""The argument with the scope of all kubelets; Numatopologies have only their policy."""

_CPUS = NUMA_RESOURCES.index("cpu")
_SCORE = 100.0
_NO_LIMIT = 1 << 30

_Unlisted = dict[str, dict[str, NumaRequest]]
"""What pods need, by node and uid."""


class NumaAwarePlugin:
    """Filters, limits and scores nodes by what is free on their NUMA nodes."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the weight, and the scope of the topology managers."""
        self._weight = integer(arguments, "weight", default=1, minimum=0)
        self._scope = text(arguments, SCOPE, default=CONTAINER)
        if self._scope not in (CONTAINER, POD):
            raise ArgumentError(SCOPE, f"must be {CONTAINER} or {POD}, not {self._scope!r}")
        self._nodes = NodeMatrix()
        self._topologies: Mapping[str, NumaNodes] = {}
        self._gangs: set[str] | None = None
        """The gangs that may have pods which are not listed; all before the first session."""
        self._unlisted: _Unlisted = {}
        """Pods that their Numatopology does not list, as of the start of the session."""
        self._allocated: _Unlisted = {}
        """Pods that this session has allocated."""
        self._free: dict[str, ResourceAmounts] = {}
        """What is free on nodes, as far as it has been computed since a pod was allocated there."""
        self._used: IntVector = np.zeros(0, np.int64)
        """The number of pods on each node, those in :attr:`_allocated` included."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Select the pods on nodes that are not listed yet."""
        self._nodes, self._topologies = cache.node_matrix, cache.numa_topologies.by_node
        self._used = self._nodes.allocatable[PODS] - self._nodes.idle[PODS]
        gangs = cache.gangs if self._gangs is None else self._gangs
        self._gangs, self._unlisted, self._allocated, self._free = set(), {}, {}, {}
        for gang in [gang for key in gangs if (gang := cache.gangs.get(key)) is not None]:
            for task in gang.tasks.values():
                request = task.eq_class.traits.numa_request
                if request is not None and task.status.on_node and not self._is_listed(task):
                    self._unlisted.setdefault(task.node, {})[task.uid] = request
                    self._gangs.add(gang.key)

    def allocated(self, change: Allocation) -> None:
        """Count what is allocated; a pod whose eviction is undone has it already."""
        self._note_usage(change)
        request = change.eq_class.traits.numa_request
        if request is None or self._gangs is None:
            return
        self._gangs.add(change.gang.key)
        for task in change.tasks:
            if not self._is_listed(task) and task.uid not in self._unlisted.get(task.node, ()):
                self._allocated.setdefault(task.node, {})[task.uid] = request
                self._free.pop(task.node, None)

    def deallocated(self, change: Allocation) -> None:
        """Release what this session has allocated; an evicted pod keeps its own until its end."""
        self._note_usage(change)
        if change.eq_class.traits.numa_request is None:
            return
        for task in change.tasks:
            if self._allocated.get(task.node, {}).pop(task.uid, None) is not None:
                self._free.pop(task.node, None)

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Exclude nodes with other policies."""
        pod = eq_class.traits.numa_request
        if pod is None:
            return None
        topology = self._topologies.get(node.name)
        if topology is None:
            return NO_TOPOLOGY
        if not topology.is_static and pod.peak[_CPUS]:
            return NOT_STATIC
        return OTHER_POLICY if topology.policy != pod.policy else None

    def node_limit(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector | None:
        """Accept as many pods as the kubelet admits one after the other."""
        pod = eq_class.traits.numa_request
        if pod is None:
            return None
        columns = range(nodes.columns) if node_indexes is None else node_indexes.tolist()
        return np.array([self._admitted_count(pod, self._name(each)) for each in columns], np.int64)

    def node_limit_reason(self, eq_class: EquivalenceClass) -> str:
        """Return that the kubelet would not admit the pod."""
        return NOT_ADMITTED

    def score(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> Scores:
        """Prefer nodes on which the pod has few NUMA nodes."""
        scores = np.zeros(len(amounts.node_indexes))
        pod = eq_class.traits.numa_request
        if pod is None or not self._weight:
            return scores
        # The placer asks for the scores after several pods at once.
        before = np.maximum(amounts.used[PODS] - self._used[amounts.node_indexes], 0)
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
        self._used[indexes] = (
            self._nodes.allocatable[PODS, indexes] - self._nodes.idle[PODS, indexes]
        )

    def _name(self, node_index: int) -> str:
        return self._nodes.names[node_index] if node_index < len(self._nodes.names) else ""

    def _free_on(self, node: str, topology: NumaNodes) -> ResourceAmounts:
        free = self._free.get(node)
        if free is None:
            pods = (self._unlisted.get(node, {}), self._allocated.get(node, {}))
            requests = (each for by_uid in pods for each in by_uid.values())
            free = take_all(requests, topology.total, topology.free, self._scope)
            self._free[node] = free
        return free

    def _admitted_count(self, pod: NumaRequest, node: str) -> int:
        topology = self._topologies.get(node)
        if topology is None:
            return 0
        free, count = self._free_on(node, topology), 0
        while (found := fit(pod, topology.total, free, self._scope)) is not None:
            if found.free == free:  # only init containers need something
                return _NO_LIMIT
            free, count = found.free, count + 1
        return count

    def _numa_count(self, pod: NumaRequest, node: str, before: int) -> int:
        """Return the NUMA nodes of a pod after *before* others like it; 0 if it is not admitted."""
        topology = self._topologies.get(node)
        if topology is None:
            return 0
        free = self._free_on(node, topology)
        for _ in range(before + 1):
            found = fit(pod, topology.total, free, self._scope)
            if found is None:
                return 0
            free = found.free
        return len(found.nodes) if found else 0
