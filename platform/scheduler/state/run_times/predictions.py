"""Predictions of run times from former gangs.

A user often runs much the same job again: the run times of the last jobs of one user predict the
next one better than limits that users set (Tsafrir, Etsion and Feitelson, 2007). Their median is
used, which a single job that failed at once does not change.
"""

import re
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from ..gangs.gang import Gang
from ..gangs.users import user_of

MAX_PATTERNS = 4_000
"""Patterns that are remembered; those not seen for longest are forgotten."""

_REMEMBERED = 5
"""Run times that are remembered of a pattern."""

COMPARED_RUNS = 200
"""Of how many of the last gangs at most the predictions are compared with what is known without
them."""

LEAST_COMPARED = 20
"""How many of them are needed for a comparison."""

_BETTER = 0.95
"""Predictions that were of no use count again once their error is this fraction of that of the
median. Between this and one, nothing changes: the errors of few gangs are close to each other by
chance."""

_SMALL_ERROR = 0.25
"""Predictions whose mean error is smaller are always used."""

_VARYING = re.compile(r"[0-9]+|(?<=-)(?=[a-z0-9]*[0-9])[a-z0-9]{5,}")
"""What differs in names from job to job: numbers, and generated suffixes with digits."""

Pattern = tuple[str, str, str]
"""Queue, user and name pattern."""


class Record(msgspec.Struct, array_like=True):
    """What is remembered of a pattern."""

    pattern: Pattern
    last: list[float]
    """Run times of the last gangs in seconds, the latest one last."""


class PredictedRun(NamedTuple):
    """What was predicted for a gang when it started, and how long it ran, in seconds."""

    predicted: float
    took: float


class Usefulness:
    """Whether predictions are better than the median run time of all gangs.

    Where all gangs are of one pattern and have nothing else in common, a prediction is a random
    number, and a start that is planned by it delays others in vain.
    """

    def __init__(self) -> None:
        """Start without gangs."""
        self._runs: deque[float] = deque()
        self._ordered: list[float] = []
        self._errors: deque[tuple[float, float]] = deque(maxlen=COMPARED_RUNS)
        """Of predictions and of the median, both from 0 to 1."""
        self.is_given = True

    def observe(self, seconds: float, predicted: float | None) -> None:
        """Learn that a gang has run for *seconds* for which *predicted* was expected."""
        if predicted is not None and self._ordered:
            usual = _median(self._ordered)
            self._errors.append((_error(predicted, seconds), _error(usual, seconds)))
        self._runs.append(seconds)
        insort(self._ordered, seconds)
        if len(self._runs) > COMPARED_RUNS:
            self._ordered.remove(self._runs.popleft())
        if predicted is not None and len(self._errors) >= LEAST_COMPARED:
            error, usual_error = map(fmean, zip(*self._errors, strict=True))
            bound = usual_error if self.is_given else _BETTER * usual_error
            self.is_given = error < max(bound, _SMALL_ERROR)


def _error(predicted: float, took: float) -> float:
    """Return the difference as a fraction of the larger one, so that a gang that ended at once does
    not outweigh all others; less than a second counts as one."""
    return abs(predicted - took) / max(predicted, took, 1.0)


def _median(ordered: Sequence[float]) -> float:
    """Return the median of *ordered*."""
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2


class Predictions:
    """The run times of the last gangs, by queue, user and name pattern."""

    def __init__(self) -> None:
        """Start without any."""
        self._records: OrderedDict[Pattern, Record] = OrderedDict()
        self.usefulness = Usefulness()
        self.version = 0
        """Grows with each change."""

    def predict(self, gang: Gang) -> float | None:
        """Return the predicted run time in seconds; ``None`` if there is none of use."""
        return self.of_pattern(pattern_of(gang))

    def of_pattern(self, pattern: Pattern) -> float | None:
        """Return the predicted run time of gangs of *pattern* in seconds, at least one; ``None`` if
        there is none of use."""
        return self.usual(pattern) if self.usefulness.is_given else None

    def usual(self, pattern: Pattern) -> float | None:
        """Return the median run time of the last gangs of *pattern*, at least one second."""
        record = self._records.get(pattern)
        # Not statistics.median: this is called for each waiting gang in each cycle.
        return None if record is None else max(_median(sorted(record.last)), 1.0)

    def observe(self, pattern: Pattern, seconds: float, predicted: float | None = None) -> None:
        """Learn that a gang of *pattern* ran for *seconds*; *predicted* is what was when it
        started."""
        record = self._records.pop(pattern, None) or Record(pattern, [])
        record.last = [*record.last[1 - _REMEMBERED :], round(seconds, 3)]
        self._records[pattern] = record
        self.usefulness.observe(seconds, predicted)
        while len(self._records) > MAX_PATTERNS:
            self._records.popitem(last=False)
        self.version += 1

    def encode(self) -> str:
        """Return what is remembered as text, to be restored after a restart."""
        return msgspec.json.encode(list(self._records.values())).decode()

    def restore(self, text: str) -> None:
        """Remember what :meth:`encode` has returned, unless something newer is known.

        Raises:
            ValueError: the text is malformed.
        """
        records = msgspec.json.decode(text, type=list[Record])
        newer = self._records
        self._records = OrderedDict(
            (each.pattern, each) for each in records if each.last and each.pattern not in newer
        )
        self._records.update(newer)
        while len(self._records) > MAX_PATTERNS:
            self._records.popitem(last=False)


def pattern_of(gang: Gang) -> Pattern:
    """Return the pattern of *gang*; its user is the one who submitted it, or else its namespace."""
    podgroup = gang.podgroup
    if podgroup is None:
        return "", gang.namespace, ""
    owner = podgroup.metadata.controller
    name = owner.name if owner is not None else gang.name
    return gang.queue_name, user_of(gang), _VARYING.sub("#", name)
