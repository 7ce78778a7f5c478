"""The nodes of HyperNodes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.admission import hypernode, member

from batholith.model.hypernode import HyperNode, HyperNodes, PatternError, compile_pattern

Json = dict[str, Any]
NODES = {f"node-{index}": {"rack": f"r{index // 2}", "gpu": "yes"} for index in range(6)}


def nodes_of(*hypernodes: Json) -> dict[str, set[str]]:
    found = HyperNodes()
    for name, labels in NODES.items():
        found.update_node(name, labels)
    for each in hypernodes:
        found.update(each["metadata"]["name"], msgspec.convert(each, HyperNode))
    return {name: set(domain.nodes) for name, domain in found.domains().items()}


def test_members_are_selected_by_name_by_pattern_and_by_labels() -> None:
    assert nodes_of(
        hypernode("exact", member("node-0"), member("missing")),
        hypernode("pattern", member(regexMatch={"pattern": "node-[01]"})),
        hypernode("other", member(regexMatch={"pattern": "5"})),
        hypernode("labels", member(labelMatch={"matchLabels": {"rack": "r1"}})),
        hypernode("nothing", {"type": "Node"}),
    ) == {
        "exact": {"node-0"},
        "pattern": {"node-0", "node-1"},
        "other": {"node-5"},
        "labels": {"node-2", "node-3"},
        "nothing": set(),
    }


def test_a_hypernode_has_the_nodes_of_its_member_hypernodes() -> None:
    found = nodes_of(
        hypernode("s2", member(of="HyperNode", regexMatch={"pattern": "^s[01]$"}), tier=2),
        hypernode("s0", member("node-0")),
        hypernode("s1", member("node-1"), member("s9", of="HyperNode")),
        hypernode("s3", member("s2", of="HyperNode"), member("node-5"), tier=3),
    )
    assert found["s2"] == {"node-0", "node-1"}
    assert found["s3"] == {"node-0", "node-1", "node-5"}


def test_a_cycle_ends_at_the_lower_tier() -> None:
    found = nodes_of(
        hypernode("a", member("node-0"), member("b", of="HyperNode"), tier=1),
        hypernode("b", member("node-1"), member("a", of="HyperNode"), tier=2),
        hypernode("self", member("node-2"), member("self", of="HyperNode")),
    )
    assert found == {"a": {"node-0"}, "b": {"node-0", "node-1"}, "self": {"node-2"}}


def test_invalid_selectors_that_were_stored_without_validation_select_nothing() -> None:
    wrong = {"matchExpressions": [{"key": "rack", "operator": "Near"}]}
    found = nodes_of(
        hypernode("pattern", member(regexMatch={"pattern": "a("}), member("node-0")),
        hypernode("labels", member(labelMatch=wrong)),
    )
    assert found == {"pattern": {"node-0"}, "labels": set()}


@pytest.mark.parametrize("pattern", ["a(", "[", "(?=a)", "*"])
def test_a_pattern_outside_re2_is_an_error(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sets(st.integers(0, 4)), st.sets(st.integers(0, 5))),
        max_size=5,
    )
)
def test_a_hypernode_contains_its_members_of_lower_tiers_however_they_are_connected(
    hypernodes: list[tuple[int, set[int], set[int]]],
) -> None:
    found = nodes_of(
        *(
            hypernode(
                f"h{index}",
                *(member(f"h{each}", of="HyperNode") for each in members),
                *(member(f"node-{each}") for each in nodes),
                tier=tier,
            )
            for index, (tier, members, nodes) in enumerate(hypernodes)
        )
    )

    def expected(index: int) -> set[str]:
        tier, members, nodes = hypernodes[index]
        below = (each for each in members if each < len(hypernodes) and hypernodes[each][0] < tier)
        return {f"node-{each}" for each in nodes}.union(*map(expected, below))

    assert found == {f"h{index}": expected(index) for index in range(len(hypernodes))}


SELECTED = (
    hypernode("exact", member("node-0"), member("node-7")),
    hypernode("pattern", member(regexMatch={"pattern": "[02468]$"})),
    hypernode("labels", member(labelMatch={"matchLabels": {"rack": "r0"}})),
    hypernode("above", member(of="HyperNode", regexMatch={"pattern": "^(exact|labels)$"}), tier=2),
)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 9), st.sampled_from(["r0", "r1", None])),
            st.tuples(st.sampled_from(SELECTED), st.booleans()),
        ),
        max_size=12,
    )
)
def test_changes_of_nodes_and_hypernodes_in_any_order_lead_to_the_same_domains(
    changes: list[Any],
) -> None:
    kept = HyperNodes()
    nodes: dict[str, dict[str, str]] = {}
    hypernodes: dict[str, HyperNode] = {}
    for what, value in changes:
        if isinstance(what, int):
            labels = None if value is None else {"rack": value}
            kept.update_node(f"node-{what}", labels)
            nodes.pop(f"node-{what}", None)
            nodes |= {f"node-{what}": labels} if labels else {}
        else:
            name = what["metadata"]["name"]
            typed = msgspec.convert(what, HyperNode) if value else None
            kept.update(name, typed)
            hypernodes.pop(name, None)
            hypernodes |= {name: typed} if typed else {}
        kept.domains()
    rebuilt = HyperNodes()
    for name, each in hypernodes.items():
        rebuilt.update(name, each)
    for name, labels in nodes.items():
        rebuilt.update_node(name, labels)
    assert kept.domains() == rebuilt.domains()
