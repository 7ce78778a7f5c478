"""What holds whatever happens: no node over-committed, no part of a gang, no drift."""

import random
from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduler import SchedulerWorld, node, pod, podgroup, reference_fits

from batholith.model.podgroup import PodGroup
from batholith.scheduler.state.cache import SchedulerCache
from batholith.scheduler.state.core_types import Node, Pod, Taint, Toleration
from batholith.scheduler.state.resources import CPU, PODS

ClusterObject = Node | Pod | PodGroup
SMALL = settings(max_examples=40, deadline=None)


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    """One to six nodes of differing size, some tainted, cordoned or labelled."""
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
        shapes = draw(st.lists(_pod_specs(), min_size=1, max_size=2))
        pods = [pod_of(f"g{g}-t-{i}", f"g{g}", shapes[i % len(shapes)]) for i in range(size)]
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
def test_no_node_is_ever_overcommitted_in_anything(
    found: list[Node], wanted: list[tuple[int, list[Pod]]]
) -> None:
    world = world_of(found, wanted)
    world.schedule()
    assert (world.cluster.node_matrix.idle >= 0).all()


@SMALL
@given(nodes(), gangs())
def test_a_gang_has_its_minimum_placed_or_nobody(
    found: list[Node], wanted: list[tuple[int, list[Pod]]]
) -> None:
    world = world_of(found, wanted)
    placed = world.schedule()
    for minimum, pods in wanted:
        count = sum(each.metadata.name in placed for each in pods)
        assert count == 0 or count >= minimum


@SMALL
@given(nodes(), gangs())
def test_what_is_placed_fits_by_the_naive_rules(
    found: list[Node], wanted: list[tuple[int, list[Pod]]]
) -> None:
    world = world_of(found, wanted)
    by_name = {each.metadata.name: each for each in found}
    pods = {each.metadata.name: each for _, gang in wanted for each in gang}
    for name, where in world.schedule().items():
        assert reference_fits(pods[name], by_name[where])


@SMALL
@given(nodes(), gangs())
def test_whoever_is_refused_could_not_have_been_placed_after_all(
    found: list[Node], wanted: list[tuple[int, list[Pod]]]
) -> None:
    """A gang of like pods is only refused if a naive count over what is left has no room for it."""
    world = world_of(found, wanted)
    placed = world.schedule()
    snapshot = world.cluster.node_matrix
    for minimum, pods in wanted:
        if any(each.metadata.name in placed for each in pods):
            continue
        shapes = {world.cluster.eq_classes.get(each.spec) for each in pods}
        if len(shapes) > 1:
            continue
        request = shapes.pop().request_vector(snapshot.resource_index)
        room = 0
        for each in found:
            slot = snapshot.index_of(each.metadata.name)
            if reference_fits(pods[0], each):
                idle = snapshot.idle[:, slot]
                room += min(int(i // r) for i, r in zip(idle, request, strict=True) if r)
        assert room < minimum


@SMALL
@given(nodes(), gangs(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_decides_nothing(
    found: list[Node], wanted: list[tuple[int, list[Pod]]], shuffle: random.Random
) -> None:
    expected = world_of(found, wanted).schedule()
    world = SchedulerWorld()
    things: list[ClusterObject] = [
        *found,
        *(podgroup(f"g{g}", minimum) for g, (minimum, _) in enumerate(wanted)),
    ]
    objects: list[ClusterObject] = [*things, *(each for _, pods in wanted for each in pods)]
    shuffle.shuffle(objects)
    world.upsert(*objects)
    assert world.schedule() == expected


@SMALL
@given(nodes(), gangs())
def test_undoing_a_trial_restores_every_bit(
    found: list[Node], wanted: list[tuple[int, list[Pod]]]
) -> None:
    world = world_of(found, [(len(pods) + 100, pods) for _, pods in wanted])
    idle = world.cluster.node_matrix.idle.copy()
    queue = world.cluster.queue_named("default")
    allocated = dict(queue.allocated)
    assert world.schedule() == {}
    grown = world.cluster.node_matrix.idle
    assert (grown[: len(idle)] == idle).all() and not grown[len(idle) :].any()
    assert queue.allocated == allocated


@SMALL
@given(st.data())
def test_the_snapshot_after_any_events_is_the_one_built_anew(data: st.DataObject) -> None:
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
    for name, queue in world.cluster.queues.items():
        other = fresh.cluster.queue_named(name)
        assert (queue.allocated, queue.requested) == (other.allocated, other.requested)
    for key, gang in fresh.cluster.gangs.items():
        assert gang.counts.by_status == world.cluster.gangs[key].counts.by_status
        assert gang.pending_tasks.keys() == world.cluster.gangs[key].pending_tasks.keys()
    world.cluster.node_matrix.validate()


def _node_columns(
    cluster: SchedulerCache,
) -> dict[str, tuple[dict[str, int], dict[str, int], bool]]:
    snapshot = cluster.node_matrix
    found = {}
    for name in filter(None, snapshot.names):
        slot = snapshot.index_of(name)
        assert slot is not None
        found[name] = (
            snapshot.resource_index.amounts(snapshot.allocatable[:, slot]),
            snapshot.resource_index.amounts(snapshot.idle[:, slot]),
            bool(snapshot.alive[slot]),
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
    where = f"n{data.draw(st.integers(0, 20))}" if data.draw(st.booleans()) else ""
    gang = data.draw(st.sampled_from(["", "g0", "g1", "g2"]))
    live[name] = pod(name, gang, node_name=where, phase=phase, cpu=data.draw(st.integers(0, 3)))
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


def test_more_nodes_than_columns_are_no_trouble() -> None:
    world = SchedulerWorld()
    world.upsert(*(node(f"n{i}") for i in range(70)), podgroup("g", 70))
    world.upsert(*(pod(f"g-{i}", "g", cpu=8) for i in range(70)))
    assert sorted(world.schedule().values()) == sorted(f"n{i}" for i in range(70))


def test_a_resource_that_comes_later_gets_its_row() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g", extra={"example.com/fpga": 1}))
    assert world.schedule() == {}
    assert "Insufficient example.com/fpga (requested 1, free 0)" in world.fit_message("g")
    world.upsert(node("b", extra={"example.com/fpga": 1}))
    assert world.schedule() == {"g-0": "b"}


def test_a_node_that_has_more_than_it_offers_takes_nobody() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a", cpu=4), pod("x", node_name="a", cpu=4, scheduler="other", phase="Running")
    )
    world.upsert(node("a", cpu=2), podgroup("g", 1), pod("g-0", "g", cpu=0, memory="1Mi"))
    assert world.schedule() == {}
    assert world.cluster.node_matrix.idle[CPU, 0] == -2000


def test_a_pod_of_a_node_not_heard_of_is_charged_when_it_comes() -> None:
    world = SchedulerWorld()
    world.upsert(pod("x", node_name="late", cpu=8, scheduler="other", phase="Running"))
    world.upsert(podgroup("g", 1), pod("g-0", "g"))
    world.upsert(node("late"))
    assert world.schedule() == {}
    slot = world.cluster.node_matrix.index_of("late")
    assert np.array_equal(world.cluster.node_matrix.idle[[CPU, PODS], slot], [0, 109])
