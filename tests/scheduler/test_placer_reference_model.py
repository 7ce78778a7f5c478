"""The placer chooses the nodes that a naive loop over all nodes for each pod chooses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.scheduler import SchedulerWorld, node, pod, podgroup, reference_fits

from batholith.model.pod_resources import Resources
from batholith.scheduler import conf
from batholith.scheduler.framework import feasibility
from batholith.scheduler.framework.feasibility import FeasibilityCache
from batholith.scheduler.framework.framework import Framework
from batholith.scheduler.plugins.extension_points import NodeAmounts
from batholith.scheduler.state.core_types import Container, Node, Pod, PodSpec, Taint, Toleration
from batholith.scheduler.state.podinfo import equivalence
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
    """Choose a node pod by pod: the best that the pod fits, the first name among equals."""
    framework = Framework(conf.load(text).tiers)
    world = SchedulerWorld(text)
    world.upsert(*cluster_objects)
    matrix = world.cluster.node_matrix
    for plugin in framework.session_open:
        plugin.on_session_open(world.cluster)
    chosen = []
    for each in gang_objects:
        eq_class = world.cluster.pod_classes.eq_classes.get(each)
        request = eq_class.request_vector(matrix.resource_index)
        best: tuple[int, str] | None = None
        for candidate in sorted(cluster_objects, key=lambda one: one.metadata.name):
            node_index = matrix.index_of(candidate.metadata.name)
            assert node_index is not None
            fits = (matrix.idle[:, node_index] >= request).all()
            if not fits or not reference_fits(each, candidate):
                continue
            allocatable = matrix.allocatable[:, node_index : node_index + 1]
            used = allocatable - matrix.idle[:, node_index : node_index + 1]
            amounts = NodeAmounts(request, np.array([node_index]), allocatable, used)
            score = sum(float(s.score(eq_class, amounts)[0]) for s in framework.scorers)
            if best is None or int(score * 2**16) > best[0]:
                best = (int(score * 2**16), candidate.metadata.name)
        if best is None:
            break
        matrix.add_pod(best[1], request)
        chosen.append(best[1])
    return chosen


@settings(max_examples=examples(50), deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=5),
    count=st.integers(1, 40),
    cpu=st.integers(1, 3),
    memory=st.integers(0, 2),
    order=st.sampled_from(sorted(ORDERS)),
    tainted=st.booleans(),
)
def test_batch_matches_a_naive_loop(
    sizes: list[tuple[int, int]], count: int, cpu: int, memory: int, order: str, tainted: bool
) -> None:
    nodes = [
        node(
            f"n{i}",
            cpu=size[0],
            memory=f"{size[1]}Gi",
            taints=(Taint(key="t", effect="NoSchedule"),) if tainted and i == 0 else (),
        )
        for i, size in enumerate(sizes)
    ]
    pods = [pod(f"g-t-{i}", "g", cpu=cpu, memory=f"{memory}Gi") for i in range(count)]
    expected = _reference_placement(nodes, pods, _conf(order))
    world = SchedulerWorld(_conf(order))
    world.upsert(*nodes, podgroup("g", 1), *pods)
    placements = world.schedule()
    assert [placements[f"g-t-{i}"] for i in range(len(placements))] == expected


@settings(max_examples=examples(40), deadline=None)
@given(
    names=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    order=st.sampled_from(["spread", "both"]),
)
def test_alternating_equivalence_classes_match_a_naive_loop(names: list[int], order: str) -> None:
    """Their placers use the same node matrix."""
    nodes = [node(f"n{i}", cpu=6 + i) for i in range(4)]
    pods = [pod(f"g-t-{i}", "g", cpu=cpu) for i, cpu in enumerate(names)]
    requesting = [each for each in pods if each.spec.containers[0].resources.requests]
    world = SchedulerWorld(_conf(order))
    world.upsert(*nodes, podgroup("g", 1), *requesting)
    total = sum(amounts(each.status.allocatable)["cpu"] for each in nodes)
    requested = sum(pod_request(each.spec).get("cpu", 0) for each in requesting)
    if requested > total // 2:
        return  # the naive loop ends at the first pod that does not fit
    placements = world.schedule()
    assert [placements[each.metadata.name] for each in requesting] == _reference_placement(
        nodes, requesting, _conf(order)
    )


@settings(max_examples=examples(40), deadline=None)
@given(
    labels=st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=20),
    again=st.lists(st.tuples(st.integers(0, 19), st.sampled_from(["", "a", "b"])), max_size=10),
    zone=st.sampled_from(["", "a"]),
    tolerant=st.booleans(),
)
def test_feasibility_masks_follow_node_updates(
    labels: list[str], again: list[tuple[int, str]], zone: str, tolerant: bool
) -> None:
    world = SchedulerWorld()
    framework = Framework(conf.load().tiers)
    feasibility_cache = FeasibilityCache(world.cluster.node_matrix, framework.filters)
    tested = pod(
        "p",
        selector={"zone": zone} if zone else {},
        tolerations=(Toleration(operator="Exists"),) if tolerant else (),
    )
    eq_class = world.cluster.pod_classes.eq_classes.get(tested)
    current: dict[str, Node] = {}
    for i, label in [*enumerate(labels), *again]:
        taints = (Taint(key="t", effect="NoExecute"),) if label == "b" else ()
        name = f"n{i}"
        current[name] = node(name, labels={"zone": label}, taints=taints, cordoned=i % 5 == 4)
        world.upsert(current[name])
        mask = feasibility_cache.get(eq_class)
        for nodes in current.values():
            node_index = world.cluster.node_matrix.index_of(nodes.metadata.name)
            assert node_index is not None
            assert mask.feasible[node_index] == reference_fits(tested, nodes)


def test_init_containers_count_by_their_maximum() -> None:
    def container(cpu: str, *, sidecar: bool = False) -> Container:
        resources = Resources(requests={"cpu": cpu})
        return Container(resources=resources, restart_policy="Always" if sidecar else "")

    spec = PodSpec(
        containers=(container("1"), container("500m")),
        init_containers=(container("200m", sidecar=True), container("3")),
        overhead={"memory": "1Mi"},
    )
    assert pod_request(spec) == {"cpu": 3200, "memory": 2**20, "pods": 1}
    assert (CPU, MEMORY, PODS) == (0, 1, 2)


def test_dropped_equivalence_classes_and_masks_are_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equivalence, "MAX_ENTRIES", 2)
    monkeypatch.setattr(feasibility, "MAX_ENTRIES", 1)
    world = SchedulerWorld()
    world.upsert(node("a", cpu=100, labels={"zone": "0"}), podgroup("g", 4))
    world.upsert(*(pod(f"g-t-{i}", "g", cpu=i + 1, selector={"zone": "0"}) for i in range(4)))
    world.upsert(podgroup("h", 1), pod("h-t-0", "h", selector={"zone": "1"}))
    assert set(world.schedule()) == {f"g-t-{i}" for i in range(4)}
    world.remove(pod("g-t-0", "g", cpu=1, node_name="a"))
    assert world.schedule() == {}
    world.upsert(pod("g-t-1", "g", cpu=2, selector={"zone": "0"}, node_name="a"))
    assert world.cluster.node_matrix.used()["cpu"] == 9000
