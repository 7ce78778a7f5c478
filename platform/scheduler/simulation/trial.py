"""One attempt to start a gang that does not exist, in a copy of the scheduler."""

from collections import Counter
from dataclasses import dataclass

from ..cycle_runner import CycleRunner
from ..framework.explanations import GangExplanation
from ..framework.podgroup_status import PodGroupReport
from ..plugins.placement import GangRef
from ..state.cache.cache import SchedulerCache
from ..state.cache.events import PodEvent, PodGroupEvent
from .proposed_gang import ProposedGang

_MAX_CYCLES = 4
"""Cycles in which a gang is admitted and allocated, with one in which its victims are evicted."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What has become of the gang."""

    pods_by_node: dict[str, int]
    """Empty unless the gang would start."""

    evictions: int = 0
    """Pods that were evicted for it."""

    explanation: GangExplanation | None = None
    """Why it waits."""

    impossible: bool = False
    """Whether it could not start even if nothing else ran."""

    @property
    def starts(self) -> bool:
        """Whether the gang would start, at once or when its victims have ended."""
        return bool(self.pods_by_node)


@dataclass(frozen=True, slots=True)
class SchedulerCopy:
    """A scheduler whose decisions are not carried out. Trials change it for good."""

    cache: SchedulerCache
    runner: CycleRunner
    now: float
    """Reading of the scheduler's monotonic clock."""

    time: float
    """Unix time."""

    def try_gang(self, gang: ProposedGang, *, positions: bool = True) -> Trial:
        """Add *gang* and run cycles until it is allocated or rejected.

        *positions* is whether the explanation contains the position in the queue: with many waiting
        gangs it costs more than all else.

        Raises:
            CannotSimulateError: the job is malformed.
        """
        podgroup, pods = gang.podgroup(), gang.pods()
        self.cache.apply(PodGroupEvent(None, podgroup))
        uids = {pod.metadata.uid for pod in pods}
        for pod in pods:
            self.cache.apply(PodEvent(None, pod))
        allocated: Counter[str] = Counter()
        report: PodGroupReport | None = None
        for _ in range(_MAX_CYCLES):
            decision = self.runner.run_once(now=self.now, time=self.time, positions=positions)
            allocated.update(each.node for each in decision.placements if is_of(each.gang, gang))
            if allocated.total() >= podgroup.spec.min_member:
                return Trial(dict(allocated))
            nominated = Counter(
                each.node for each in decision.nominations if each.node and each.uid in uids
            )
            if nominated and nominated.total() + allocated.total() >= podgroup.spec.min_member:
                return Trial(dict(allocated + nominated), len(decision.evictions))
            report = next((each for each in decision.reports if each.key == gang.key), report)
            if not self.cache.has_changes():
                break
        if report is None:
            return Trial({})
        return Trial({}, explanation=report.why, impossible=report.impossible)


def is_of(found: GangRef | None, gang: ProposedGang) -> bool:
    """Return whether *found* is *gang*."""
    return found is not None and found.key == gang.key
