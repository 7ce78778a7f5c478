"""Placing in batches gives what a naive loop gives, which looks at every node for every pod."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduler import SchedulerWorld, node, pod, podgroup, reference_fits

from batholith.model.pod_resources import ContainerResources, Resources
from batholith.scheduler import conf
from batholith.scheduler.framework import feasibility
from batholith.scheduler.framework.feasibility import FeasibilityCache
from batholith.scheduler.framework.framework import Framework
from batholith.scheduler.state import equivalence
from batholith.scheduler.state.core_types import Node, Pod, PodSpec, Taint, Toleration
from batholith.scheduler.state.resources import CPU, MEMORY, PODS, amounts, pod_request

ORDERS = {
    "spread": "  - name: nodeorder\n",
    "pack": "  - name: binpack\n",
    "both": "  - name: nodeorder\n  - name: binpack\n    arguments: {binpack.cpu: 3}\n",
    "none": "",
}


def _conf(order: str) -> str:
    plugins = "".join(f"  - name: {name}\n" for name in ("priority", "gang", "predicates"))
    return f'actions: "allocate"\ntiers:\n- plugins:\n{plugins}{ORDERS[order]}'


def _reference_placement(
    cluster_objects: list[Node], gang_objects: list[Pod], text: str
) -> list[str]:
    """Place pod by pod: of the nodes with room the best, by name among equals."""
    rules = Framework(conf.load(text).tiers)
    world = SchedulerWorld(text)
    world.upsert(*cluster_objects)
    snapshot = world.cluster.node_matrix
    for opener in rules.session_open:
        opener.on_session_open(world.cluster)
    where = []
    for each in gang_objects:
        shape = world.cluster.eq_classes.get(each.spec)
        request = shape.request_vector(snapshot.resource_index)
        best: tuple[int, str] | None = None
        for candidate in sorted(cluster_objects, key=lambda one: one.metadata.name):
            slot = snapshot.index_of(candidate.metadata.name)
            assert slot is not None
            room = (snapshot.idle[:, slot] >= request).all()
            if not room or not reference_fits(each, candidate):
                continue
            offers = snapshot.allocatable[:, slot : slot + 1]
            used = offers - snapshot.idle[:, slot : slot + 1]
            points = sum(float(s.score(request, offers, used)[0]) for s in rules.scorers)
            if best is None or int(points * 2**16) > best[0]:
                best = (int(points * 2**16), candidate.metadata.name)
        if best is None:
            break
        snapshot.add_pod(best[1], request)
        where.append(best[1])
    return where


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=5),
    count=st.integers(1, 40),
    cpu=st.integers(1, 3),
    memory=st.integers(0, 2),
    order=st.sampled_from(sorted(ORDERS)),
    tainted=st.booleans(),
)
def test_a_batch_goes_where_a_naive_loop_puts_it(
    sizes: list[tuple[int, int]], count: int, cpu: int, memory: int, order: str, tainted: bool
) -> None:
    found = [
        node(
            f"n{i}",
            cpu=size[0],
            memory=f"{size[1]}Gi",
            taints=(Taint(key="t", effect="NoSchedule"),) if tainted and i == 0 else (),
        )
        for i, size in enumerate(sizes)
    ]
    wanted = [pod(f"g-t-{i}", "g", cpu=cpu, memory=f"{memory}Gi") for i in range(count)]
    expected = _reference_placement(found, wanted, _conf(order))
    world = SchedulerWorld(_conf(order))
    world.upsert(*found, podgroup("g", 1), *wanted)
    placed = world.schedule()
    assert [placed[f"g-t-{i}"] for i in range(len(placed))] == expected


@settings(max_examples=40, deadline=None)
@given(
    names=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    order=st.sampled_from(["spread", "both"]),
)
def test_shapes_that_take_turns_see_each_other(names: list[int], order: str) -> None:
    """Pods of several shapes in one gang, in any order, go where a naive loop puts them."""
    found = [node(f"n{i}", cpu=6 + i) for i in range(4)]
    wanted = [pod(f"g-t-{i}", "g", cpu=shape) for i, shape in enumerate(names)]
    eager = [each for each in wanted if each.spec.containers[0].resources.requests]
    world = SchedulerWorld(_conf(order))
    world.upsert(*found, podgroup("g", 1), *eager)
    total = sum(amounts(each.status.allocatable)["cpu"] for each in found)
    asked = sum(pod_request(each.spec).get("cpu", 0) for each in eager)
    if asked > total // 2:
        return  # some may not fit, and then later ones may go on: another order
    placed = world.schedule()
    assert [placed[each.metadata.name] for each in eager] == _reference_placement(
        found, eager, _conf(order)
    )


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=20),
    again=st.lists(st.tuples(st.integers(0, 19), st.sampled_from(["", "a", "b"])), max_size=10),
    zone=st.sampled_from(["", "a"]),
    tolerant=st.booleans(),
)
def test_masks_follow_nodes_as_a_naive_look_would(
    labels: list[str], again: list[tuple[int, str]], zone: str, tolerant: bool
) -> None:
    world = SchedulerWorld()
    rules = Framework(conf.load().tiers)
    followed = FeasibilityCache(world.cluster.node_matrix, rules.filters)
    asked = pod(
        "p",
        selector={"zone": zone} if zone else {},
        tolerations=(Toleration(operator="Exists"),) if tolerant else (),
    )
    shape = world.cluster.eq_classes.get(asked.spec)
    there: dict[str, Node] = {}
    for i, label in [*enumerate(labels), *again]:
        taints = (Taint(key="t", effect="NoExecute"),) if label == "b" else ()
        name = f"n{i}"
        there[name] = node(name, labels={"zone": label}, taints=taints, cordoned=i % 5 == 4)
        world.upsert(there[name])
        mask = followed.get(shape)
        for found in there.values():
            slot = world.cluster.node_matrix.index_of(found.metadata.name)
            assert slot is not None
            assert mask.feasible[slot] == reference_fits(asked, found)


def test_init_containers_count_by_their_peak() -> None:
    def container(cpu: str, *, stays: bool = False) -> ContainerResources:
        resources = Resources(requests={"cpu": cpu})
        return ContainerResources(resources=resources, restart_policy="Always" if stays else "")

    spec = PodSpec(
        containers=(container("1"), container("500m")),
        init_containers=(container("200m", stays=True), container("3")),
        overhead={"memory": "1Mi"},
    )
    assert pod_request(spec) == {"cpu": 3200, "memory": 2**20, "pods": 1}
    assert (CPU, MEMORY, PODS) == (0, 1, 2)


def test_shapes_and_masks_that_were_forgotten_come_back_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equivalence, "_MAX_ENTRIES", 2)
    monkeypatch.setattr(feasibility, "_MAX_ENTRIES", 1)
    world = SchedulerWorld()
    world.upsert(node("a", cpu=100, labels={"zone": "0"}), podgroup("g", 4))
    world.upsert(*(pod(f"g-t-{i}", "g", cpu=i + 1, selector={"zone": "0"}) for i in range(4)))
    world.upsert(podgroup("h", 1), pod("h-t-0", "h", selector={"zone": "1"}))
    assert set(world.schedule()) == {f"g-t-{i}" for i in range(4)}
    world.remove(pod("g-t-0", "g", cpu=1, node_name="a"))
    assert world.schedule() == {}
    world.upsert(pod("g-t-1", "g", cpu=2, selector={"zone": "0"}, node_name="a"))
    assert world.cluster.node_matrix.used()["cpu"] == 9000
