"""HyperNodes that labels of nodes describe."""

from typing import Any

import pytest
import yaml

from batholith.hypernode_ctrl.configuration import (
    ConfigurationError,
    Discovery,
    Level,
    TopologyType,
    parse,
)
from batholith.hypernode_ctrl.decide import (
    Create,
    Delete,
    Effect,
    SetNodeCount,
    Update,
    View,
    decide,
)
from batholith.hypernode_ctrl.discovery import SOURCE, Discovered, discover
from batholith.model.hypernode import HyperNode, HyperNodeStatus
from batholith.model.meta import ObjectMeta

VOLCANO_EXAMPLE = """
networkTopologyDiscovery:
  - source: ufm
    enabled: true
    interval: 10m
    credentials: {secretRef: {name: ufm-credentials, namespace: volcano-system}}
    config: {endpoint: "https://ufm-server:8080", insecureSkipVerify: true}
  - source: roce
    enabled: false
    interval: 15m
    config: {endpoint: "https://roce-server:9090"}
  - source: label
    enabled: true
    config:
      networkTopologyTypes:
        topologyA2:
          - nodeLabel: "volcano.sh/tor"
          - nodeLabel: "kubernetes.io/hostname"
        topologyA3:
          - nodeLabel: "volcano.sh/hypercluster"
          - nodeLabel: "volcano.sh/hypernode"
          - nodeLabel: "kubernetes.io/hostname"
"""


def labels_of(*labels: str) -> TopologyType:
    """A type whose tiers have the names of their labels."""
    return TopologyType([Level(each, each) for each in labels])


TYPES = {"net": labels_of("rack", "spine")}
NODES = {
    f"n{index}": {"rack": f"r{index // 2}", "spine": f"s{index // 4}"} for index in range(8)
} | {"loose": {"spine": "s0"}}


def by_value(found: list[Discovered]) -> dict[str, tuple[int, set[str]]]:
    names = {each.name: next(iter(each.labels.values())) for each in found}
    return {
        names[each.name]: (
            each.spec.tier,
            {
                names.get(member.selector.exact_match.name, member.selector.exact_match.name)
                for member in each.spec.members
                if member.selector.exact_match
            },
        )
        for each in found
    }


def stored(each: Discovered, **labels: str) -> HyperNode:
    meta = ObjectMeta(name=each.name, uid=f"uid-{each.name}", labels={**each.labels, **labels})
    return HyperNode(metadata=meta, spec=each.spec, status=HyperNodeStatus(node_count=0))


def test_the_configuration_of_volcanos_guide_names_labels_from_the_outermost_to_the_nodes() -> None:
    found = parse(VOLCANO_EXAMPLE, "volcano-system")
    assert found.types == {
        "topologyA2": labels_of("volcano.sh/tor"),
        "topologyA3": labels_of("volcano.sh/hypernode", "volcano.sh/hypercluster"),
    }
    assert found.ufm is not None
    assert found.problems == ()
    roce = parse(VOLCANO_EXAMPLE.replace("false", "true"), "volcano-system")
    assert roce.problems == ("networkTopologyDiscovery[1]: source 'roce' is not implemented",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "no YAML"),
        ("networkTopologyDiscovery: 7", "networkTopologyDiscovery: must be of type list"),
        ("networkTopologyDiscovery: [7]", r"networkTopologyDiscovery\[0\]: must be a mapping"),
        (
            "networkTopologyDiscovery: [{source: label, enabled: true, config: "
            "{networkTopologyTypes: {a: 7}}}]",
            "networkTopologyTypes.a: must be a list",
        ),
    ],
)
def test_an_invalid_configuration_is_an_error_that_names_the_field(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parse(text, "ns")


MIXED = """
networkTopologyDiscovery:
  - source: label
    enabled: true
    config:
      networkTopologyTypes:
        Shallow:
          nodeSelector: {matchLabels: {model: s}}
          levels:
            - {nodeLabel: rack, tierName: island}
            - nodeLabel: kubernetes.io/hostname
        deep:
          nodeSelector: {matchExpressions: [{key: model, operator: In, values: [d, e]}]}
          levels:
            - {nodeLabel: spine, tierName: island}
            - nodeLabel: rack
            - nodeLabel: kubernetes.io/hostname
"""
MIXED_NODES = {
    f"n{index}": {"model": "ssde"[index // 2], "rack": f"r{index // 2 % 2}", "spine": "s"}
    for index in range(8)
}


def mixed(nodes: dict[str, dict[str, str]]) -> list[Discovered]:
    return discover(parse(MIXED, "ns").types, nodes, ())


def test_types_with_a_selector_are_trees_of_their_own() -> None:
    """Also if their nodes have the same values of the same labels."""
    assert parse(MIXED, "ns").problems == ()
    found = mixed(MIXED_NODES)
    profile = "volcano.sh/network-topology-profile"
    assert [(each.labels[profile], each.spec.tier, each.spec.tier_name) for each in found] == [
        ("shallow", 1, "island"), ("shallow", 1, "island"),
        ("deep", 1, "rack"), ("deep", 1, "rack"), ("deep", 2, "island"),
    ]  # fmt: skip
    members = [
        [one.selector.exact_match.name for one in each.spec.members if one.selector.exact_match]
        for each in found
    ]
    racks = [each.name for each in found[2:4]]
    assert members == [["n0", "n1"], ["n2", "n3"], ["n4", "n5"], ["n6", "n7"], sorted(racks)]
    assert len({each.name for each in found}) == 5


def test_a_node_that_leaves_a_type_changes_no_other_type() -> None:
    found = mixed(MIXED_NODES)
    without = {name: each for name, each in MIXED_NODES.items() if each["model"] != "s"}
    assert mixed(without) == found[2:]
    moved = MIXED_NODES | {"n0": {"model": "s", "rack": "new"}}
    assert mixed(moved)[-3:] == found[2:]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{levels: 7}", "a.levels: must be of type list"),
        ("{level: []}", "a.level: is not known"),
        (
            "[{nodeLabel: rack}, {nodeLabel: host, tierName: node}]",
            r"a\[1\].tierName: the last level is",
        ),
        ("{nodeSelector: {labels: {}}, levels: []}", "a.nodeSelector.labels: is not known"),
        (
            "{nodeSelector: {matchExpressions: [{key: a, operator: Near}]}, levels: []}",
            "a.nodeSelector: ",
        ),
        ("{nodeSelector: {matchLabels: {a: 1}}, levels: []}", "a.nodeSelector: "),
    ],
)
def test_an_invalid_type_is_an_error_that_names_the_field(given: str, problem: str) -> None:
    text = (
        "networkTopologyDiscovery: [{source: label, enabled: true, config: "
        f"{{networkTopologyTypes: {{a: {given}}}}}}}]"
    )
    with pytest.raises(ConfigurationError, match=problem):
        parse(text, "ns")


@pytest.mark.parametrize(
    ("name", "tiers", "problem"),
    [
        ("a", [("rack", "t"), ("spine", "t"), ("host", "")], "tierName is listed twice"),
        ("a", [("rack", "x" * 254), ("host", "")], "more than 253 characters"),
        ("a", [("host", "")], "at least two entries"),
        ("--", [("rack", ""), ("host", "")], "no letter or digit"),
    ],
)
def test_a_type_with_unusable_tiers_is_reported(
    name: str, tiers: list[tuple[str, str]], problem: str
) -> None:
    levels = [{"nodeLabel": label, "tierName": tier} for label, tier in tiers]
    config = {"networkTopologyTypes": {name: {"levels": levels}}}
    source = {"source": "label", "enabled": True, "config": config}
    found = parse(yaml.safe_dump({"networkTopologyDiscovery": [source]}), "ns")
    assert found.types == {}
    (text,) = found.problems
    assert problem in text


@pytest.mark.parametrize(
    ("name", "labels", "problem"),
    [
        ("x" * 21, ["a", "host"], "more than 20 characters"),
        ("x", ["a", "a", "host"], "listed twice"),
        ("x", ["", "host"], "is empty"),
    ],
)
def test_a_type_that_cannot_be_discovered_is_reported_and_the_others_are(
    name: str, labels: list[str], problem: str
) -> None:
    types: dict[str, Any] = {name: [{"nodeLabel": each} for each in labels]}
    types["good"] = [{"nodeLabel": "rack"}, {"nodeLabel": "host"}]
    source = {"source": "label", "enabled": True, "config": {"networkTopologyTypes": types}}
    found = parse(yaml.safe_dump({"networkTopologyDiscovery": [source]}), "ns")
    assert found.types == {"good": labels_of("rack")}
    (text,) = found.problems
    assert problem in text


def test_nodes_with_the_same_label_form_a_hypernode_and_these_form_those_of_the_next_tier() -> None:
    found = discover(TYPES, NODES, ())
    assert by_value(found) == {
        "r0": (1, {"n0", "n1"}), "r1": (1, {"n2", "n3"}),
        "r2": (1, {"n4", "n5"}), "r3": (1, {"n6", "n7"}),
        "s0": (2, {"r0", "r1"}), "s1": (2, {"r2", "r3"}),
    }  # fmt: skip
    assert [each.spec.tier_name for each in found[-1:]] == ["spine"]
    assert all(each.labels[SOURCE] == "label" for each in found)
    assert all(each.name.startswith(f"hypernode-net-tier{each.spec.tier}-") for each in found)


def test_names_are_fixed_and_those_that_exist_are_used_again() -> None:
    first = discover(TYPES, NODES, ())
    assert discover(TYPES, NODES, ()) == first
    renamed = HyperNode(
        metadata=ObjectMeta(name="hypernode-net-tier1-q7x2z", labels={"rack": "r0"})
    )
    again = discover(TYPES, NODES, [renamed])
    assert again[0].name == "hypernode-net-tier1-q7x2z"
    assert {each.name for each in again[1:]} == {each.name for each in first[1:]}


def test_what_is_described_is_created_updated_and_deleted() -> None:
    first = discover(TYPES, NODES, ())
    assert effects([], NODES) == [Create(each) for each in first]
    objects = [stored(each) for each in first]
    moved = NODES | {"n0": {"rack": "r1", "spine": "s0"}}
    changed = [each for each in effects(objects, moved) if isinstance(each, Update)]
    assert {next(iter(each.hypernode.labels.values())) for each in changed} == {"r0", "r1"}
    left = {name: labels for name, labels in NODES.items() if labels["spine"] == "s1"}
    deleted = [each for each in effects(objects, left) if isinstance(each, Delete)]
    assert {each.meta.name for each in deleted} == {
        each.name for each in first if next(iter(each.labels.values())) in ("r0", "r1", "s0")
    }


def effects(objects: list[HyperNode], nodes: dict[str, dict[str, str]]) -> list[Effect]:
    return list(decide(View(objects, nodes, Discovery(TYPES))))


def test_labels_that_users_add_stay() -> None:
    objects = [stored(each, team="a") for each in discover(TYPES, NODES, ())]
    assert not [each for each in effects(objects, NODES) if isinstance(each, Update)]


def test_hypernodes_of_users_and_of_other_sources_are_never_changed_or_deleted() -> None:
    (first, *_) = discover(TYPES, NODES, ())
    theirs = HyperNode(
        metadata=ObjectMeta(name=first.name, labels={SOURCE: "roce"}), status=HyperNodeStatus()
    )
    found = effects([theirs], NODES)
    assert not [each for each in found if isinstance(each, Update | Delete)]
    assert first.name not in {each.hypernode.name for each in found if isinstance(each, Create)}


def test_discovered_hypernodes_are_deleted_when_discovery_is_switched_off() -> None:
    objects = [stored(each) for each in discover(TYPES, NODES, ())]
    off = list(decide(View(objects, NODES, Discovery())))
    assert [type(each) for each in off] == [Delete] * len(objects)
    unknown = list(decide(View(objects, NODES, None)))
    assert not [each for each in unknown if isinstance(each, Delete)]


def test_nodes_are_counted_once_specs_are_as_described() -> None:
    objects = [stored(each) for each in discover(TYPES, NODES, ())]
    counted = effects(objects, NODES)
    assert {type(each) for each in counted} == {SetNodeCount}
    assert sorted(each.count for each in counted if isinstance(each, SetNodeCount)) == [
        2, 2, 2, 2, 4, 4,
    ]  # fmt: skip
