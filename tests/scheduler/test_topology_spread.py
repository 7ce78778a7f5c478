"""Topology spread constraints: all fields, also between pods of one cycle."""

from typing import Any

import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.scheduler_terms import HOSTNAME, labelled, node_for, single, zoned

from batholith.scheduler.state.core_types import Taint, Toleration

Json = dict[str, Any]


def spread(key: str = "zone", *, hard: bool = True, app: str = "p", **more: Any) -> Json:
    """A spec with one constraint on pods with the label ``app``."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": app}},
    }
    return {"topologySpreadConstraints": [constraint | more]}


def zones(world: SchedulerWorld, count: int, spec: Json) -> list[str]:
    """The nodes of *count* pods that are node_for one after the other, where they fit."""
    return [
        node_for(world, labelled(single(f"p{i}"), spec=spec, app="p")) or "" for i in range(count)
    ]


def test_skew_is_limited() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2", cpu=2))
    assert sorted(zones(world, 6, spread())) == ["", "a", "a", "a", "b", "b"]
    wide = labelled(single("wide"), spec=spread(maxSkew=2), app="p")
    assert node_for(world, wide) == "a"


def test_a_gang_is_spread() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2"), zoned("c", "z3"), podgroup("g", 6))
    world.upsert(*(labelled(pod(f"g-{i}", "g"), spec=spread(), app="p") for i in range(6)))
    chosen = world.schedule()
    assert sorted(chosen.values()) == ["a", "a", "b", "b", "c", "c"]


def test_a_gang_that_cannot_be_spread_is_rejected_as_a_whole() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2", cpu=1), podgroup("g", 5))
    world.upsert(*(labelled(pod(f"g-{i}", "g"), spec=spread(), app="p") for i in range(5)))
    assert world.schedule() == {}
    message = world.fit_message("g")
    assert "1 node(s) didn't match pod topology spread constraints" in message
    assert "1 Insufficient cpu" in message


def test_nodes_without_the_label_are_rejected() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a"), podgroup("g", 1))
    world.upsert(labelled(pod("g-0", "g"), spec=spread(), app="p"))
    assert world.schedule() == {}
    expected = "node(s) didn't match pod topology spread constraints (missing required label)"
    assert expected in world.fit_message("g")


def test_fewer_domains_than_the_minimum_count_as_empty() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2"))
    assert zones(world, 3, spread(minDomains=3)) == ["a", "b", ""]
    world.upsert(zoned("c", "z3"))
    assert world.schedule() == {"p2": "c"}


def test_pods_that_do_not_match_the_selector_count_only_others() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1", cpu=9), zoned("b", "z2"))
    other = spread(app="other")
    assert set(zones(world, 4, other)) == {"a", "b"}
    world.upsert(labelled(pod("x", node_name="a", scheduler="x"), app="other"))
    world.upsert(labelled(pod("y", node_name="a", scheduler="x"), app="other"))
    late = labelled(single("late"), spec=other, app="p")
    assert node_for(world, late) == "b"


def test_terminating_pods_and_other_namespaces_do_not_count() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1", cpu=9), zoned("b", "z2"))
    deleted = pod("x", node_name="a", scheduler="x", terminating=True)
    world.upsert(labelled(deleted, app="p"))
    elsewhere = labelled(pod("y", node_name="a", scheduler="x"), namespace="other", app="p")
    world.upsert(elsewhere)
    world.upsert(labelled(pod("z", node_name="b", scheduler="x"), app="p"))
    assert node_for(world, labelled(single("p"), spec=spread(), app="p")) == "a"


def test_a_pod_that_begins_to_terminate_no_longer_counts() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2", cpu=1))
    world.upsert(labelled(pod("x", node_name="a", scheduler="x"), app="p"))
    world.upsert(labelled(pod("y", node_name="b", scheduler="x"), app="q"))
    p = labelled(single("p"), spec=spread(), app="p")
    assert node_for(world, p) is None
    world.upsert(labelled(pod("x", node_name="a", scheduler="x", terminating=True), app="p"))
    assert world.schedule() == {"p": "a"}


@pytest.mark.parametrize(("policy", "expected"), [("Honor", "a"), ("Ignore", None)])
def test_node_affinity_policy(policy: str, expected: str | None) -> None:
    """Zone z2 has no node that the selector matches: whether it counts as empty."""
    world = SchedulerWorld()
    world.upsert(node("a", labels={"zone": "z1", "disk": "ssd"}), zoned("b", "z2"))
    world.upsert(labelled(pod("x", node_name="a", scheduler="x"), app="p"))
    spec = spread(nodeAffinityPolicy=policy) | {"nodeSelector": {"disk": "ssd"}}
    assert node_for(world, labelled(single("p"), spec=spec, app="p")) == expected


@pytest.mark.parametrize(("policy", "expected"), [("Honor", "a"), ("Ignore", None), (None, None)])
@pytest.mark.parametrize("tolerated", [False, True])
def test_node_taints_policy(policy: str | None, expected: str | None, tolerated: bool) -> None:
    world = SchedulerWorld()
    taint = Taint(key="gpu", effect="NoSchedule")
    world.upsert(zoned("a", "z1"), node("b", labels={"zone": "z2"}, taints=(taint,)))
    world.upsert(labelled(pod("x", node_name="a", scheduler="x"), app="p"))
    tolerations = (Toleration(operator="Exists"),) if tolerated else ()
    p = pod("p", scheduler="default-scheduler", tolerations=tolerations)
    spec = spread(nodeTaintsPolicy=policy) if policy else spread()
    result = node_for(world, labelled(p, spec=spec, app="p"))
    assert result == ("b" if tolerated else expected)


def test_match_label_keys_count_only_equal_pods() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2", cpu=1))
    world.upsert(labelled(pod("x", node_name="a", scheduler="x"), app="p", version="1"))
    world.upsert(labelled(pod("y", node_name="b", scheduler="x"), app="q"))
    by_version = spread(matchLabelKeys=["version"])
    assert node_for(world, labelled(single("p"), spec=spread(), app="p", version="2")) is None
    new = labelled(single("q"), spec=by_version, app="p", version="2")
    assert node_for(world, new) == "a"


def test_soft_constraints_choose_the_emptier_domain() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z1"), zoned("c", "z2"))
    world.upsert(labelled(pod("x", node_name="a", scheduler="x"), app="p"))
    assert node_for(world, labelled(single("p"), spec=spread(hard=False), app="p")) == "c"
    assert node_for(world, labelled(single("q"), spec=spread(HOSTNAME, hard=False), app="p")) == "b"
