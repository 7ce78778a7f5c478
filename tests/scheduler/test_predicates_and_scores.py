"""Which nodes a pod may use, and which it likes best."""

import pytest
from support.scheduler import World, group, node, pod

from batholith.scheduler.state.core_types import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
    Taint,
    Toleration,
)


def needs(*requirements: NodeSelectorRequirement, by_field: bool = False) -> Affinity:
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
        ("Sings", ("x",), set()),
    ],
)
def test_required_affinity(operator: str, values: tuple[str, ...], expected: set[str]) -> None:
    world = World()
    world.add(node("has-x", labels={"l": "x"}), node("has-5", labels={"l": "5"}), node("has-none"))
    asked = needs(NodeSelectorRequirement(key="l", operator=operator, values=values))
    world.add(*(group(f"g{i}", 1) for i in range(3)))
    world.add(*(pod(f"p{i}", f"g{i}", cpu=8, affinity=asked) for i in range(3)))
    assert set(world.decide().values()) == expected


def test_affinity_by_name_of_the_node() -> None:
    world = World()
    world.add(node("a"), node("b"), group("g", 1))
    asked = NodeSelectorRequirement(key="metadata.name", operator="In", values=("b",))
    world.add(pod("p", "g", affinity=needs(asked, by_field=True)))
    assert world.decide() == {"p": "b"}


def test_an_empty_term_matches_nothing() -> None:
    world = World()
    world.add(node("a"), group("g", 1), pod("p", "g", affinity=needs()))
    assert world.decide() == {}
    assert world.message("g") == (
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
    world = World()
    world.add(node("a", taints=(Taint(key="k", value="v", effect="NoSchedule"),)), group("g", 1))
    world.add(pod("p", "g", tolerations=(toleration,)))
    assert bool(world.decide()) is tolerated
    if not tolerated:
        assert "1 node(s) had untolerated taint {k: v}" in world.message("g")


def test_a_cordoned_node_takes_only_who_puts_up_with_it() -> None:
    world = World()
    world.add(node("a", cordoned=True), group("g", 1), pod("p", "g"))
    assert world.decide() == {}
    assert world.message("g") == "0/1 nodes are unavailable: 1 node(s) were unschedulable."
    cordon = Toleration(key="node.kubernetes.io/unschedulable", operator="Exists")
    world.add(group("h", 1), pod("q", "h", tolerations=(cordon,)))
    assert world.decide() == {"q": "a"}


def test_uncordoning_a_node_lets_a_refused_gang_in() -> None:
    world = World()
    world.add(node("a", cordoned=True), group("g", 1), pod("p", "g"))
    assert world.decide() == {}
    world.add(node("a"))
    assert world.decide() == {"p": "a"}


def test_reasons_are_counted_by_node() -> None:
    world = World()
    world.add(
        node("a", cordoned=True), node("b", cpu=1), node("c", cpu=2), node("d", cordoned=True)
    )
    world.add(group("g", 1), pod("p", "g", cpu=4))
    assert world.decide() == {}
    assert world.message("g") == (
        "0/4 nodes are unavailable: 2 Insufficient cpu (requested 4, most free 2), "
        "2 node(s) were unschedulable."
    )


def test_the_first_resource_that_runs_out_is_named() -> None:
    world = World()
    world.add(node("a", memory="1Gi"), group("g", 1), pod("p", "g", memory="2Gi"))
    assert world.decide() == {}
    assert "1 Insufficient memory (requested 2Gi, free 1Gi)" in world.message("g")


def test_without_nodes_the_message_says_so() -> None:
    world = World()
    world.add(group("g", 1), pod("p", "g", cpu=0))
    assert world.decide() == {}
    assert world.message("g") == "0/0 nodes are available: the cluster has no nodes"


def test_preferred_affinity_decides_among_equals() -> None:
    world = World()
    liked = NodeSelectorTerm(
        match_expressions=(NodeSelectorRequirement(key="l", operator="Exists"),)
    )
    wish = NodeAffinity(
        preferred_during_scheduling_ignored_during_execution=(
            PreferredSchedulingTerm(weight=1, preference=liked),
        )
    )
    world.add(node("a"), node("b", labels={"l": ""}), group("g", 1))
    world.add(pod("p", "g", affinity=Affinity(node_affinity=wish)))
    assert world.decide() == {"p": "b"}


def test_a_node_that_discourages_is_taken_last() -> None:
    world = World()
    world.add(node("a", taints=(Taint(key="k", effect="PreferNoSchedule"),)), node("b"))
    world.add(group("g", 1), pod("p", "g"))
    assert world.decide() == {"p": "b"}


def test_least_use_spreads_and_binpack_fills() -> None:
    for order, nodes in (("nodeorder", 4), ("binpack", 1)):
        plugins = "".join(f"  - name: {name}\n" for name in ("gang", "predicates", order))
        world = World(f'actions: "allocate"\ntiers:\n- plugins:\n{plugins}')
        world.add(*(node(f"n{i}") for i in range(4)), group("g", 4))
        world.add(*(pod(f"g-{i}", "g", memory="2Gi") for i in range(4)))
        assert len(set(world.decide().values())) == nodes


def test_a_node_that_leaves_takes_nobody() -> None:
    world = World()
    world.add(node("a"), node("b"))
    world.decide()
    world.remove(node("a"))
    world.add(group("g", 2), pod("g-0", "g", cpu=5), pod("g-1", "g", cpu=5))
    assert world.decide() == {}
    world.add(node("a"))
    assert set(world.decide().values()) == {"a", "b"}
