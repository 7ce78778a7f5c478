"""Feasible nodes of a pod, and their scores."""

import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.node_selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from batholith.scheduler.state.core_types import (
    Affinity,
    NodeAffinity,
    PreferredSchedulingTerm,
    Taint,
    Toleration,
)


def required(*requirements: NodeSelectorRequirement, by_field: bool = False) -> Affinity:
    term = (
        NodeSelectorTerm(match_fields=requirements)
        if by_field
        else NodeSelectorTerm(match_expressions=requirements)
    )
    terms = NodeSelector(node_selector_terms=(term,))
    return Affinity(
        node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=terms)
    )


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ("x", "y"), {"has-x"}),
        ("NotIn", ("x",), {"has-none", "has-5"}),
        ("Exists", (), {"has-x", "has-5"}),
        ("DoesNotExist", (), {"has-none"}),
        ("Gt", ("4",), {"has-5"}),
        ("Gt", ("5",), set()),
        ("Lt", ("6",), {"has-5"}),
        ("Lt", (), set()),
        ("Unknown", ("x",), set()),
    ],
)
def test_required_affinity(operator: str, values: tuple[str, ...], expected: set[str]) -> None:
    world = SchedulerWorld()
    world.upsert(
        node("has-x", labels={"l": "x"}), node("has-5", labels={"l": "5"}), node("has-none")
    )
    requirement = required(NodeSelectorRequirement(key="l", operator=operator, values=values))
    world.upsert(*(podgroup(f"g{i}", 1) for i in range(3)))
    world.upsert(*(pod(f"p{i}", f"g{i}", cpu=8, affinity=requirement) for i in range(3)))
    assert set(world.schedule().values()) == expected


def test_required_affinity_by_node_name() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), node("b"), podgroup("g", 1))
    requirement = NodeSelectorRequirement(key="metadata.name", operator="In", values=("b",))
    world.upsert(pod("p", "g", affinity=required(requirement, by_field=True)))
    assert world.schedule() == {"p": "b"}


def test_empty_term_matches_no_node() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("p", "g", affinity=required()))
    assert world.schedule() == {}
    assert world.fit_message("g") == (
        "0/1 nodes are unavailable: 1 node(s) didn't match Pod's node affinity/selector."
    )


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration(key="k", value="v"), True),
        (Toleration(key="k", value="other"), False),
        (Toleration(key="k", operator="Exists"), True),
        (Toleration(key="other", operator="Exists"), False),
        (Toleration(operator="Exists"), True),
        (Toleration(operator="Exists", effect="NoExecute"), False),
        (Toleration(key="k", value="v", effect="NoSchedule"), True),
        (Toleration(value="v"), False),
    ],
)
def test_taints_and_tolerations(toleration: Toleration, tolerated: bool) -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a", taints=(Taint(key="k", value="v", effect="NoSchedule"),)), podgroup("g", 1)
    )
    world.upsert(pod("p", "g", tolerations=(toleration,)))
    assert bool(world.schedule()) is tolerated
    if not tolerated:
        assert "1 node(s) had untolerated taint {k: v}" in world.fit_message("g")


@pytest.mark.parametrize(
    ("operator", "bound", "value", "tolerated"),
    [
        ("Gt", "5", "6", True),
        ("Gt", "5", "5", False),
        ("Lt", "-5", "-6", True),
        ("Lt", "5", "6", False),
        ("Gt", "05", "6", False),
        ("Gt", "5", "six", False),
        ("Lt", "9223372036854775808", "5", False),
    ],
)
def test_tolerations_compare_numbers(
    operator: str, bound: str, value: str, tolerated: bool
) -> None:
    world = SchedulerWorld()
    taint = Taint(key="k", value=value, effect="NoSchedule")
    world.upsert(node("a", taints=(taint,)), podgroup("g", 1))
    toleration = Toleration(key="k", operator=operator, value=bound)
    world.upsert(pod("p", "g", tolerations=(toleration,)))
    assert bool(world.schedule()) is tolerated


def test_cordoned_node_is_feasible_for_pods_that_tolerate_it() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cordoned=True), podgroup("g", 1), pod("p", "g"))
    assert world.schedule() == {}
    assert world.fit_message("g") == "0/1 nodes are unavailable: 1 node(s) were unschedulable."
    toleration = Toleration(key="node.kubernetes.io/unschedulable", operator="Exists")
    world.upsert(podgroup("h", 1), pod("q", "h", tolerations=(toleration,)))
    assert world.schedule() == {"q": "a"}


def test_rejected_gang_is_tried_again_when_a_node_is_uncordoned() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cordoned=True), podgroup("g", 1), pod("p", "g"))
    assert world.schedule() == {}
    world.upsert(node("a"))
    assert world.schedule() == {"p": "a"}


def test_reasons_are_counted_by_node() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a", cordoned=True), node("b", cpu=1), node("c", cpu=2), node("d", cordoned=True)
    )
    world.upsert(podgroup("g", 1), pod("p", "g", cpu=4))
    assert world.schedule() == {}
    assert world.fit_message("g") == (
        "0/4 nodes are unavailable: 2 Insufficient cpu (requested 4, most free 2), "
        "2 node(s) were unschedulable."
    )


def test_first_insufficient_resource_is_in_the_fit_error() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", memory="1Gi"), podgroup("g", 1), pod("p", "g", memory="2Gi"))
    assert world.schedule() == {}
    assert "1 Insufficient memory (requested 2Gi, free 1Gi)" in world.fit_message("g")


def test_fit_error_without_nodes() -> None:
    world = SchedulerWorld()
    world.upsert(podgroup("g", 1), pod("p", "g", cpu=0))
    assert world.schedule() == {}
    assert world.fit_message("g") == "0/0 nodes are available: the cluster has no nodes"


def test_preferred_affinity_decides_between_equal_nodes() -> None:
    world = SchedulerWorld()
    term = NodeSelectorTerm(
        match_expressions=(NodeSelectorRequirement(key="l", operator="Exists"),)
    )
    affinity = NodeAffinity(
        preferred_during_scheduling_ignored_during_execution=(
            PreferredSchedulingTerm(weight=1, preference=term),
        )
    )
    world.upsert(node("a"), node("b", labels={"l": ""}), podgroup("g", 1))
    world.upsert(pod("p", "g", affinity=Affinity(node_affinity=affinity)))
    assert world.schedule() == {"p": "b"}


def test_node_with_a_prefer_no_schedule_taint_is_last() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", taints=(Taint(key="k", effect="PreferNoSchedule"),)), node("b"))
    world.upsert(podgroup("g", 1), pod("p", "g"))
    assert world.schedule() == {"p": "b"}


def test_nodeorder_spreads_and_binpack_packs() -> None:
    for order, nodes in (("nodeorder", 4), ("binpack", 1)):
        plugins = "".join(f"  - name: {name}\n" for name in ("gang", "predicates", order))
        world = SchedulerWorld(f'actions: "allocate"\ntiers:\n- plugins:\n{plugins}')
        world.upsert(*(node(f"n{i}") for i in range(4)), podgroup("g", 4))
        world.upsert(*(pod(f"g-{i}", "g", memory="2Gi") for i in range(4)))
        assert len(set(world.schedule().values())) == nodes


def test_deleted_node_is_infeasible() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), node("b"))
    world.schedule()
    world.remove(node("a"))
    world.upsert(podgroup("g", 2), pod("g-0", "g", cpu=5), pod("g-1", "g", cpu=5))
    assert world.schedule() == {}
    world.upsert(node("a"))
    assert set(world.schedule().values()) == {"a", "b"}
