"""``usage``: prefers nodes with little measured utilization, and excludes those above a threshold.

Measurements are read outside of cycles. Those older than five minutes are not used: such a node is
neither excluded nor preferred. Pods that arrived after a measurement count by an estimate: a share
of their requests and of what their limits exceed these by, or a fixed amount for a best-effort pod.
"""

import math
from collections.abc import Mapping

import numpy as np

from ...model.quantity import QuantityError, parse
from ..state.cache.cache import SchedulerCache
from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.nodes.node_usage import LIMITS, NodeUsage, NodeUsages, burst_of
from ..state.podinfo.declared_fields import PodFields
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import CPU, MEMORY, PODS, FloatMatrix, FloatVector, IntVector, Matrix, amount
from .arguments import ArgumentError, integer, mapping, number, require_read
from .extension_points import NodeAmounts, Scores

MAX_AGE = 300.0
"""Seconds after which a measurement is not used any more."""

CPU_TOO_HIGH = "node(s) had a CPU utilization above the threshold"
MEMORY_TOO_HIGH = "node(s) had a memory utilization above the threshold"

_ROWS = slice(CPU, MEMORY + 1)


class UsagePlugin:
    """Filters and scores nodes by measured utilization."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse weights, thresholds and the parameters of the estimate."""
        self._weight = integer(arguments, "usage.weight", default=5, minimum=0)
        cpu = integer(arguments, "cpu.weight", default=1, minimum=0)
        memory = integer(arguments, "memory.weight", default=1, minimum=0)
        self._weights = np.array((cpu, memory)) / max(cpu + memory, 1)
        thresholds = mapping(arguments, "thresholds")
        self._cpu_threshold = number(thresholds, "cpu", default=80)
        self._memory_threshold = number(thresholds, "mem", default=80)
        require_read(thresholds, "thresholds")
        estimator = mapping(arguments, "estimator")
        self._request_ratio = number(estimator, "request_ratio", default=0.7)
        self._risk_threshold = number(estimator, "risk_threshold", default=0.6)
        self._risk_factor = number(estimator, "risk_factor", default=1.2)
        best_effort = (
            _quantity(estimator, "be_cpu", "cpu", "250m"),
            _quantity(estimator, "be_mem", "memory", "200Mi"),
        )
        self._burst_ratio = number(estimator, "burst_ratio", default=0)
        if self._burst_ratio < 0:
            raise ArgumentError("estimator", "burst_ratio must not be negative")
        require_read(estimator, "estimator")
        self.pod_fields = LIMITS if self._burst_ratio else PodFields()
        self.generation = 0
        """Grows with each change of the measurements in use."""
        self._recent: dict[str, NodeUsage] = {}
        self._expires = -math.inf
        self._seen = (-1, -1)
        self._best_effort: FloatMatrix = np.array(best_effort, np.float64)[:, None]
        """What a best-effort pod is estimated to use."""
        self._requested_at: dict[str, tuple[int, ...]] = {}
        """What the pods on a node requested when it was measured, its best-effort pods, and by how
        much limits exceeded requests."""
        self._measured: FloatMatrix = np.zeros((2, 0))
        self._before: Matrix = np.zeros((5, 0), np.int64)
        self._nodes, self._usages = NodeMatrix(), NodeUsages()

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Select the measurements that are recent."""
        self._nodes = cache.node_matrix
        usages = self._usages = cache.node_usage
        is_new = usages.version != self._seen[0]
        if is_new:
            self._requested_at = {
                name: self._requested(node_index)
                for name in usages.by_node
                if (node_index := self._nodes.index_of(name)) is not None
            }
        seen = (usages.version, self._nodes.node_changes.position)
        if seen == self._seen and cache.cycle_time <= self._expires:
            return
        self._seen = seen
        recent = {
            name: usage
            for name, usage in usages.by_node.items()
            if cache.cycle_time - usage.measured_at <= MAX_AGE
        }
        oldest = min((usage.measured_at for usage in recent.values()), default=math.inf)
        self._expires = oldest + MAX_AGE
        self.generation += recent != self._recent
        self._recent = recent
        self._fill_columns()

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Exclude nodes above a threshold."""
        usage = self._recent.get(node.name)
        if usage is None:
            return None
        if usage.cpu > self._cpu_threshold:
            return CPU_TOO_HIGH
        return MEMORY_TOO_HIGH if usage.memory > self._memory_threshold else None

    def score(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> Scores:
        """Score by what is left of CPU and memory; 0 without a recent measurement."""
        node_indexes = amounts.node_indexes
        if not self._recent or self._measured.shape[1] < self._nodes.columns:
            return np.zeros(len(node_indexes))
        measured = self._measured[:, node_indexes]
        capacity = np.maximum(amounts.allocatable[_ROWS], 1)
        before = self._before[:, node_indexes]
        requested = np.maximum(amounts.used[_ROWS] - before[:2], 0)
        burst = np.maximum(self._bursts(eq_class, amounts) - before[3:], 0)
        arrived = requested * self._request_ratio + burst * self._burst_ratio
        best_effort = np.maximum(self._best_effort_pods(eq_class, amounts) - before[2], 0)
        risk = np.where(self._weights @ measured >= self._risk_threshold, self._risk_factor, 1.0)
        used = arrived * risk
        if self._burst_ratio:
            used = np.minimum(used, requested + burst)
        expected = measured + (used + self._best_effort * best_effort * risk) / capacity
        left = self._weights @ (1 - np.clip(expected, 0, 1))
        scores: FloatVector = np.where(np.isnan(left), 0.0, left * 100 * self._weight)
        return scores

    # -- private -------------------------------------------------------------------------------

    def _requested(self, node_index: int) -> tuple[int, ...]:
        used = self._nodes.allocatable[_ROWS, node_index] - self._nodes.idle[_ROWS, node_index]
        pods = self._usages.best_effort_pods(self._nodes.columns)
        burst = self._usages.bursts(self._nodes.columns)[:, node_index]
        return int(used[0]), int(used[1]), int(pods[node_index]), int(burst[0]), int(burst[1])

    def _best_effort_pods(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> IntVector:
        """Return how many best-effort pods nodes have, with pods of this class that are assumed to
        be there."""
        nodes, node_indexes = self._nodes, amounts.node_indexes
        pods: IntVector = self._usages.best_effort_pods(nodes.columns)[node_indexes]
        if eq_class.best_effort:
            pods = pods + self._assumed(amounts)
        return pods

    def _bursts(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> Matrix:
        """Return by how much limits exceed requests, likewise."""
        bursts: Matrix = self._usages.bursts(self._nodes.columns)[:, amounts.node_indexes]
        own = burst_of(eq_class) if self._burst_ratio else None
        return bursts if own is None else bursts + own[:, None] * self._assumed(amounts)

    def _assumed(self, amounts: NodeAmounts) -> IntVector:
        """Return how many pods of the class are assumed to be on nodes."""
        nodes, node_indexes = self._nodes, amounts.node_indexes
        present = nodes.allocatable[PODS, node_indexes] - nodes.idle[PODS, node_indexes]
        assumed: IntVector = amounts.used[PODS] - present
        return assumed

    def _fill_columns(self) -> None:
        """Arrange the measurements by the columns of the node matrix."""
        self._measured = np.full((2, self._nodes.columns), np.nan)
        self._before = np.zeros((5, self._nodes.columns), np.int64)
        for name, usage in self._recent.items():
            node_index = self._nodes.index_of(name)
            if node_index is not None:
                self._measured[:, node_index] = usage.cpu / 100, usage.memory / 100
                before = self._requested_at.get(name) or self._requested(node_index)
                self._before[:, node_index] = before


def _quantity(arguments: Mapping[str, object], name: str, resource: str, default: str) -> int:
    """Return an amount of *resource*: millicores or bytes.

    Raises:
        ArgumentError: it is malformed or negative.
    """
    given = arguments.get(name, default)
    if isinstance(given, str | int | float) and not isinstance(given, bool):
        try:
            is_valid = parse(given).nanos >= 0
        except QuantityError:
            is_valid = False
        if is_valid:
            return amount(resource, given)
    raise ArgumentError("estimator", f"{name} must be a quantity of at least 0, not {given!r}")
