"""When a gang that has to wait would start, if all gangs end as they are expected to.

The time of a copy of the scheduler is moved from one expected end to the next. What ends is
removed, and cycles decide what starts instead, as they would: by the order of queues and gangs,
reservations and all else that is configured.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...model.meta import ObjectMeta
from ...model.run_times import Basis
from ...model.simulation import Forecast
from ..framework.decision import Decision
from ..state.cache.events import PodEvent, PodGroupEvent
from ..state.core_types import Pod
from ..state.gangs.gang import Gang, Task
from .proposed_gang import ProposedGang
from .trial import SchedulerCopy, is_of

_MAX_CYCLES = 4
"""Cycles after an end: what starts may let something else start."""

_STEP = 0.01
"""Ends within this fraction of the time until then count as one: no forecast is more exact."""


@dataclass(slots=True)
class StartForecast:
    """Moves the time of a copy of the scheduler, in which *gang* has been rejected."""

    scheduler: SchedulerCopy
    gang: ProposedGang
    is_over: Callable[[], bool]
    """Whether there is no time left for another step."""

    _ends: list[tuple[float, str]] = field(default_factory=list)
    _has_unknown: bool = False
    _has_estimates: bool = False

    def compute(self) -> Forecast:
        """Return when the gang would start."""
        started_at = self.scheduler.time
        for gang in self.scheduler.cache.gangs.values():
            if gang.counts.allocated:
                self._expect(gang, started_at)
        now = started_at
        while self._ends and not self.is_over():
            now = max(self._ends[0][0], now)
            limit = now + (now - started_at) * _STEP
            while self._ends and self._ends[0][0] <= limit:
                now = max(now, self._ends[0][0])
                self._end(heapq.heappop(self._ends)[1])
            if self._run_cycles(now, now - started_at):
                basis = Basis.ESTIMATE if self._has_estimates else Basis.LIMIT
                return Forecast(start=now, basis=basis)
        if self._ends:
            return Forecast(not_before=now)
        return Forecast(basis=Basis.UNKNOWN if self._has_unknown else "")

    def _run_cycles(self, now: float, passed: float) -> bool:
        """Run cycles at the time *now*; return whether the gang has started."""
        for _ in range(_MAX_CYCLES):
            decision = self.scheduler.runner.run_once(
                now=self.scheduler.now + passed, time=now, positions=False
            )
            if any(is_of(each.gang, self.gang) for each in decision.placements):
                return True
            self._follow(decision, now)
            if not self.scheduler.cache.has_changes():
                return False
        return False

    def _follow(self, decision: Decision, now: float) -> None:
        """Let the victims of *decision* end at once, and expect the ends of what has started."""
        self._remove(each.uid for each in decision.evictions)
        keys = {each.gang.key for each in decision.placements if each.gang is not None}
        for key in sorted(keys):
            gang = self.scheduler.cache.gangs.get(key)
            if gang is not None:
                self._expect(gang, now)

    def _expect(self, gang: Gang, now: float) -> None:
        end = self.scheduler.cache.run_times.expected_end(gang, now)
        if end is None:
            self._has_unknown = True
            return
        self._has_estimates |= self.scheduler.cache.run_times.of(gang).basis is not Basis.LIMIT
        heapq.heappush(self._ends, (end, gang.key))

    def _end(self, key: str) -> None:
        gang = self.scheduler.cache.gangs.get(key)
        if gang is None:
            return
        self._remove([task.uid for task in gang.tasks.values()])
        if gang.podgroup is not None:
            self.scheduler.cache.apply(PodGroupEvent(gang.podgroup, None))

    def _remove(self, uids: Iterable[str]) -> None:
        for uid in uids:
            task = self.scheduler.cache.task(uid)
            if task is not None:
                self.scheduler.cache.apply(PodEvent(_pod_of(task), None))


def _pod_of(task: Task) -> Pod:
    """Return what identifies the pod of *task*."""
    return Pod(metadata=ObjectMeta(name=task.name, namespace=task.namespace, uid=task.uid))


def forecast(scheduler: SchedulerCopy, gang: ProposedGang, is_over: Callable[[], bool]) -> Forecast:
    """Return when *gang* would start; *scheduler* is used up by it.

    Raises:
        CannotSimulateError: the job is malformed.
    """
    trial = scheduler.try_gang(gang, positions=False)
    if trial.starts:
        return Forecast(start=scheduler.time, basis=Basis.LIMIT)
    if trial.impossible:
        return Forecast()
    return StartForecast(scheduler, gang, is_over).compute()
