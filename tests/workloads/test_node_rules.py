"""On which nodes the pods of a DaemonSet run."""

from typing import Any

import msgspec
import pytest

from batholith.local.workloads.node_rules import Fit, Node, fit, pinned_affinity, pinned_node

Json = dict[str, Any]
RUNS, STAYS, NEITHER = Fit(True, True), Fit(False, True), Fit(False, False)


def node(*taints: Json, **labels: str) -> Node:
    body = {"metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints}}
    return msgspec.convert(body, Node)


def taint(effect: str, key: str = "k", value: str = "v") -> Json:
    return {"key": key, "value": value, "effect": effect}


@pytest.mark.parametrize(
    ("tainted", "expected"),
    [
        (taint("NoSchedule"), STAYS),
        (taint("NoExecute"), NEITHER),
        (taint("PreferNoSchedule"), RUNS),
        (taint("NoSchedule", "node.kubernetes.io/unschedulable"), RUNS),
        (taint("NoExecute", "node.kubernetes.io/not-ready"), RUNS),
        (taint("NoSchedule", "node.kubernetes.io/network-unavailable"), STAYS),
    ],
)
def test_taints_keep_pods_away_or_evict_them(tainted: Json, expected: Fit) -> None:
    assert fit({}, node(tainted)) == expected


def test_tolerated_taints_do_not_count() -> None:
    equal = {"key": "k", "operator": "Equal", "value": "v"}
    assert fit({"tolerations": [equal]}, node(taint("NoExecute"))) == RUNS
    assert fit({"tolerations": [{**equal, "value": "w"}]}, node(taint("NoSchedule"))) == STAYS
    assert fit({"tolerations": [{"operator": "Exists"}]}, node(taint("NoExecute"))) == RUNS
    network = taint("NoSchedule", "node.kubernetes.io/network-unavailable")
    assert fit({"hostNetwork": True}, node(network)) == RUNS


def test_a_node_name_is_the_only_node() -> None:
    assert fit({"nodeName": "n"}, node()) == RUNS
    assert fit({"nodeName": "m"}, node()) == NEITHER


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ({"operator": "In", "values": ["a", "b"]}, RUNS),
        ({"operator": "NotIn", "values": ["a"]}, NEITHER),
        ({"operator": "Exists"}, RUNS),
        ({"operator": "DoesNotExist"}, NEITHER),
        ({"operator": "Gt", "values": ["1"]}, NEITHER),
    ],
)
def test_required_affinity_is_of_labels(requirement: Json, expected: Fit) -> None:
    assert fit(required({"matchExpressions": [{"key": "x", **requirement}]}), node(x="a")) == (
        expected
    )


def required(*terms: Json) -> Json:
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}
    return {"affinity": {"nodeAffinity": rule}}


def test_numbers_are_compared_as_such() -> None:
    def more(value: str) -> Json:
        return {"key": "x", "operator": "Gt", "values": [value]}

    assert fit(required({"matchExpressions": [more("9")]}), node(x="10")) == RUNS
    assert fit(required({"matchExpressions": [more("11")]}), node(x="10")) == NEITHER


def test_a_term_without_requirements_matches_no_node() -> None:
    assert fit(required({}), node()) == NEITHER
    other = {"matchExpressions": [{"key": "x", "operator": "Exists"}]}
    assert fit(required({}, other), node(x="")) == RUNS


def test_a_pod_is_pinned_to_its_node_and_keeps_other_requirements() -> None:
    expression = {"key": "x", "operator": "Exists"}
    given = required({"matchExpressions": [expression]})["affinity"]
    pinned = pinned_affinity({**given, "podAffinity": {}}, "n")
    assert pinned_node(pinned) == "n"
    (term,) = pinned["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [expression]
    assert pinned["podAffinity"] == {}
    assert pinned_node(given) == pinned_node(None) == ""
