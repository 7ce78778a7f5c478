"""Scores of nodes by their storage: the argument ``volumebinding.shape`` of ``predicates``."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler.test_delayed_claims import (
    HOST,
    add,
    bound_to,
    capacity,
    claim,
    local_volume,
    storage_class,
    using,
)
from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.scheduler_terms import labelled

from batholith.scheduler import conf
from batholith.scheduler.plugins.utilization_shape import shape_score
from batholith.scheduler.state.cache.events import (
    CSIDriverEvent,
    CSIStorageCapacityEvent,
    StorageClassEvent,
)
from batholith.scheduler.state.core_types import CSIDriver

FULL = "[{utilization: 0, score: 0}, {utilization: 100, score: 10}]"
EMPTY = "[{utilization: 0, score: 10}, {utilization: 100}]"
HALF = "[{utilization: 0}, {utilization: 50, score: 10}, {utilization: 100}]"


def text(arguments: str, others: str = "") -> str:
    predicates = f"{{name: predicates, arguments: {{{arguments}}}}}"
    return f'actions: "allocate"\ntiers:\n- plugins: [{{name: gang}}, {predicates}{others}]'


def storage_world(arguments: str, *, provisioner: str = "", others: str = "") -> SchedulerWorld:
    """Three nodes, each in a zone."""
    world = SchedulerWorld(text(arguments, others))
    late = storage_class(provisioner) if provisioner else storage_class()
    world.cluster.apply(StorageClassEvent(None, late))
    world.upsert(*(node(host, labels={HOST: host, "zone": "z" + host}) for host in "abc"))
    return world


@pytest.mark.parametrize(("shape", "chosen"), [(FULL, "b"), (EMPTY, "a"), (HALF, "c")])
def test_the_node_whose_volume_scores_most_is_chosen(shape: str, chosen: str) -> None:
    world = storage_world(f"volumebinding.shape: {shape}")
    sizes = {"a": "10Gi", "b": "2Gi", "c": "4Gi"}
    add(world, *(local_volume(f"v-{host}", host, size) for host, size in sizes.items()))
    add(world, claim("x", "2Gi"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "x"))
    assert bound_to(world.decision()) == {"x": (chosen, f"v-{chosen}")}


def test_the_claims_of_a_pod_count_together() -> None:
    """Of node a they use 4 of 5, of node b 4 of 12, of node c 4 of 8."""
    world = storage_world(f"volumebinding.shape: {HALF}")
    for host, sizes in {"a": (2, 3), "b": (6, 6), "c": (3, 5)}.items():
        add(
            world,
            *(local_volume(f"{host}{size}{i}", host, f"{size}Gi") for i, size in enumerate(sizes)),
        )
    add(world, claim("x", "1Gi"), claim("y", "3Gi"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "x", "y"))
    assert world.schedule() == {"g-0": "c"}


def test_pods_of_a_gang_are_scored_by_the_volumes_that_are_left() -> None:
    world = storage_world(f"volumebinding.shape: {FULL}")
    for name, host, size in (("v1", "a", 1), ("v2", "a", 4), ("v3", "b", 2), ("v4", "c", 8)):
        add(world, local_volume(name, host, f"{size}Gi"))
    add(world, *(claim(f"x{i}") for i in range(3)))
    world.upsert(podgroup("g", 3), *(using(pod(f"g-{i}", "g"), f"x{i}") for i in range(3)))
    used = {volume for _, volume in bound_to(world.decision()).values()}
    assert used == {"v1", "v2", "v3"}


@pytest.mark.parametrize(("shape", "chosen"), [(FULL, "b"), (EMPTY, "a"), (HALF, "c")])
def test_storage_that_is_free_counts_where_no_volume_is_available(shape: str, chosen: str) -> None:
    world = storage_world(f"volumebinding.shape: {shape}", provisioner="d.example.com")
    driver = {"metadata": {"name": "d.example.com"}, "spec": {"storageCapacity": True}}
    world.cluster.apply(CSIDriverEvent(None, msgspec.convert(driver, CSIDriver)))
    for zone, amount in {"za": "20Gi", "zb": "5Gi", "zc": "8Gi"}.items():
        world.cluster.apply(CSIStorageCapacityEvent(None, capacity(zone, amount)))
    add(world, claim("x", "4Gi"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "x"))
    assert bound_to(world.decision()) == {"x": (chosen, "")}


@pytest.mark.parametrize(("weight", "chosen"), [(0, "a"), (1, "a"), (20, "b")])
def test_the_weight_multiplies_the_score(weight: int, chosen: str) -> None:
    """Node a has a preferred label, which counts 100; the volume of node b scores 10 more."""
    others = ", {name: nodeorder, arguments: {nodeaffinity.weight: 1, leastrequested.weight: 0}}"
    world = storage_world(
        f"volumebinding.shape: {FULL}, volumebinding.weight: {weight}", others=others
    )
    add(world, local_volume("va", "a", "10Gi"), local_volume("vb", "b", "5Gi"), claim("x"))
    preferred = {"matchExpressions": [{"key": HOST, "operator": "In", "values": ["a"]}]}
    terms = [{"weight": 1, "preference": preferred}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    world.upsert(
        podgroup("g", 1), using(labelled(pod("g-0", "g"), spec={"affinity": affinity}), "x")
    )
    assert world.schedule() == {"g-0": chosen}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("volumebinding.weight: 2", "weight: has no effect without volumebinding.shape"),
        (f"volumebinding.shape: {FULL}, volumebinding.weight: -1", "must be at least 0"),
        ("volumebinding.shape: []", "shape: must be a list of points"),
        ("volumebinding.shape: [{utilization: 101}]", "shape: utilization must be from 0 to 100"),
        ("volumebinding.shape: [{utilization: x}]", "shape: utilization: must be an integer"),
        ("volumebinding.shape: [{utilization: 1, share: 2}]", "shape: unknown entry 'share'"),
    ],
)
def test_an_invalid_argument_is_named(arguments: str, problem: str) -> None:
    with pytest.raises(conf.ConfError, match=problem):
        conf.load(text(arguments))


@given(
    points=st.dictionaries(st.integers(0, 100), st.integers(0, 10), min_size=1, max_size=5),
    at=st.integers(0, 100),
)
def test_scores_are_those_of_integer_division_towards_zero(points: dict[int, int], at: int) -> None:
    shape = tuple(sorted(points.items()))
    above = [point for point in shape if point[0] >= at]
    below = [point for point in shape if point[0] < at]
    if not above or not below:
        expected = (above[0] if above else below[-1])[1] * 10
    else:
        (left, low), (right, high) = below[-1], above[0]
        expected = low * 10 + int((high - low) * 10 * (at - left) / (right - left))
    assert shape_score(shape, at) == expected
