"""Invariants: no overcommitted node, no gang below its minimum, a consistent cache."""

import random
from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.scheduler import SchedulerWorld, node, pod, podgroup, reference_fits

from batholith.model.podgroup import PodGroup
from batholith.scheduler.state.cache.cache import SchedulerCache
from batholith.scheduler.state.core_types import Node, Pod, Taint, Toleration
from batholith.scheduler.state.resources import CPU, PODS

ClusterObject = Node | Pod | PodGroup
SMALL = settings(max_examples=examples(40), deadline=None)


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    """One to six nodes of different sizes, some tainted, cordoned or labelled."""
    return [
        node(
            f"n{i}",
            cpu=draw(st.integers(1, 8)),
            pods=draw(st.integers(1, 6)),
            labels={"zone": draw(st.sampled_from("ab"))},
            taints=(Taint(key="t", effect="NoSchedule"),) if draw(st.booleans()) else (),
            cordoned=draw(st.integers(0, 5)) == 0,
            extra={"example.com/gpu": 2} if draw(st.booleans()) else {},
        )
        for i in range(draw(st.integers(1, 6)))
    ]


@st.composite
def gangs(draw: st.DrawFn) -> list[tuple[int, list[Pod]]]:
    """Up to five gangs: the minimum, and the pods."""
    found = []
    for g in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 6))
        pod_specs = draw(st.lists(_pod_specs(), min_size=1, max_size=2))
        pods = [pod_of(f"g{g}-t-{i}", f"g{g}", pod_specs[i % len(pod_specs)]) for i in range(size)]
        found.append((draw(st.integers(1, size)), pods))
    return found


def _pod_specs() -> st.SearchStrategy[tuple[int, int, str, bool]]:
    return st.tuples(
        st.integers(0, 5), st.integers(0, 1), st.sampled_from(["", "a", "b"]), st.booleans()
    )


def pod_of(name: str, gang: str, pod_spec: tuple[int, int, str, bool]) -> Pod:
    cpu, gpu, zone, tolerant = pod_spec
    return pod(
        name,
        gang,
        selector={"zone": zone} if zone else {},
        tolerations=(Toleration(operator="Exists"),) if tolerant else (),
        cpu=cpu,
        extra={"example.com/gpu": gpu},
    )


def world_of(nodes: list[Node], gangs: list[tuple[int, list[Pod]]]) -> SchedulerWorld:
    world = SchedulerWorld()
    world.upsert(*nodes)
    for g, (minimum, pods) in enumerate(gangs):
        world.upsert(podgroup(f"g{g}", minimum), *pods)
    return world


@SMALL
@given(nodes(), gangs())
def test_no_node_is_overcommitted(
    node_objects: list[Node], gang_objects: list[tuple[int, list[Pod]]]
) -> None:
    world = world_of(node_objects, gang_objects)
    world.schedule()
    assert (world.cluster.node_matrix.idle >= 0).all()


@SMALL
@given(nodes(), gangs())
def test_gang_has_its_minimum_scheduled_or_no_pod(
    node_objects: list[Node], gang_objects: list[tuple[int, list[Pod]]]
) -> None:
    world = world_of(node_objects, gang_objects)
    scheduled = world.schedule()
    for minimum, pods in gang_objects:
        count = sum(each.metadata.name in scheduled for each in pods)
        assert count == 0 or count >= minimum


@SMALL
@given(nodes(), gangs())
def test_scheduled_pods_fit_by_the_reference_rules(
    node_objects: list[Node], gang_objects: list[tuple[int, list[Pod]]]
) -> None:
    world = world_of(node_objects, gang_objects)
    by_name = {each.metadata.name: each for each in node_objects}
    pods = {each.metadata.name: each for _, gang in gang_objects for each in gang}
    for name, node_name in world.schedule().items():
        assert reference_fits(pods[name], by_name[node_name])


@SMALL
@given(nodes(), gangs())
def test_rejected_gang_does_not_fit_what_is_idle(
    node_objects: list[Node], gang_objects: list[tuple[int, list[Pod]]]
) -> None:
    """For gangs of equivalent pods, by a naive count over the nodes."""
    world = world_of(node_objects, gang_objects)
    scheduled = world.schedule()
    matrix = world.cluster.node_matrix
    for minimum, pods in gang_objects:
        if any(each.metadata.name in scheduled for each in pods):
            continue
        eq_classes = {world.cluster.pod_classes.eq_classes.get(each) for each in pods}
        if len(eq_classes) > 1:
            continue
        request = eq_classes.pop().request_vector(matrix.resource_index)
        capacity = 0
        for each in node_objects:
            node_index = matrix.index_of(each.metadata.name)
            if reference_fits(pods[0], each):
                idle = matrix.idle[:, node_index]
                capacity += min(int(i // r) for i, r in zip(idle, request, strict=True) if r)
        assert capacity < minimum


@SMALL
@given(nodes(), gangs(), st.randoms(use_true_random=False))
def test_order_of_events_does_not_change_placements(
    node_objects: list[Node], gang_objects: list[tuple[int, list[Pod]]], shuffle: random.Random
) -> None:
    expected = world_of(node_objects, gang_objects).schedule()
    world = SchedulerWorld()
    others: list[ClusterObject] = [
        *node_objects,
        *(podgroup(f"g{g}", minimum) for g, (minimum, _) in enumerate(gang_objects)),
    ]
    objects: list[ClusterObject] = [*others, *(each for _, pods in gang_objects for each in pods)]
    shuffle.shuffle(objects)
    world.upsert(*objects)
    assert world.schedule() == expected


@SMALL
@given(nodes(), gangs())
def test_discarded_statement_restores_all_amounts(
    node_objects: list[Node], gang_objects: list[tuple[int, list[Pod]]]
) -> None:
    world = world_of(node_objects, [(len(pods) + 100, pods) for _, pods in gang_objects])
    idle = world.cluster.node_matrix.idle.copy()
    queue = world.cluster.queues.named("default")
    allocated = dict(queue.allocated)
    assert world.schedule() == {}
    after = world.cluster.node_matrix.idle
    assert (after[: len(idle)] == idle).all() and not after[len(idle) :].any()
    assert queue.allocated == allocated


@SMALL
@given(st.data())
def test_cache_after_any_events_equals_a_new_one(data: st.DataObject) -> None:
    world = SchedulerWorld()
    live: dict[str, Node | Pod] = {}
    for step in range(data.draw(st.integers(5, 40))):
        event = data.draw(st.sampled_from(_EVENTS))
        event(data, world, live, step)
    fresh = SchedulerWorld()
    for g in range(3):
        world.upsert(podgroup(f"g{g}", 1))
        fresh.upsert(podgroup(f"g{g}", 1))
    fresh.upsert(*live.values())
    assert _node_columns(world.cluster) == _node_columns(fresh.cluster)
    world.cluster.refresh()
    fresh.cluster.refresh()
    for name, queue in world.cluster.queues.by_name.items():
        other = fresh.cluster.queues.named(name)
        assert (queue.allocated, queue.requested) == (other.allocated, other.requested)
    for key, gang in fresh.cluster.gangs.items():
        assert gang.counts.by_status == world.cluster.gangs[key].counts.by_status
        assert gang.pending_tasks.keys() == world.cluster.gangs[key].pending_tasks.keys()
    world.cluster.node_matrix.validate()


def _node_columns(
    cluster: SchedulerCache,
) -> dict[str, tuple[dict[str, int], dict[str, int], bool]]:
    matrix = cluster.node_matrix
    found = {}
    for name in filter(None, matrix.names):
        node_index = matrix.index_of(name)
        assert node_index is not None
        found[name] = (
            matrix.resource_index.amounts(matrix.allocatable[:, node_index]),
            matrix.resource_index.amounts(matrix.idle[:, node_index]),
            bool(matrix.alive[node_index]),
        )
    return found


def _set_node(
    data: st.DataObject, world: SchedulerWorld, live: dict[str, Node | Pod], step: int
) -> None:
    name = f"n{data.draw(st.integers(0, 20))}"
    live[name] = node(name, cpu=data.draw(st.integers(1, 8)))
    world.upsert(live[name])


def _remove_node(
    data: st.DataObject, world: SchedulerWorld, live: dict[str, Node | Pod], step: int
) -> None:
    found = live.pop(f"n{data.draw(st.integers(0, 20))}", None)
    if found is not None:
        world.remove(found)


def _set_pod(
    data: st.DataObject, world: SchedulerWorld, live: dict[str, Node | Pod], step: int
) -> None:
    name = f"p{data.draw(st.integers(0, 9))}"
    phase = data.draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]))
    node_name = f"n{data.draw(st.integers(0, 20))}" if data.draw(st.booleans()) else ""
    gang = data.draw(st.sampled_from(["", "g0", "g1", "g2"]))
    live[name] = pod(name, gang, node_name=node_name, phase=phase, cpu=data.draw(st.integers(0, 3)))
    world.upsert(live[name])


def _remove_pod(
    data: st.DataObject, world: SchedulerWorld, live: dict[str, Node | Pod], step: int
) -> None:
    found = live.pop(f"p{data.draw(st.integers(0, 9))}", None)
    if found is not None:
        world.remove(found)


_EVENTS: list[Callable[[st.DataObject, SchedulerWorld, dict[str, Node | Pod], int], None]] = [
    _set_node,
    _set_node,
    _remove_node,
    _set_pod,
    _set_pod,
    _remove_pod,
]


def test_matrix_grows_with_the_number_of_nodes() -> None:
    world = SchedulerWorld()
    world.upsert(*(node(f"n{i}") for i in range(70)), podgroup("g", 70))
    world.upsert(*(pod(f"g-{i}", "g", cpu=8) for i in range(70)))
    assert sorted(world.schedule().values()) == sorted(f"n{i}" for i in range(70))


def test_resource_added_later_has_a_row() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g", extra={"example.com/fpga": 1}))
    assert world.schedule() == {}
    assert "Insufficient example.com/fpga (requested 1, free 0)" in world.fit_message("g")
    world.upsert(node("b", extra={"example.com/fpga": 1}))
    assert world.schedule() == {"g-0": "b"}


def test_no_pod_fits_an_overcommitted_node() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a", cpu=4), pod("x", node_name="a", cpu=4, scheduler="other", phase="Running")
    )
    world.upsert(node("a", cpu=2), podgroup("g", 1), pod("g-0", "g", cpu=0, memory="1Mi"))
    assert world.schedule() == {}
    assert world.cluster.node_matrix.idle[CPU, 0] == -2000


def test_pod_of_an_unknown_node_is_allocated_when_the_node_is_added() -> None:
    world = SchedulerWorld()
    world.upsert(pod("x", node_name="new", cpu=8, scheduler="other", phase="Running"))
    world.upsert(podgroup("g", 1), pod("g-0", "g"))
    world.upsert(node("new"))
    assert world.schedule() == {}
    node_index = world.cluster.node_matrix.index_of("new")
    assert np.array_equal(world.cluster.node_matrix.idle[[CPU, PODS], node_index], [0, 109])


@SMALL
@given(nodes(), st.tuples(st.integers(1, 6), _pod_specs()), st.lists(st.integers(1, 4), max_size=4))
def test_gang_exceeds_the_nodes_if_it_is_not_scheduled_where_nothing_else_runs(
    node_objects: list[Node], gang: tuple[int, tuple[int, int, str, bool]], others: list[int]
) -> None:
    """Whether the others, which need some of the CPUs, run or not."""
    size, spec = gang
    pods = [pod_of(f"g-{index}", "g", (max(spec[0], 1), *spec[1:])) for index in range(size)]
    alone = SchedulerWorld()
    alone.upsert(*node_objects, podgroup("g", size), *pods)
    fits = bool(alone.schedule())
    world = SchedulerWorld()
    world.upsert(*node_objects)
    for number, cpu in enumerate(others):
        where = node_objects[number % len(node_objects)].metadata.name
        world.upsert(pod(f"o{number}", node_name=where, scheduler="x", phase="Running", cpu=cpu))
    world.upsert(podgroup("g", size), *pods)
    scheduled = world.schedule()
    diagnosis = world.cluster.gangs["ns/g"].diagnosis
    if scheduled:
        assert diagnosis is None
    else:
        assert diagnosis is not None
        assert diagnosis.exceeds_nodes is not fits
