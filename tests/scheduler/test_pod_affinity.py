"""Inter-pod affinity and anti-affinity, in both directions, also between pods of one cycle."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from support.scheduler import SchedulerWorld, pod, podgroup
from support.scheduler_terms import HOSTNAME, labelled, node_for, single, zoned

from batholith.scheduler.state.cache.events import NamespaceEvent
from batholith.scheduler.state.core_types import Namespace

Json = dict[str, Any]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def term(app: str, key: str = "zone", **more: Any) -> Json:
    """A term on pods with the label ``app``."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


def affinity(*terms: Json, anti: Sequence[Json] = ()) -> Json:
    """A spec with required affinity and anti-affinity."""
    return {
        "affinity": {
            "podAffinity": {REQUIRED: list(terms)},
            "podAntiAffinity": {REQUIRED: list(anti)},
        }
    }


def test_affinity_needs_a_pod_in_the_domain() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2"), zoned("c", "z2"), zoned("d"))
    world.upsert(labelled(pod("db", node_name="b", scheduler="other"), app="db"))
    near = labelled(single("near"), spec=affinity(term("db")))
    assert node_for(world, near) in ("b", "c")
    same_node = labelled(single("same"), spec=affinity(term("db", HOSTNAME)))
    assert node_for(world, same_node) == "b"
    assert node_for(world, labelled(single("x"), spec=affinity(term("db"), term("web")))) is None


def test_first_pod_of_a_group_with_affinity_to_itself_fits_where_the_label_is() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a"), zoned("b", "z2", cpu=1), zoned("c", "z2"), podgroup("g", 3))
    world.upsert(
        *(labelled(pod(f"g-{i}", "g"), spec=affinity(term("me")), app="me") for i in range(3))
    )
    chosen = world.schedule()
    assert len(chosen) == 3
    assert set(chosen.values()) <= {"b", "c"}


def test_anti_affinity_holds_in_both_directions() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z1"), zoned("c", "z2"))
    holder = labelled(single("holder"), spec=affinity(anti=[term("web")]), app="db")
    assert node_for(world, holder) == "a"
    assert node_for(world, labelled(single("w0"), app="web")) == "c"
    assert node_for(world, labelled(single("h1"), spec=affinity(anti=[term("web")]))) == "b"
    world.upsert(zoned("c", "z1"))
    assert node_for(world, labelled(single("w1"), app="web")) is None


def test_one_pod_on_each_node() -> None:
    world = SchedulerWorld()
    world.upsert(*(zoned(name) for name in "abcd"), podgroup("g", 3), podgroup("h", 5))
    members = [
        labelled(pod(f"{group}-{i}", group), spec=affinity(anti=[term(group, HOSTNAME)]), app=group)
        for group, size in (("g", 3), ("h", 5))
        for i in range(size)
    ]
    world.upsert(*members)
    chosen = world.schedule()
    assert sorted(chosen) == ["g-0", "g-1", "g-2"]
    assert len(set(chosen.values())) == 3
    expected = "0/4 nodes are unavailable: 4 node(s) didn't match pod anti-affinity rules."
    assert world.fit_message("h") == expected


def test_quirk_27_existing_pods_of_the_same_cycle_repel() -> None:
    """A pod whose anti-affinity excludes another one repels it in the cycle that allocates both."""
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), podgroup("g", 2))
    world.upsert(labelled(pod("g-0", "g"), spec=affinity(anti=[term("web")]), app="db"))
    world.upsert(labelled(pod("g-1", "g"), app="web"))
    assert world.schedule() == {}
    expected = "0/1 nodes are unavailable: 1 node(s) didn't satisfy existing pods anti-affinity"
    assert world.fit_message("g").startswith(expected)


@pytest.mark.parametrize("members", [("0", "1", "2", "3"), ("3", "2", "1", "0")])
@pytest.mark.parametrize("minimum", [2, 4])
def test_quirk_9_a_role_may_need_one_that_is_ordered_later(
    members: Sequence[str], minimum: int
) -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2"), podgroup("g", minimum))
    for number in members:
        role = "client" if int(number) % 2 == 0 else "server"
        spec = affinity(term("server")) if role == "client" else {}
        world.upsert(labelled(pod(f"x-g-{number}", "g", role=role), spec=spec, app=role))
    chosen = world.schedule()
    assert len(chosen) == 4


def test_gang_is_retried_when_a_pod_that_it_awaits_gets_a_node() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), podgroup("g", 1), podgroup("later", 1))
    world.upsert(labelled(pod("g-0", "g"), spec=affinity(term("db"))))
    assert world.schedule() == {}
    expected = "0/1 nodes are unavailable: 1 node(s) didn't match pod affinity rules."
    assert world.fit_message("g") == expected
    world.upsert(labelled(pod("later-0", "later"), app="db"))
    assert world.schedule() | world.schedule() == {"later-0": "a", "g-0": "a"}


@pytest.mark.parametrize("in_namespaces", [{"namespaces": ["other"]}, {"namespaceSelector": {}}])
def test_terms_may_name_namespaces(in_namespaces: Json) -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"))
    world.upsert(
        labelled(pod("db", node_name="a", scheduler="x"), namespace="other", app="db"),
    )
    assert node_for(world, labelled(single("p"), spec=affinity(term("db")))) is None
    there = term("db", **in_namespaces)
    assert node_for(world, labelled(single("q"), spec=affinity(there))) == "a"


def test_labels_of_namespaces_are_followed() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"))
    world.upsert(labelled(pod("db", node_name="a", scheduler="x"), namespace="other", app="db"))
    there = term("db", namespaceSelector={"matchLabels": {"team": "red"}})
    assert node_for(world, labelled(single("p"), spec=affinity(there))) is None
    red = msgspec.convert({"metadata": {"name": "other", "labels": {"team": "red"}}}, Namespace)
    world.cluster.apply(NamespaceEvent(None, red))
    assert world.schedule() == {"p": "a"}
    world.cluster.apply(NamespaceEvent(red, None))
    assert node_for(world, labelled(single("q"), spec=affinity(there))) is None


@pytest.mark.parametrize(
    ("keys", "expected"), [({"matchLabelKeys": ["v"]}, "b"), ({"mismatchLabelKeys": ["v"]}, "a")]
)
def test_terms_may_compare_labels_with_the_own(keys: Json, expected: str) -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2"))
    for name, version in (("a", "1"), ("b", "2")):
        world.upsert(
            labelled(pod(f"db-{name}", node_name=name, scheduler="x"), app="db", v=version)
        )
    near = labelled(single("p"), spec=affinity(term("db", **keys)), v="2")
    assert node_for(world, near) == expected


def test_changes_of_labels_and_nodes_are_followed() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2"))
    existing = pod("db", node_name="a", scheduler="x")
    world.upsert(labelled(existing, app="web"))
    p = labelled(single("p"), spec=affinity(term("db")))
    assert node_for(world, p) is None
    world.upsert(labelled(existing, app="db"))
    assert world.schedule() == {"p": "a"}
    world.remove(zoned("a", "z1"))
    world.upsert(zoned("a", "z2", cpu=2))
    assert node_for(world, labelled(single("q"), spec=affinity(term("db")))) == "b"
    world.remove(labelled(existing, app="db"))
    assert node_for(world, labelled(single("r"), spec=affinity(term("db")))) is None


def test_terminating_pods_still_count() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"))
    world.upsert(labelled(pod("w", node_name="a", scheduler="x", terminating=True), app="web"))
    repelled = labelled(single("p"), spec=affinity(anti=[term("web")]))
    assert node_for(world, repelled) is None


def test_counts_vanish_with_the_last_pod() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"))
    pods = [
        labelled(pod(f"p{i}", node_name="a", scheduler="x"), spec=affinity(term("p")), app="p")
        for i in range(2)
    ]
    world.upsert(*pods)
    (selector,) = world.cluster.pod_classes.topology.pod("uid-p0").terms.selectors  # type: ignore[union-attr]
    assert selector.targets.by_node == {0: 2}
    for each in pods:
        world.remove(each)
    assert not selector.targets.by_node
    assert not selector.uses


def test_plain_pods_are_not_affected_by_terms_of_others() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2"))
    world.upsert(
        labelled(pod("x", node_name="a", scheduler="x"), spec=affinity(anti=[term("web")]))
    )
    plain, eq_classes = labelled(single("p"), app="other"), world.cluster.pod_classes.eq_classes
    assert eq_classes.get(plain) is eq_classes.get(single("p"))
    assert not eq_classes.get(plain).sees_pods
    assert eq_classes.get(labelled(single("w"), app="web")).sees_pods


@pytest.mark.parametrize(("anti", "expected"), [(False, "b"), (True, "a")])
def test_preferred_terms_of_either_pod_choose_the_node(anti: bool, expected: str) -> None:
    kind = "podAntiAffinity" if anti else "podAffinity"

    def preferring(app: str) -> Json:
        return {"affinity": {kind: {PREFERRED: [{"weight": 5, "podAffinityTerm": term(app)}]}}}

    own, existing = SchedulerWorld(), SchedulerWorld()
    for world in (own, existing):
        world.upsert(zoned("a", "z1"), zoned("b", "z2", cpu=7))
    own.upsert(labelled(pod("x", node_name="b", scheduler="x"), app="web"))
    assert node_for(own, labelled(single("p"), spec=preferring("web"))) == expected
    existing.upsert(labelled(pod("x", node_name="b", scheduler="x"), spec=preferring("web")))
    assert node_for(existing, labelled(single("p"), app="web")) == expected


def test_preferred_affinity_places_a_gang_together() -> None:
    world = SchedulerWorld()
    world.upsert(zoned("a", "z1"), zoned("b", "z2"), zoned("c", "z2"), podgroup("g", 4))
    spec = {"affinity": {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": term("g")}]}}}
    world.upsert(*(labelled(pod(f"g-{i}", "g"), spec=spec, app="g") for i in range(4)))
    assert len(set(world.schedule().values()) & {"b", "c"}) in (0, 2)
