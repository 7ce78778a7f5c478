"""How far and how fast HorizontalPodAutoscalers change a number of replicas."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...model.base import ApiStruct

SCALE_DOWN_WINDOW = 300
"""Seconds of past recommendations of which the highest one counts."""

_FACTOR, _MINIMUM = 2, 4
"""Without a behavior, a change at most doubles the replicas, or leads to this many."""

_LOWEST, _HIGHEST = -(2**31), 2**31 - 1

DISABLED, MIN = "Disabled", "Min"


class ScalingPolicy(ApiStruct, frozen=True):
    """One policy of a behavior."""

    type: str = "Percent"
    value: int = 100
    period_seconds: int = 15


class ScalingRules(ApiStruct, frozen=True):
    """Behavior in one direction."""

    stabilization_window_seconds: int | None = None
    select_policy: str = "Max"
    policies: tuple[ScalingPolicy, ...] = ()
    tolerance: str | None = None


class Behavior(ApiStruct, frozen=True):
    """``spec.behavior``, with the defaults of the API server."""

    scale_up: ScalingRules = ScalingRules()
    scale_down: ScalingRules = ScalingRules()


class Reason(NamedTuple):
    """Reason and message of a condition."""

    reason: str
    message: str


WITHIN_RANGE = Reason("DesiredWithinRange", "the desired count is within the acceptable range")
TOO_FEW = Reason(
    "TooFewReplicas", "the desired replica count is less than the minimum replica count"
)
TOO_MANY = Reason(
    "TooManyReplicas", "the desired replica count is more than the maximum replica count"
)
UP_LIMIT = Reason(
    "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"
)
DOWN_LIMIT = Reason(
    "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"
)
DOWN_STABILIZED = Reason(
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent"
    " recommendation",
)
UP_STABILIZED = Reason(
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
)
READY = Reason("ReadyForNewScale", "recommended size matches current size")


@dataclass(slots=True)
class History:
    """Past recommendations and changes of one autoscaler; times of a monotonic clock."""

    recommendations: list[tuple[float, int]] = field(default_factory=list)
    ups: list[tuple[float, int]] = field(default_factory=list)
    """When replicas were added, and how many."""

    downs: list[tuple[float, int]] = field(default_factory=list)

    def recommend(self, now: float, replicas: int, keep: float) -> None:
        """Add a recommendation; drop those that are older than *keep* seconds."""
        kept = [each for each in self.recommendations if each[0] >= now - keep]
        self.recommendations = [*kept, (now, replicas)]

    def changed(self, now: float, before: int, after: int, behavior: Behavior) -> None:
        """Add a change; drop those that are older than the periods of all policies."""
        events, rules = (
            (self.ups, behavior.scale_up) if after > before else (self.downs, behavior.scale_down)
        )
        period = max((each.period_seconds for each in rules.policies), default=0)
        events[:] = [each for each in events if each[0] >= now - period]
        events.append((now, abs(after - before)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The replicas that metrics ask for, and the limits of the spec."""

    current: int
    desired: int
    minimum: int
    maximum: int
    now: float


@dataclass(frozen=True, slots=True)
class Limited:
    """The replicas within all limits, and the reasons of the conditions."""

    replicas: int
    able_to_scale: Reason
    scaling_limited: Reason
    is_limited: bool


def limit(request: Request, behavior: Behavior | None, history: History) -> Limited:
    """Return the replicas for *request*, which is added to *history*."""
    if behavior is None:
        stabilized, why = _highest_recent(request, history)
        replicas, reason = _within_range(request, stabilized)
    else:
        stabilized, why = _stabilize(request, behavior, history)
        replicas, reason = _within_rates(request, stabilized, behavior, history)
    able = READY if stabilized == request.desired else why
    return Limited(replicas, able, reason, is_limited=replicas != stabilized)


def _highest_recent(request: Request, history: History) -> tuple[int, Reason]:
    cutoff = request.now - SCALE_DOWN_WINDOW
    recent = [replicas for at, replicas in history.recommendations if at >= cutoff]
    history.recommend(request.now, request.desired, SCALE_DOWN_WINDOW)
    return max(request.desired, *recent) if recent else request.desired, DOWN_STABILIZED


def _within_range(request: Request, desired: int) -> tuple[int, Reason]:
    fastest = max(_FACTOR * request.current, _MINIMUM)
    highest, reason = (
        (fastest, UP_LIMIT) if request.maximum > fastest else (request.maximum, TOO_MANY)
    )
    if desired < request.minimum:
        return request.minimum, TOO_FEW
    return (highest, reason) if desired > highest else (desired, WITHIN_RANGE)


def _window(rules: ScalingRules, default: int) -> int:
    given = rules.stabilization_window_seconds
    return default if given is None else given


def _stabilize(request: Request, behavior: Behavior, history: History) -> tuple[int, Reason]:
    """Keep the current number between the lowest and the highest recent recommendation."""
    up_window = _window(behavior.scale_up, 0)
    down_window = _window(behavior.scale_down, SCALE_DOWN_WINDOW)
    lowest = highest = request.desired
    for at, replicas in history.recommendations:
        if at > request.now - up_window:
            lowest = min(lowest, replicas)
        if at > request.now - down_window:
            highest = max(highest, replicas)
    history.recommend(request.now, request.desired, max(up_window, down_window))
    grows = request.desired >= request.current
    stabilized = min(max(request.current, lowest), highest)
    return stabilized, UP_STABILIZED if grows else DOWN_STABILIZED


def _within_rates(
    request: Request, desired: int, behavior: Behavior, history: History
) -> tuple[int, Reason]:
    current = request.current
    if desired > current:
        fastest = max(_up_limit(current, behavior.scale_up, history, request.now), current)
        highest, reason = (
            (fastest, UP_LIMIT) if request.maximum > fastest else (request.maximum, TOO_MANY)
        )
        if desired > highest:
            return highest, reason
    elif desired < current:
        fastest = min(_down_limit(current, behavior.scale_down, history, request.now), current)
        lowest, reason = (
            (fastest, DOWN_LIMIT) if request.minimum < fastest else (request.minimum, TOO_FEW)
        )
        if desired < lowest:
            return lowest, reason
    return desired, WITHIN_RANGE


def _up_limit(current: int, rules: ScalingRules, history: History, now: float) -> int:
    if rules.select_policy == DISABLED:
        return current
    proposed = [
        start + policy.value
        if policy.type == "Pods"
        else math.ceil(start * (1 + policy.value / 100))
        for policy, start in _starts(current, rules.policies, history, now)
    ]
    if rules.select_policy == MIN:
        return min(proposed, default=_HIGHEST)
    return max(proposed, default=_LOWEST)


def _down_limit(current: int, rules: ScalingRules, history: History, now: float) -> int:
    if rules.select_policy == DISABLED:
        return current
    proposed = [
        start - policy.value if policy.type == "Pods" else int(start * (1 - policy.value / 100))
        for policy, start in _starts(current, rules.policies, history, now)
    ]
    if rules.select_policy == MIN:  # the smallest change leaves the most replicas
        return max(proposed, default=_LOWEST)
    return min(proposed, default=_HIGHEST)


def _starts(
    current: int, policies: Sequence[ScalingPolicy], history: History, now: float
) -> Iterable[tuple[ScalingPolicy, int]]:
    """Yield each policy with the replicas at the beginning of its period."""
    for policy in policies:
        since = now - policy.period_seconds
        added = sum(count for at, count in history.ups if at > since)
        removed = sum(count for at, count in history.downs if at > since)
        yield policy, current - added + removed
