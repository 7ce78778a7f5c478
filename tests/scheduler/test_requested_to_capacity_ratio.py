"""The scoring strategy RequestedToCapacityRatio, as kube-scheduler's NodeResourcesFit has it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.scheduler import conf
from batholith.scheduler.plugins.arguments import Arguments
from batholith.scheduler.plugins.resource_strategy_fit import ResourceStrategyFitPlugin, Strategy

BIN_PACKING = "[{utilization: 0, score: 0}, {utilization: 100, score: 10}]"
HALF_FULL = "[{utilization: 0, score: 0}, {utilization: 50, score: 10}, {utilization: 100}]"


def text(shape: str, *, kind: str = "RequestedToCapacityRatio") -> str:
    resources = f"{{cpu: {{type: {kind}, shape: {shape}}}}}"
    plugin = f"{{name: resource-strategy-fit, arguments: {{resources: {resources}}}}}"
    return f'actions: "allocate"\ntiers:\n- plugins: [{{name: gang}}, {plugin}]'


def world(shape: str) -> SchedulerWorld:
    """Three nodes, of which one is empty, one nearly half full and one nearly full."""
    found = SchedulerWorld(text(shape))
    for name, used in (("empty", 0), ("half", 4), ("full", 8)):
        found.upsert(node(name, cpu=10))
        if used:
            found.upsert(pod(f"on-{name}", node_name=name, scheduler="other", cpu=used))
    found.upsert(podgroup("g", 1), pod("g-x-0", "g"))
    return found


@pytest.mark.parametrize(("shape", "chosen"), [(BIN_PACKING, "full"), (HALF_FULL, "half")])
def test_the_node_whose_utilization_scores_most_is_chosen(shape: str, chosen: str) -> None:
    assert world(shape).schedule() == {"g-x-0": chosen}


points = st.lists(st.integers(0, 100), min_size=1, max_size=5, unique=True).flatmap(
    lambda xs: st.tuples(
        st.just(sorted(xs)), st.lists(st.integers(0, 10), min_size=len(xs), max_size=len(xs))
    )
)


@given(points=points, percent=st.integers(0, 100))
def test_scores_are_on_the_line_through_the_points(
    points: tuple[list[int], list[int]], percent: int
) -> None:
    shape = tuple(zip(*points, strict=True))
    strategy = Strategy("RequestedToCapacityRatio", 1, shape)
    (found,) = strategy.scores(np.array([percent / 100])).tolist()
    assert found == pytest.approx(_line(shape, percent) / 10)


def _line(shape: tuple[tuple[int, int], ...], at: int) -> float:
    """The score of utilization *at*, by the rule written out longhand."""
    if at <= shape[0][0]:
        return shape[0][1]
    for (left, low), (right, high) in pairwise(shape):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return shape[-1][1]


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ("[]", "must be a list of points"),
        ("[{utilization: 50, score: 1}, {utilization: 50, score: 2}]", "utilization must increase"),
        ("[{utilization: 101, score: 1}]", "utilization must be from 0 to 100"),
        ("[{score: 1}]", "utilization must be from 0 to 100"),
        ("[{utilization: 0, score: 11}]", "score must be from 0 to 10"),
        ("[{utilization: 0, points: 1}]", "unknown entry 'points'"),
        ("[7]", "utilization must be from 0 to 100"),
    ],
)
def test_invalid_shapes_are_named(shape: str, problem: str) -> None:
    with pytest.raises(conf.ConfError, match=problem):
        conf.load(text(shape))


def test_only_this_strategy_has_a_shape_and_it_needs_one() -> None:
    with pytest.raises(conf.ConfError, match="type MostAllocated has a shape"):
        conf.load(text(BIN_PACKING, kind="MostAllocated"))
    resources = {"cpu": {"type": "RequestedToCapacityRatio"}}
    with pytest.raises(ValueError, match="must have a shape"):
        ResourceStrategyFitPlugin(Arguments({"resources": resources}))
