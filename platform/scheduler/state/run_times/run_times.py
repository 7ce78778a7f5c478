"""When gangs end: by their limits, by estimates, or by what former gangs took."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ....model import names
from ....model.queue import Queue as QueueObject
from ....model.run_times import Basis, limit_of, seconds_of
from ..gangs.gang import Gang, TaskStatus
from .predictions import Pattern, PredictedRun, Predictions, pattern_of
from .recent_runs import RecentRuns, Run


class RunTime(NamedTuple):
    """How long a gang runs from its start."""

    seconds: float | None
    """``None`` if nothing is known."""

    basis: Basis


@dataclass(slots=True)
class _Running:
    """A gang that runs."""

    since: float
    """Unix time."""

    pattern: Pattern
    predicted: float | None
    """Its run time in seconds, as predicted when it was first seen running."""

    size: int
    """How many pods it needed to start."""

    limit: float | None
    """Its limit in seconds, if it has one."""

    has_finished: bool = False


_MOST_OUTDATED = 32
"""Maximum number of running gangs of a pattern whose run times are estimated again when one of
them ends. Without it, each end of one of thousands of gangs would cause thousands of estimates."""

UNKNOWN = RunTime(None, Basis.UNKNOWN)


class RunTimes:
    """The run times of gangs. What is known counts in this order: the time limit of the gang, the
    deadline of its owner or of its pods, its estimate, the default of its queue, and a prediction.
    """

    def __init__(self, queues_of: Callable[[Gang], Iterable[QueueObject]]) -> None:
        """Start without knowledge of former gangs.

        *queues_of* returns the queue of a gang and those above it, where they are known.
        """
        self._queues_of = queues_of
        self._running: dict[str, _Running] = {}
        self._by_pattern: dict[Pattern, set[str]] = {}
        """The keys of those that run, by pattern."""
        self._outdated: set[str] = set()
        self._ended: list[PredictedRun] = []
        self.predictions = Predictions()
        self.recent_runs = RecentRuns()

    def observe(self, gang: Gang, now: float) -> None:
        """Learn from *gang*, which may have started or ended since it was observed last; *now* is
        the Unix time."""
        counts = gang.counts.by_status  # not its properties: this is called for each change
        started = counts[TaskStatus.RUNNING]
        allocated = started + counts[TaskStatus.BOUND] + counts[TaskStatus.BINDING]
        if allocated + counts[TaskStatus.ALLOCATED]:
            finished = counts[TaskStatus.SUCCEEDED] + counts[TaskStatus.FAILED]
            if gang.key not in self._running and started + finished >= gang.min_member:
                first = next(iter(gang.tasks.values()))  # the others start with it
                pattern = pattern_of(gang)
                predicted = self.predictions.usual(pattern)
                since = float(first.traits.started) or now
                seconds, basis = self.of(gang)
                limit = seconds if basis is Basis.LIMIT else None
                size = gang.min_member
                self._running[gang.key] = _Running(since, pattern, predicted, size, limit)
                self._by_pattern.setdefault(pattern, set()).add(gang.key)
            return
        running = self._running.pop(gang.key, None)
        if running is not None:
            self._forget(gang.key, running.pattern)
        # A gang that was evicted, or is deleted while it runs, would have run for longer.
        if running is None or not (running.has_finished or _has_finished(gang)):
            return
        took = max(now - running.since, 0.0)
        self.predictions.observe(running.pattern, took, running.predicted)
        self.recent_runs.observe(Run(running.pattern, running.size, took, running.limit))
        others = self._by_pattern.get(running.pattern, set())
        if len(others) <= _MOST_OUTDATED:
            self._outdated |= others
        if running.predicted is not None:
            self._ended.append(PredictedRun(running.predicted, took))

    def _forget(self, key: str, pattern: Pattern) -> None:
        """Forget that the gang *key* runs."""
        self._outdated.discard(key)
        keys = self._by_pattern[pattern]
        keys.remove(key)
        if not keys:
            del self._by_pattern[pattern]

    def pop_outdated(self) -> set[str]:
        """Return the keys of gangs that run of which more is known since the last call: others of
        their pattern have ended."""
        outdated, self._outdated = self._outdated, set()
        return outdated

    def note_end(self, gang: Gang) -> None:
        """Remember whether *gang* has finished, before it loses a pod or its PodGroup: both may be
        deleted before the gang is observed again."""
        running = self._running.get(gang.key)
        if running is not None and not gang.counts.allocated and _has_finished(gang):
            running.has_finished = True

    def pop_predicted_runs(self) -> tuple[PredictedRun, ...]:
        """Return the gangs with a prediction that have ended since the last call."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def of(self, gang: Gang) -> RunTime:
        """Return the run time of *gang*."""
        annotations = gang.podgroup.metadata.annotations if gang.podgroup else {}
        limit = limit_of(annotations)
        if limit is None:
            limit = _deadline_of_pods(gang)
        if limit is not None:
            return RunTime(limit, Basis.LIMIT)
        estimate = seconds_of(annotations, names.RUNNING_ESTIMATE)
        if estimate is None:
            estimate = self._default_of_queue(gang)
        if estimate is not None:
            return RunTime(estimate, Basis.ESTIMATE)
        predicted = self.predictions.predict(gang)
        return UNKNOWN if predicted is None else RunTime(predicted, Basis.PREDICTION)

    def started_at(self, gang: Gang) -> float | None:
        """Return when as many pods of *gang* ran as it needs, in Unix time; ``None`` if they do
        not run yet."""
        started = sorted(
            float(task.traits.started)
            for task in gang.tasks.values()
            if task.status is TaskStatus.RUNNING and task.traits.started
        )
        # Pods that have succeeded started before: the count of those that run suffices.
        needed = max(gang.min_member - gang.counts.completed, 1)
        return None if len(started) < needed else started[needed - 1]

    def expected_end(self, gang: Gang, now: float) -> float | None:
        """Return when *gang*, which has pods on nodes, releases them, in Unix time; ``None`` if
        that is not known.

        A gang that is limited has ended its grace period after its limit. Once a prediction is
        exceeded, the next longer of the last run times counts. Without one, and for an estimate,
        what was exceeded is doubled until it is not.
        """
        seconds, basis = self.of(gang)
        if seconds is None:
            return None
        started = self.started_at(gang)
        if started is None:
            started = now
        if basis is Basis.LIMIT:
            return max(started + seconds + _grace_period(gang), now)
        running = self._running.get(gang.key)
        if basis is Basis.PREDICTION and running is not None:
            seconds, elapsed = running.predicted or seconds, now - started
            if seconds <= elapsed:
                longer = self.recent_runs.next_longer(running.pattern, running.size, elapsed)
                seconds = longer or seconds
        while started + seconds <= now:
            seconds = max(2 * seconds, 1.0)
        return started + seconds

    def probable_end(self, gang: Gang, now: float) -> float | None:
        """Return when *gang*, which has pods on nodes or would start now, probably ends, in Unix
        time; ``None`` if nothing is known.

        It is earlier than :meth:`expected_end` if the gang has a limit and similar ones ended
        before theirs.
        """
        limit, basis = self.of(gang)
        if limit is None or basis is not Basis.LIMIT:
            return self.expected_end(gang, now)
        started = self.started_at(gang)
        if started is None:
            started = now
        running = self._running.get(gang.key)
        pattern = pattern_of(gang) if running is None else running.pattern
        elapsed = max(now - started, 0.0)
        seconds = self.recent_runs.expect(pattern, gang.min_member, limit, elapsed)
        return max(started + seconds, now)

    def _default_of_queue(self, gang: Gang) -> float | None:
        for queue in self._queues_of(gang):
            seconds = seconds_of(queue.metadata.annotations, names.DEFAULT_TIME_LIMIT)
            if seconds is not None:
                return seconds
        return None


def _has_finished(gang: Gang) -> bool:
    return gang.counts.completed - gang.rejected >= max(gang.min_member, 1)


def _deadline_of_pods(gang: Gang) -> float | None:
    """Return the longest deadline of the pods; ``None`` if one of them has none."""
    longest = 0
    for task in gang.tasks.values():
        if task.traits.active_deadline is None:
            return None
        longest = max(longest, task.traits.active_deadline)
    return float(longest) if longest else None


def _grace_period(gang: Gang) -> int:
    return max((task.traits.grace_period for task in gang.tasks.values()), default=0)
