"""How many replicas the usage of pods asks for: the calculation of HorizontalPodAutoscalers."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

CPU = "cpu"
CPU_INITIALIZATION_PERIOD = 300.0
"""Seconds after its start in which the CPU usage of a pod counts only while it is ready."""

INITIAL_READINESS_DELAY = 30.0
"""Seconds after its start in which a pod that has become unready counts as never ready."""


class MetricsError(Exception):
    """A number of replicas cannot be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """By how much usage may differ from the target without a change; fractions of it."""

    up: float = 0.1
    down: float = 0.1

    def includes(self, ratio: float) -> bool:
        """Return whether *ratio* of usage and target is near enough to 1."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """What the calculation reads of a pod; times in seconds since the epoch."""

    name: str
    phase: str = "Running"
    deleting: bool = False
    started_at: float | None = None
    ready: bool | None = None
    """The condition Ready; ``None`` if there is none."""

    ready_since: float = 0.0
    """When it changed."""

    request: int = 0
    """Thousandths that the pod, or one of its containers, requests."""

    request_error: str = ""
    """Why there is no request."""


@dataclass(frozen=True, slots=True)
class PodUsage:
    """Usage of a pod in thousandths, measured during *window* seconds before *at*."""

    value: int
    at: float
    window: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """Target of the usage of each pod: a percentage of its request, or thousandths."""

    value: int
    is_utilization: bool


@dataclass(frozen=True, slots=True)
class Proposal:
    """Replicas that one metric asks for, and what was measured."""

    replicas: int
    average: int
    """Thousandths for each pod."""

    utilization: int | None = None
    """Percent of the requests."""


def propose(
    current: int,
    target: Target,
    *,
    pods: Collection[PodState],
    usages: Mapping[str, PodUsage],
    resource: str,
    tolerance: Tolerance,
    now: float,
) -> Proposal:
    """Return the replicas for which each pod would use as much as the *target*.

    Pods without usage, and those that are not ready, damp the change: they count as if it were
    done already.

    Raises:
        MetricsError: no pod counts.
    """
    if not pods:
        raise MetricsError("no pods returned by selector while calculating replica count")
    groups = _group(pods, usages, resource=resource, now=now)
    values = {name: each.value for name, each in usages.items() if name not in groups.excluded}
    if not values:
        raise MetricsError("did not receive metrics for targeted pods (pods might be unready)")
    requests = _requests(pods, target)
    measured = _compare(values, requests, target)
    proposal = Proposal(current, measured.average, measured.utilization)
    counts_unready = bool(groups.unready) and measured.ratio > 1.0
    if not counts_unready and not groups.missing:
        if tolerance.includes(measured.ratio):
            return proposal
        return replace(proposal, replicas=math.ceil(measured.ratio * groups.ready_count))
    values |= _assumed(groups, measured.ratio, target, requests)
    damped = _compare(values, requests, target).ratio
    replicas = math.ceil(damped * len(values))
    # The assumptions must not reverse the change.
    if tolerance.includes(damped) or _is_turned(measured.ratio, damped, current, replicas):
        return proposal
    return replace(proposal, replicas=replicas)


def propose_for_value(
    current: int, value: int, target: int, *, ready: int, tolerance: Tolerance
) -> int:
    """Return the replicas for which one *value* would be the *target*, which *ready* pods cause."""
    ratio = value / target
    return current if tolerance.includes(ratio) else math.ceil(ratio * ready)


def propose_for_average(
    replicas: int, value: int, target: int, *, tolerance: Tolerance
) -> Proposal:
    """Return the replicas of which each would have the *target* as its share of *value*."""
    average = math.ceil(value / replicas) if replicas else value
    if replicas and tolerance.includes(value / (target * replicas)):
        return Proposal(replicas, average)
    return Proposal(math.ceil(value / target), average)


def _requests(pods: Collection[PodState], target: Target) -> dict[str, int]:
    """Return the requests by pod.

    Raises:
        MetricsError: one has none, and the target is a percentage of it.
    """
    if target.is_utilization and (error := next(filter(None, (p.request_error for p in pods)), "")):
        raise MetricsError(error)
    return {pod.name: pod.request for pod in pods}


def _assumed(
    groups: "_Groups", ratio: float, target: Target, requests: Mapping[str, int]
) -> dict[str, int]:
    """Return what the pods count for whose usage is not known."""
    values = {}
    if ratio > 1.0:
        values = dict.fromkeys(groups.missing | groups.unready, 0)
    elif ratio < 1.0:
        full = max(100, target.value)
        for name in groups.missing:
            values[name] = requests[name] * full // 100 if target.is_utilization else target.value
    return values


def _is_turned(ratio: float, damped: float, current: int, replicas: int) -> bool:
    if (ratio < 1.0 < damped) or (damped < 1.0 < ratio):
        return True
    return (damped < 1.0 and replicas > current) or (damped > 1.0 and replicas < current)


@dataclass(frozen=True, slots=True)
class _Groups:
    ready_count: int
    unready: set[str]
    missing: set[str]
    ignored: set[str]

    @property
    def excluded(self) -> set[str]:
        return self.unready | self.ignored


def _group(
    pods: Iterable[PodState], usages: Mapping[str, PodUsage], *, resource: str, now: float
) -> _Groups:
    """Group pods by whether their usage counts."""
    groups = _Groups(0, set(), set(), set())
    ready_count = 0
    for pod in pods:
        if pod.deleting or pod.phase == "Failed":
            groups.ignored.add(pod.name)
        elif pod.phase == "Pending":
            groups.unready.add(pod.name)
        elif pod.name not in usages:
            groups.missing.add(pod.name)
        elif resource == CPU and _is_starting(pod, usages[pod.name], now):
            groups.unready.add(pod.name)
        else:
            ready_count += 1
    return _Groups(ready_count, groups.unready, groups.missing, groups.ignored)


def _is_starting(pod: PodState, usage: PodUsage, now: float) -> bool:
    """Return whether the CPU usage of a pod is that of its start."""
    if pod.ready is None or pod.started_at is None:
        return True
    if pod.started_at + CPU_INITIALIZATION_PERIOD > now:
        return not pod.ready or usage.at < pod.ready_since + usage.window
    return not pod.ready and pod.started_at + INITIAL_READINESS_DELAY > pod.ready_since


@dataclass(frozen=True, slots=True)
class _Comparison:
    ratio: float
    average: int
    utilization: int | None


def _compare(values: Mapping[str, int], requests: Mapping[str, int], target: Target) -> _Comparison:
    """Compare usage with the target.

    Raises:
        MetricsError: the usage is of no pod that exists.
    """
    if not target.is_utilization:
        average = sum(values.values()) // len(values)
        return _Comparison(average / target.value, average, None)
    known = [name for name in values if name in requests]
    requested = sum(requests[name] for name in known)
    if not known or not requested:
        raise MetricsError("no metrics returned matched known pods")
    used = sum(values[name] for name in known)
    utilization = used * 100 // requested
    return _Comparison(utilization / target.value, used // len(known), utilization)
