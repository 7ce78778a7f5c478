"""Pods with host ports: no two of them that conflict are on one node."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.scheduler import conf
from batholith.scheduler.state.core_types import (
    Container,
    ContainerPort,
    Pod,
    PodSpec,
)
from batholith.scheduler.state.podinfo.host_ports import HostPort, host_ports

NO_FREE_PORTS = "node(s) didn't have free ports for the requested pod ports"


def port(number: int, *, ip: str = "", protocol: str = "TCP") -> ContainerPort:
    return ContainerPort(host_port=number, host_ip=ip, protocol=protocol)


def reference_conflict(left: Pod, right: Pod) -> bool:
    """Whether two pods conflict, by each pair of ports."""

    def ports(each: Pod) -> list[ContainerPort]:
        return [p for c in each.spec.containers for p in c.ports if p.host_port]

    for a in ports(left):
        for b in ports(right):
            same_port = (a.host_port, a.protocol) == (b.host_port, b.protocol)
            wildcard = {a.host_ip, b.host_ip} & {"", "0.0.0.0"}
            if same_port and (a.host_ip == b.host_ip or wildcard):
                return True
    return False


def test_members_that_share_a_port_are_one_per_node() -> None:
    world = SchedulerWorld()
    world.upsert(*(node(f"n{i}") for i in range(3)), podgroup("g", 3))
    world.upsert(*(pod(f"g-{i}", "g", ports=(port(80),)) for i in range(3)))
    assert sorted(world.schedule().values()) == ["n0", "n1", "n2"]


def test_gang_with_more_members_than_nodes_is_unschedulable_and_leaves_no_port_in_use() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), node("b"), node("c", cpu=0), node("d", cordoned=True), podgroup("g", 3))
    world.upsert(pod("x", node_name="c", cpu=0, ports=(port(80),)))
    world.upsert(*(pod(f"g-{i}", "g", ports=(port(80),)) for i in range(3)))
    assert world.schedule() == {}
    assert world.fit_message("g") == (
        f"0/4 nodes are unavailable: 1 node(s) were unschedulable, 3 {NO_FREE_PORTS}."
    )
    assert len(world.cluster.node_matrix.host_ports) == 1


def test_members_of_different_templates_share_a_port() -> None:
    """Their placers use the same ports; the first allocations are undone if the rest do not fit."""
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 2), podgroup("h", 1))
    world.upsert(
        pod("g-0", "g", role="x", ports=(port(80),)),
        pod("g-1", "g", role="y", cpu=2, ports=(port(80, ip="192.0.2.1"),)),
    )
    assert world.schedule() == {}
    world.upsert(pod("h-0", "h", ports=(port(80),)))
    assert world.schedule() == {"h-0": "a"}
    world.upsert(node("b"), node("c"))
    placements = world.schedule()
    assert sorted(placements) == ["g-0", "g-1"]
    assert sorted(placements.values()) == ["b", "c"]


def test_port_is_free_again_when_its_pod_ends() -> None:
    world = SchedulerWorld()
    used = pod("x", node_name="a", scheduler="other", phase="Running", ports=(port(80),))
    world.upsert(node("a"), used, podgroup("g", 1), pod("g-0", "g", ports=(port(80),)))
    assert world.schedule() == {}
    world.upsert(pod("x", node_name="a", scheduler="other", phase="Succeeded", ports=(port(80),)))
    assert world.schedule() == {"g-0": "a"}


def test_port_of_a_placement_that_could_not_be_bound_is_free_again() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g", ports=(port(80),)))
    assert world.schedule() == {"g-0": "a"}
    world.cluster.forget("uid-g-0")
    assert not len(world.cluster.node_matrix.host_ports)
    assert world.schedule() == {"g-0": "a"}


def test_filter_can_be_disabled() -> None:
    disabled = "name: predicates\n    arguments: {predicate.NodePortsEnable: false}"
    world = SchedulerWorld(conf.DEFAULT.replace("name: predicates", disabled))
    world.upsert(node("a"), podgroup("g", 2))
    world.upsert(*(pod(f"g-{i}", "g", ports=(port(80),)) for i in range(2)))
    assert world.schedule() == {"g-0": "a", "g-1": "a"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (PodSpec(containers=(Container(ports=(ContainerPort(), port(0))),)), ()),
        (
            PodSpec(containers=(Container(ports=(port(80), port(80, ip="0.0.0.0"))),)),
            (HostPort("TCP", 80, "0.0.0.0"),),
        ),
        (PodSpec(init_containers=(Container(ports=(port(80),)),)), ()),
        (
            PodSpec(init_containers=(Container(ports=(port(80),), restart_policy="Always"),)),
            (HostPort("TCP", 80, "0.0.0.0"),),
        ),
    ],
)
def test_ports_of_containers_and_sidecars_count(
    spec: PodSpec, expected: tuple[HostPort, ...]
) -> None:
    assert host_ports(spec) == expected


_PORTS = st.builds(
    port,
    st.sampled_from([80, 80, 81]),
    ip=st.sampled_from(["", "0.0.0.0", "192.0.2.1", "192.0.2.2"]),
    protocol=st.sampled_from(["TCP", "TCP", "UDP"]),
)
_POD_PORTS = st.lists(_PORTS, max_size=2).map(tuple)


@settings(max_examples=60, deadline=None)
@given(
    bound=st.lists(st.tuples(st.integers(0, 3), _POD_PORTS), max_size=4),
    gangs=st.lists(st.lists(_POD_PORTS, min_size=1, max_size=4), min_size=1, max_size=4),
    ending=st.sets(st.integers(0, 3)),
)
def test_placements_have_no_conflicts_and_rejected_pods_fit_nowhere(
    bound: list[tuple[int, tuple[ContainerPort, ...]]],
    gangs: list[list[tuple[ContainerPort, ...]]],
    ending: set[int],
) -> None:
    """Against a loop over pairs of pods, with pods of other schedulers that conflict already."""
    world = SchedulerWorld()
    nodes = [f"n{i}" for i in range(4)]
    world.upsert(*(node(name, cpu=100) for name in nodes))
    others = [
        pod(f"x{i}", node_name=nodes[at], scheduler="other", phase="Running", ports=ports)
        for i, (at, ports) in enumerate(bound)
    ]
    world.upsert(*others)
    for g, members in enumerate(gangs):
        world.upsert(podgroup(f"g{g}", len(members)))
        world.upsert(*(pod(f"g{g}-{i}", f"g{g}", ports=p) for i, p in enumerate(members)))
    pods = {each.metadata.name: each for each in world.pod_objects.values()}
    foreign = {each.metadata.name: each.spec.node_name for each in others}
    placements = world.schedule()
    _check_placements(pods, foreign, placements)
    for index in ending:
        if index < len(others):
            world.remove(others[index])
            del foreign[f"x{index}"]
    placements |= world.schedule()
    _check_placements(pods, foreign, placements)
    taken = foreign | placements
    for g, members in enumerate(gangs):
        if len(members) == 1 and f"g{g}-0" not in placements:
            assert not any(
                all(
                    not reference_conflict(pods[f"g{g}-0"], pods[other])
                    for other, at in taken.items()
                    if at == name
                )
                for name in nodes
            )
    _check_counts(world, pods, taken)


def _check_placements(
    pods: dict[str, Pod], foreign: dict[str, str], placements: dict[str, str]
) -> None:
    for name, at in placements.items():
        for other, there in (foreign | placements).items():
            if at == there and name != other:
                assert not reference_conflict(pods[name], pods[other])


def _check_counts(world: SchedulerWorld, pods: dict[str, Pod], taken: dict[str, str]) -> None:
    """The ports in use are exactly those of the pods on the nodes."""
    used = {each for name in taken for each in host_ports(pods[name].spec)}
    matrix = world.cluster.node_matrix
    assert len(matrix.host_ports) == len(used)
    for each in used:
        expected = {
            at
            for name, at in taken.items()
            if any(each[:2] == p[:2] and each.overlaps(p) for p in host_ports(pods[name].spec))
        }
        conflicts = matrix.host_ports.conflicts((each,))
        assert {matrix.names[i] for i in conflicts.nonzero()[0]} == expected
