"""The calculation of HorizontalPodAutoscalers."""

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.local.workloads.autoscaler_limits import (
    Behavior,
    History,
    Request,
    ScalingPolicy,
    ScalingRules,
    limit,
)
from batholith.local.workloads.autoscaler_metrics import (
    MetricsError,
    PodState,
    PodUsage,
    Proposal,
    Target,
    Tolerance,
    propose,
)

NOW = 1_000_000.0
UTILIZATION = Target(50, is_utilization=True)
PODS_OR_DOUBLE = ScalingRules(
    stabilization_window_seconds=0,
    policies=(ScalingPolicy("Pods", 4, 15), ScalingPolicy("Percent", 100, 15)),
)
HALF_A_MINUTE = ScalingRules(policies=(ScalingPolicy("Percent", 50, 60),))


def pod(name: str, **changes: object) -> PodState:
    old = PodState(name=name, started_at=0.0, ready=True, ready_since=10.0, request=1000)
    return replace(old, **changes)  # type: ignore[arg-type]


def proposed(
    current: int, pods: list[PodState], usages: dict[str, int], target: Target = UTILIZATION
) -> Proposal:
    return propose(
        current,
        target,
        pods=pods,
        usages={name: PodUsage(value, NOW) for name, value in usages.items()},
        resource="cpu",
        tolerance=Tolerance(),
        now=NOW,
    )


def test_replicas_are_proportional_to_the_usage() -> None:
    pods = [pod("a"), pod("b")]
    assert proposed(2, pods, {"a": 900, "b": 700}) == Proposal(4, 800, 80)
    assert proposed(2, pods, {"a": 520, "b": 500}) == Proposal(2, 510, 51)  # within a tenth
    plain = Target(100, is_utilization=False)
    assert proposed(2, pods, {"a": 300, "b": 100}, plain) == Proposal(4, 200, None)


def test_pods_without_usage_count_as_if_the_change_had_taken_place() -> None:
    pods = [pod("a"), pod("b"), pod("c")]
    # Up: nothing of c's request, so 66 percent of all requests instead of 100.
    assert proposed(3, pods, {"a": 1000, "b": 1000}).replicas == 4
    assert proposed(3, pods, {"a": 800, "b": 800}).replicas == 3
    # Down: all of c's request, which would mean more replicas.
    assert proposed(3, pods, {"a": 300, "b": 300}).replicas == 3


def test_a_pod_that_starts_does_not_count_down_but_damps_up() -> None:
    new = pod("c", started_at=NOW - 60, ready=False, ready_since=NOW - 60)
    pods = [pod("a"), pod("b"), new]
    assert proposed(3, pods, {"a": 100, "b": 100, "c": 1000}).replicas == 1
    assert proposed(3, pods, {"a": 1000, "b": 1000, "c": 1000}).replicas == 4


def test_failed_and_terminating_pods_do_not_count() -> None:
    pods = [pod("a"), pod("b", phase="Failed"), pod("c", deleting=True)]
    assert proposed(1, pods, {"a": 500, "b": 0, "c": 0}) == Proposal(1, 500, 50)


@pytest.mark.parametrize(
    ("pods", "usages", "message"),
    [
        ([], {"a": 1}, "no pods returned by selector"),
        ([pod("a", phase="Pending")], {"a": 1}, "pods might be unready"),
        ([pod("a", request_error="missing request for cpu")], {"a": 1}, "missing request for cpu"),
        ([pod("a")], {"z": 1}, "no metrics returned matched known pods"),
    ],
)
def test_errors_name_what_is_missing(
    pods: list[PodState], usages: dict[str, int], message: str
) -> None:
    with pytest.raises(MetricsError, match=message):
        proposed(1, pods, usages)


@settings(max_examples=examples(200))
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=8),
    st.integers(1, 200),
    st.integers(1, 2000),
)
def test_the_proposal_brings_ready_pods_to_the_target(
    values: list[int], percent: int, request: int
) -> None:
    pods = [pod(str(index), request=request) for index in range(len(values))]
    target = Target(percent, is_utilization=True)
    usages = {str(index): value for index, value in enumerate(values)}
    found = proposed(len(values), pods, usages, target)
    utilization = sum(values) * 100 // (request * len(values))
    assert found.utilization == utilization
    ratio = utilization / percent
    if 0.9 <= ratio <= 1.1:
        assert found.replicas == len(values)
    else:
        assert found.replicas == math.ceil(ratio * len(values))


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 200),
)
def test_pods_without_usage_never_turn_the_direction(
    states: list[tuple[int, bool]], percent: int
) -> None:
    pods = [pod(str(index)) for index in range(len(states))]
    usages = {str(i): value for i, (value, measured) in enumerate(states) if measured}
    target, current = Target(percent, is_utilization=True), len(states)
    if not usages:
        with pytest.raises(MetricsError):
            proposed(current, pods, usages, target)
        return
    found = proposed(current, pods, usages, target)
    assert found.utilization is not None
    if found.utilization > percent:
        assert found.replicas >= current
    elif found.utilization < percent:
        assert found.replicas <= current


def request(current: int, desired: int, now: float = NOW, maximum: int = 100) -> Request:
    return Request(current=current, desired=desired, minimum=1, maximum=maximum, now=now)


def test_without_a_behavior_the_highest_recommendation_of_five_minutes_counts() -> None:
    history = History()
    limit(request(6, 6), None, history)
    found = limit(request(6, 2, NOW + 299), None, history)
    assert (found.replicas, found.able_to_scale.reason) == (6, "ScaleDownStabilized")
    found = limit(request(6, 2, NOW + 301), None, history)
    assert (found.replicas, found.able_to_scale.reason) == (2, "ReadyForNewScale")


def test_without_a_behavior_replicas_at_most_double() -> None:
    found = limit(request(3, 50), None, History())
    assert (found.replicas, found.scaling_limited.reason, found.is_limited) == (
        (6, "ScaleUpLimit", True)
    )
    assert limit(request(1, 50), None, History()).replicas == 4
    found = limit(request(3, 50, maximum=5), None, History())
    assert (found.replicas, found.scaling_limited.reason) == (5, "TooManyReplicas")


def test_policies_limit_what_changes_in_their_periods() -> None:
    behavior = Behavior(scale_up=PODS_OR_DOUBLE, scale_down=HALF_A_MINUTE)
    history = History()
    assert limit(request(10, 50), behavior, history).replicas == 20
    history.changed(NOW, 10, 20, behavior)
    found = limit(request(20, 50, NOW + 10), behavior, history)
    assert (found.replicas, found.scaling_limited.reason) == (20, "ScaleUpLimit")
    assert limit(request(20, 50, NOW + 15), behavior, history).replicas == 40


def test_a_disabled_direction_does_not_change() -> None:
    behavior = Behavior(
        scale_up=replace_rules(PODS_OR_DOUBLE, select_policy="Disabled"),
        scale_down=replace_rules(HALF_A_MINUTE, select_policy="Disabled"),
    )
    assert limit(request(5, 9), behavior, History()).replicas == 5
    assert limit(request(5, 2), behavior, History()).replicas == 5


def replace_rules(rules: ScalingRules, **changes: object) -> ScalingRules:
    return msgspec.structs.replace(rules, **changes)


_policies = st.builds(
    ScalingPolicy, st.sampled_from(["Pods", "Percent"]), st.integers(1, 200), st.integers(1, 120)
)
_rules = st.builds(
    ScalingRules,
    stabilization_window_seconds=st.one_of(st.none(), st.integers(0, 120)),
    select_policy=st.sampled_from(["Max", "Min", "Disabled"]),
    policies=st.lists(_policies, min_size=1, max_size=3).map(tuple),
)


@settings(max_examples=examples(200))
@given(
    st.builds(Behavior, scale_up=_rules, scale_down=_rules),
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=20),
)
def test_replicas_stay_within_the_range_and_move_towards_a_recommendation(
    behavior: Behavior, steps: list[tuple[int, int]]
) -> None:
    history, current, now = History(), 10, NOW
    recent: list[int] = [current]
    for seconds, desired in steps:
        now += seconds
        recent.append(desired)
        found = limit(request(current, desired, now, maximum=40), behavior, history)
        assert 1 <= found.replicas <= max(40, current)
        assert min(*recent, current) <= found.replicas <= max(*recent, current)
        assert found.is_limited == (found.scaling_limited.reason != "DesiredWithinRange")
        if found.replicas != current:
            history.changed(now, current, found.replicas, behavior)
        current = found.replicas
