"""``tdm``: nodes that are lent at certain times of day, for pods that may be evicted.

A node with the label of a revocable zone takes only preemptable pods, and only while its zone is
active. When the zone closes, the action ``shuffle`` evicts them, of each gang no more at a time
than its budget permits. Times are local times of the scheduler.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang, Task, TaskStatus
from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.pod_traits import is_preemptable_gang
from .arguments import ArgumentError, duration, with_prefix
from .extension_points import Scores, VictimTask
from .queue_limits import Claimant

ZONE_LABEL = "volcano.sh/revocable-zone"
ZONE_INACTIVE = "node(s) were in a revocable zone that is not active"
NOT_REVOCABLE = "node(s) were in a revocable zone, and the pod is not preemptable"

_PREFIX = "tdm.revocable-zone."
_PERIOD = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)
_SCORE = 100.0
_EVICT_PERIOD = timedelta(minutes=1)
_MIN_AVAILABLE, _MAX_UNAVAILABLE = "volcano.sh/jdb-min-available", "volcano.sh/jdb-max-unavailable"
_AMOUNT = re.compile(r"(\d{1,9})(%?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Period:
    """A time of day, from *start* to *end*; on the next day if that is not later."""

    start: time
    end: time

    @classmethod
    def parse(cls, text: object) -> "Period":
        """Parse ``HH:MM-HH:MM``.

        Raises:
            ValueError: it is something else.
        """
        match = _PERIOD.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f'must be a time of day such as "22:00-06:00", not {text!r}')
        start_hour, start_minute, end_hour, end_minute = map(int, match.groups())
        return cls(time(start_hour, start_minute), time(end_hour, end_minute))

    def contains(self, now: time) -> bool:
        """Return whether *now* is within the period."""
        if self.end > self.start:
            return self.start <= now < self.end
        return now >= self.start or now < self.end

    def next_change(self, now: datetime) -> datetime:
        """Return when it next begins or ends."""
        days = (now.date() + timedelta(days=days) for days in range(2))
        changes = (datetime.combine(day, at) for day in days for at in (self.start, self.end))
        return min(change for change in changes if change > now)


class TdmPlugin:
    """Excludes nodes of revocable zones, and prefers them for pods that may run there."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the times of the zones."""
        evict_period = duration(arguments, "tdm.evict.period") or _EVICT_PERIOD
        self._evict_period = evict_period.total_seconds()
        self._evict_at = -math.inf
        """When pods of closed zones are evicted again, in Unix time."""
        self._lent_nodes: tuple[int, list[int]] = (-1, [])
        """Nodes with the label of a zone, and for which state of the node matrix."""
        self._zones: dict[str, Period] = {}
        for zone, period in with_prefix(arguments, _PREFIX).items():
            try:
                self._zones[zone] = Period.parse(period)
            except ValueError as error:
                raise ArgumentError(f"{_PREFIX}{zone}", str(error)) from error
        self._nodes = NodeMatrix()
        self._cache: SchedulerCache | None = None
        self._active: frozenset[str] = frozenset()
        self._next_change: float | None = None
        self.generation = 0
        """Grows when a zone opens or closes."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Compute which zones are active."""
        self._cache, self._nodes = cache, cache.node_matrix
        now = datetime.fromtimestamp(cache.cycle_time)
        active = frozenset(z for z, period in self._zones.items() if period.contains(now.time()))
        self.generation += active != self._active
        self._active = active
        changes = [period.next_change(now) for period in self._zones.values()]
        self._next_change = min(changes).timestamp() if changes else None

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Exclude nodes of zones that are not active, and of all zones for other pods."""
        zone = node.labels.get(ZONE_LABEL)
        if not zone:
            return None
        if zone not in self._active:
            return ZONE_INACTIVE
        return None if eq_class.traits.revocable else NOT_REVOCABLE

    def static_score(self, eq_class: EquivalenceClass, nodes: Sequence[NodeInfo]) -> Scores | None:
        """Prefer nodes of revocable zones for preemptable pods."""
        if not eq_class.traits.revocable:
            return None
        return np.array([_SCORE if ZONE_LABEL in node.labels else 0.0 for node in nodes])

    def job_order(self, gang: Gang) -> float:
        """Gangs that are not preemptable first."""
        return float(is_preemptable_gang(gang.podgroup))

    def job_pipelined(self, gang: Gang) -> bool | None:
        """Permit a gang that has its minimum once its tasks need not wait any more."""
        return gang.is_pipelined()

    def job_starving(self, gang: Gang) -> bool:
        """Return whether a gang that is not preemptable has pending tasks."""
        return bool(gang.pending_tasks) and not is_preemptable_gang(gang.podgroup)

    def preemptable(self, preemptor: Claimant, candidates: Sequence[Task]) -> Sequence[Task] | None:
        """Permit running tasks outside of revocable zones within the budget of their gang; none for
        a preemptor that is preemptable itself."""
        if preemptor.eq_class.traits.revocable or is_preemptable_gang(preemptor.gang.podgroup):
            return ()
        budgets: dict[str, int] = {}
        victims = []
        for task in candidates:
            gang = task.gang
            if gang is None or task.status is not TaskStatus.RUNNING or self._is_lent(task):
                continue
            budget = budgets.setdefault(gang.key, _budget(gang))
            if budget > 0:
                budgets[gang.key] = budget - 1
                victims.append(task)
        return victims

    def victim_tasks(self) -> list[VictimTask]:
        """Return preemptable tasks on nodes of zones that have closed, within the budget of their
        gang; not again before the period is over."""
        cache = self._cache
        if cache is None or cache.cycle_time < self._evict_at:
            return []
        budgets: dict[str, int] = {}
        victims = []
        for task in self._in_closed_zones(cache):
            gang = task.gang
            if gang is None:
                continue
            budget = budgets.setdefault(gang.key, _budget(gang))
            if budget > 0:
                budgets[gang.key] = budget - 1
                zone = self._zone_of(task.node_index)
                victims.append(VictimTask(task, f"revocable zone {zone} is not active any more"))
        self._evict_at = -math.inf
        if budgets:
            self._evict_at = cache.cycle_time + self._evict_period
        return victims

    def next_victims(self) -> float | None:
        """Return when the next pods of closed zones are evicted, or the next zone closes."""
        if self._evict_at == -math.inf:
            return self._next_change
        return min(self._evict_at, self._next_change or self._evict_at)

    def _in_closed_zones(self, cache: SchedulerCache) -> Iterator[Task]:
        position = self._nodes.node_changes.position
        if self._lent_nodes[0] != position:
            infos = enumerate(self._nodes.node_infos)
            lent = [index for index, info in infos if info and info.labels.get(ZONE_LABEL)]
            self._lent_nodes = (position, lent)
        for node_index in self._lent_nodes[1]:
            zone = self._zone_of(node_index)
            if zone not in self._zones or zone in self._active:
                continue
            for task in cache.task_table.tasks_on(node_index):
                is_running = task.status is TaskStatus.RUNNING
                if is_running and task.eq_class.traits.revocable and task.traits.preemptable:
                    yield task

    def _zone_of(self, node_index: int) -> str:
        info = self._nodes.node_infos[node_index]
        return info.labels.get(ZONE_LABEL, "") if info is not None else ""

    def _is_lent(self, task: Task) -> bool:
        return bool(self._zone_of(task.node_index))

    def retry_at(self, gang: Gang) -> float | None:
        """Return when a zone opens or closes."""
        return self._next_change


def _budget(gang: Gang) -> int:
    """Return how many of its running tasks *gang* can lose at once, by its annotations: one by
    default."""
    annotations = gang.podgroup.metadata.annotations if gang.podgroup else {}
    running, total = gang.counts[TaskStatus.RUNNING], len(gang.tasks)
    unavailable = _amount(annotations.get(_MAX_UNAVAILABLE, ""), total)
    if unavailable is not None:
        finished = gang.counts[TaskStatus.SUCCEEDED] + gang.counts[TaskStatus.FAILED]
        return unavailable - (total - finished - running)
    available = _amount(annotations.get(_MIN_AVAILABLE, ""), total)
    return 1 if available is None else running - available


def _amount(text: str, total: int) -> int | None:
    """Return a number, or a percentage of *total*, rounded up; ``None`` if it is neither."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    return -(-total * int(match[1]) // 100) if match[2] else int(match[1])
