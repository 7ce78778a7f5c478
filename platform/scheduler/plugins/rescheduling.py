"""``rescheduling``: pods leave nodes that are used much, so that others get them (``shuffle``).

The strategy ``lowNodeUtilization`` compares the measured utilization of nodes. Low nodes are below
all its thresholds, high nodes above one of its target thresholds. From high nodes, those used most
first, pods are evicted until the node is below its targets, or the low nodes have no capacity left
below theirs; pods of the lowest priority first, and best-effort pods first among equal ones.

``offlineOnly`` restricts that to pods with the annotation ``volcano.sh/preemptable: "true"``. Only
pods that their gang can spare are evicted, and those without a gang.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Task, TaskStatus
from ..state.resources import CPU, MEMORY, PODS, FloatVector
from .arguments import ArgumentError, Arguments, duration, mapping, number, require_read, text
from .extension_points import VictimTask
from .gang import SurplusCounter
from .usage import MAX_AGE

_LOW, _OFFLINE = "lowNodeUtilization", "offlineOnly"
METRICS_PERIOD = "metricsPeriod"
"""The argument with the time over which measurements are averaged."""

_INTERVAL = timedelta(minutes=5)
_ROWS = [CPU, MEMORY, PODS]


@dataclass(frozen=True, slots=True)
class _Node:
    """A node that was measured."""

    index: int
    name: str
    capacity: FloatVector
    """CPU, memory and pods."""

    used: FloatVector


class ReschedulingPlugin:
    """Names pods of nodes that are used much."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse interval and strategies."""
        interval = duration(arguments, "interval", default=_INTERVAL) or _INTERVAL
        self._interval = interval.total_seconds()
        duration(arguments, METRICS_PERIOD)  # of the reader of measurements
        given = arguments.get("strategies", [{"name": _LOW}])
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise ArgumentError("strategies", "must be a list of names and params")
        params = {}
        for each in map(Arguments, given):
            try:
                name = text(each, "name")
                params[name] = mapping(each, "params")
                require_read(each, "strategies")
            except ArgumentError as error:
                raise ArgumentError("strategies", str(error)) from error
            if name not in (_LOW, _OFFLINE):
                problem = f"{name!r} is not implemented; known: {_LOW}, {_OFFLINE}"
                raise ArgumentError("strategies", problem)
        if _LOW not in params:
            raise ArgumentError("strategies", f"{_LOW} is required: it chooses the pods")
        self._offline_only = _OFFLINE in params
        self._low = _thresholds(params[_LOW], "thresholds")
        self._target = _thresholds(params[_LOW], "targetThresholds")
        for name, section in params.items():
            require_read(section, f"strategies: {name}")
        if (self._low > self._target).any():
            raise ArgumentError("strategies", "thresholds must not exceed targetThresholds")
        self._cache: SchedulerCache | None = None
        self._due: float | None = None
        """When pods are evicted next, in Unix time."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep the cache; pods are evicted one interval after the first session."""
        self._cache = cache
        if self._due is None:
            self._due = cache.cycle_time + self._interval

    def next_victims(self) -> float | None:
        """Return when the interval is over."""
        return self._due

    def victim_tasks(self) -> list[VictimTask]:
        """Return the pods that are to leave nodes above the target thresholds."""
        cache = self._cache
        if cache is None or self._due is None or cache.cycle_time < self._due:
            return []
        self._due = cache.cycle_time + self._interval
        nodes = list(_measured(cache))
        infos = cache.node_matrix.node_infos
        low = [
            node
            for node in nodes
            if (node.used <= self._low * node.capacity).all()
            and (info := infos[node.index]) is not None
            and not info.unschedulable
        ]
        high = [node for node in nodes if self._is_high(node, node.used)]
        if not low or not high:
            return []
        left: FloatVector = np.sum(
            [self._target * node.capacity - node.used for node in low], axis=0
        )
        high.sort(key=lambda node: -float((node.used / node.capacity).sum()))
        surplus = SurplusCounter()
        victims: list[VictimTask] = []
        for node in high:
            victims += self._of_node(cache, node, left, surplus)
        return victims

    # -- private -------------------------------------------------------------------------------

    def _is_high(self, node: _Node, used: FloatVector) -> bool:
        return bool((used > self._target * node.capacity).any())

    def _of_node(
        self, cache: SchedulerCache, node: _Node, left: FloatVector, surplus: SurplusCounter
    ) -> Iterable[VictimTask]:
        """Yield the pods that are to leave *node*; *left* is what is left on low nodes, from which
        their requests are subtracted."""
        used = node.used
        for task in sorted(self._candidates(cache, node), key=_eviction_order):
            if not self._is_high(node, used) or (left <= 0).any():
                return
            request = task.eq_class.request_vector(cache.node_matrix.resource_index)[_ROWS]
            if task.gang is None or not (task.gang.single or surplus.consume(task)):
                continue
            used = used - request
            left -= request
            yield VictimTask(task, f"node {node.name} is above its target utilization")

    def _candidates(self, cache: SchedulerCache, node: _Node) -> Sequence[Task]:
        return [
            task
            for task in cache.task_table.tasks_on(node.index)
            if task.status is TaskStatus.RUNNING
            and task.traits.preemptable
            and not task.traits.critical
            and (task.eq_class.traits.revocable or not self._offline_only)
        ]


def _eviction_order(task: Task) -> tuple[int, bool, str]:
    return task.priority, not task.eq_class.best_effort, task.key


def _measured(cache: SchedulerCache) -> Iterable[_Node]:
    matrix = cache.node_matrix
    for name, usage in cache.node_usage.by_node.items():
        index = matrix.index_of(name)
        if index is None or not matrix.alive[index]:
            continue
        capacity = np.maximum(matrix.allocatable[_ROWS, index], 1).astype(np.float64)
        if cache.cycle_time - usage.measured_at <= MAX_AGE and not math.isnan(usage.cpu):
            used = np.array((usage.cpu, usage.memory, 0)) / 100 * capacity
            used[2] = matrix.allocatable[PODS, index] - matrix.idle[PODS, index]
            yield _Node(index, name, capacity, used)


def _thresholds(params: Arguments, name: str) -> FloatVector:
    """Return the thresholds of CPU, memory and pods, as fractions; 1 by default."""
    try:
        given = mapping(params, name)
        values = [number(given, each, default=100) for each in ("cpu", "memory", "pods")]
        require_read(given, name)
    except ArgumentError as error:
        raise ArgumentError("strategies", f"{_LOW}: {error}") from error
    if not all(0 <= each <= 100 for each in values):
        raise ArgumentError("strategies", f"{_LOW}: {name} must be from 0 to 100")
    return np.array(values) / 100
