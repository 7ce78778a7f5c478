"""Whether a job would start now, and with which changes it would. Pure, but for the clock."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...model.queue import QueueState
from ...model.simulation import Forecast, NodePods, SimulationResult, TriedChange
from ..framework.explanations import GangExplanation
from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import QueueInfo
from ..state.resources import to_quantity
from .proposed_gang import ProposedGang
from .trial import Trial

_MAX_QUEUES = 5
"""Other queues that are tried."""

_MAX_RESOURCES = 2
"""Resources of which smaller requests are tried."""

_DIVISORS = (2, 4)


@dataclass(frozen=True, slots=True)
class Simulator:
    """Tries a gang as it is, and then with changes until the time is over."""

    cache: SchedulerCache
    try_in_copy: Callable[[ProposedGang, bool], Trial]
    """Tries a gang in a copy of the scheduler that is dropped afterwards; the flag is whether the
    explanation contains the position in the queue."""

    forecast: Callable[[ProposedGang], Forecast]
    """Computes in such a copy when a gang would start."""

    is_over: Callable[[], bool]
    """Whether no further change is to be tried."""

    def simulate(self, gang: ProposedGang) -> SimulationResult:
        """Return what the scheduler would do with *gang*.

        Raises:
            CannotSimulateError: the job is malformed.
        """
        trial = self.try_in_copy(gang, True)
        if trial.starts:
            nodes = sorted(trial.pods_by_node.items(), key=lambda item: (-item[1], item[0]))
            return SimulationResult(
                starts_now=True,
                nodes=tuple(NodePods(name, pods) for name, pods in nodes),
                evictions=trial.evictions,
            )
        changes: list[TriedChange] = []
        for search in (self._fewer_pods, self._other_queues, self._smaller_requests):
            if self.is_over():
                break
            for change in search(gang, trial):
                changes.append(change)
                if self.is_over():
                    break
        is_complete = not self.is_over()
        return SimulationResult(
            starts_now=False,
            why=trial.explanation.encode() if trial.explanation else "",
            impossible=trial.impossible,
            forecast=self.forecast(gang),
            changes=tuple(changes),
            is_complete=is_complete,
        )

    def _starts(self, gang: ProposedGang) -> bool:
        return self.try_in_copy(gang, False).starts

    def _fewer_pods(self, gang: ProposedGang, _: Trial) -> Iterator[TriedChange]:
        """Find the largest gang that would start, by bisection; yields that one, or the smallest
        that would not."""
        low, high = gang.fewest_pods, gang.size - 1
        if low > high:
            return
        best = 0
        while low <= high and not self.is_over():
            middle = (low + high + 1) // 2
            if self._starts(gang.with_pods(middle)):
                best, low = middle, middle + 1
            else:
                high = middle - 1
        if best or low > high:  # otherwise the time was over before the smallest was tried
            yield TriedChange("pods", starts_now=bool(best), pods=best or gang.fewest_pods)

    def _other_queues(self, gang: ProposedGang, _: Trial) -> Iterator[TriedChange]:
        parents = {
            each.object.spec.parent for each in self.cache.queues.by_name.values() if each.object
        }
        found = [
            name
            for name, queue in sorted(self.cache.queues.by_name.items())
            if name != gang.job.spec.queue and name not in parents and _is_open(queue)
        ]
        for name in found[:_MAX_QUEUES]:
            starts = self._starts(gang.with_queue(name))
            yield TriedChange("queue", starts_now=starts, queue=name)

    def _smaller_requests(self, gang: ProposedGang, trial: Trial) -> Iterator[TriedChange]:
        for resource in _scarce(trial.explanation)[:_MAX_RESOURCES]:
            for divisor in _DIVISORS:
                changed = gang.with_fraction(resource, divisor)
                units = changed.request(resource)
                if not units:
                    break  # less would be nothing
                starts = self._starts(changed)
                request = to_quantity(resource, units)
                yield TriedChange("requests", starts_now=starts, requests={resource: request})
                if starts:
                    break


def _is_open(queue: QueueInfo) -> bool:
    return queue.object is not None and queue.object.status.state in ("", QueueState.OPEN)


def _scarce(explanation: GangExplanation | None) -> list[str]:
    """Return the resources that are missing, by the scheduler's explanation."""
    if explanation is None:
        return []
    fit_error, found = explanation.fit_error, dict[str, None]()
    shortages = fit_error.shortages if fit_error else explanation.diagnosis.shortages
    found |= dict.fromkeys(each.resource for each in shortages)
    if fit_error is not None and fit_error.nodes is not None and fit_error.nodes.nearest:
        found |= dict.fromkeys(fit_error.nodes.nearest.lacks)
    found.pop("pods", None)
    return list(found)
