"""The plugin ``numa-aware``, and how kubelets choose NUMA nodes."""

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.foreign_kinds import definition
from support.planned_gangs import PlanningWorld, created_pod, planned_gang
from support.polling import wait_for
from support.scheduled_gangs import GangServer
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.names import GROUP_NAME, NODES, NUMATOPOLOGIES, PODS, QUEUES
from batholith.model.placement import MemberRole
from batholith.model.pod_resources import Resources
from batholith.scheduler.plugins.numa_aware import (
    NO_TOPOLOGY,
    NOT_ADMITTED,
    NOT_STATIC,
    OTHER_POLICY,
)
from batholith.scheduler.plugins.numa_hints import (
    BEST_EFFORT,
    NONE,
    RESTRICTED,
    SINGLE,
    Fit,
    Hint,
    best_hint,
    fit,
    take,
)
from batholith.scheduler.state.cache.events import NumatopologyEvent, PlacementForgotten
from batholith.scheduler.state.core_types import Container, Pod
from batholith.scheduler.state.nodes.numa_topology import NumaNodes, Numatopology
from batholith.scheduler.state.podinfo.exclusive_cpus import (
    NUMA_POLICY,
    CpuDemand,
    ExclusiveCpus,
    exclusive_cpus,
)
from batholith.scheduler.state.queue.scheduling_queue import ANY

CONF = """
actions: "allocate"
tiers:
- plugins: [{name: gang}, {name: predicates}, {name: numa-aware}]
"""


# -- hints -----------------------------------------------------------------------------------------


class _Merged(NamedTuple):
    """The result of the topology manager."""

    mask: int
    preferred: bool


def _is_narrower(mask: int, other: int) -> bool:
    if mask.bit_count() == other.bit_count():
        return mask < other
    return mask.bit_count() < other.bit_count()


def _all_hints(total: tuple[int, ...], free: tuple[int, ...], cpus: int) -> list[_Merged]:
    """The hints of the CPU manager: all masks, and the smallest that suffice on an empty node."""

    def within(amounts: tuple[int, ...], mask: int) -> int:
        return sum(count for position, count in enumerate(amounts) if mask >> position & 1)

    masks = range(1, 2 ** len(total))
    sizes = [each.bit_count() for each in masks if within(total, each) >= cpus]
    smallest = min(sizes, default=len(total))
    return [
        _Merged(each, each.bit_count() == smallest) for each in masks if within(free, each) >= cpus
    ]


def _merge(hints: list[_Merged]) -> _Merged | None:
    best: _Merged | None = None
    for each in hints:
        is_better = (
            best is None
            or each.preferred > best.preferred
            or (each.preferred == best.preferred and _is_narrower(each.mask, best.mask))
        )
        best = each if is_better else best
    return best


def _admits(policy: str, hints: list[_Merged]) -> bool:
    if policy == SINGLE:
        return any(each.preferred and each.mask.bit_count() == 1 for each in hints)
    merged = _merge(hints)
    return merged is not None and (merged.preferred or policy != RESTRICTED)


_NUMA_NODES = st.lists(
    st.integers(1, 6).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, total))),
    min_size=1,
    max_size=5,
)


@given(nodes=_NUMA_NODES, cpus=st.integers(1, 20))
def test_the_best_hint_is_that_of_an_evaluation_of_all_masks(
    nodes: list[tuple[int, int]], cpus: int
) -> None:
    total, free = (tuple(column) for column in zip(*nodes, strict=True))
    hints = _all_hints(total, free, cpus)
    merged, found = _merge(hints), best_hint(total, free, cpus)
    expected = merged and Hint(
        tuple(at for at in range(len(total)) if merged.mask >> at & 1), merged.preferred
    )
    assert found == expected
    for policy in (NONE, BEST_EFFORT, RESTRICTED, SINGLE):
        admitted = fit(ExclusiveCpus(policy, (CpuDemand(cpus),)), total, free)
        assert (admitted is not None) == _admits(policy, hints)
        if admitted is not None:
            assert sum(free) - sum(admitted.free) == cpus
            assert all(left >= 0 for left in admitted.free)
            if policy != NONE:
                assert found is not None
                assert admitted.nodes <= set(found.nodes)


def test_whole_numa_nodes_are_taken_before_parts_of_others() -> None:
    assert take((4, 4, 4), (2, 4, 3), 5, range(3)) == (1, 0, 3)


def test_containers_are_admitted_one_after_the_other() -> None:
    two = ExclusiveCpus(SINGLE, (CpuDemand(3), CpuDemand(3)))
    assert fit(two, (4, 4), (4, 4)) == Fit((1, 1), frozenset({0, 1}))
    assert fit(two, (4, 4), (4, 2)) is None
    init = ExclusiveCpus(SINGLE, (CpuDemand(3, is_kept=False), CpuDemand(3)))
    assert fit(init, (4, 4), (4, 2)) == Fit((1, 2), frozenset({0}))


# -- pods ------------------------------------------------------------------------------------------


def numa_pod(
    name: str,
    *cpus: str,
    policy: str = SINGLE,
    group: str = "",
    init: tuple[Container, ...] = (),
    memory: str = "1Gi",
) -> Pod:
    """A Guaranteed pod with a policy and a container for each of *cpus*."""
    created = pod(name, group or name)
    annotations = created.metadata.annotations | ({NUMA_POLICY: policy} if policy else {})
    return msgspec.structs.replace(
        created,
        metadata=msgspec.structs.replace(created.metadata, annotations=annotations),
        spec=msgspec.structs.replace(
            created.spec,
            containers=tuple(_container(each, memory) for each in cpus),
            init_containers=init,
        ),
    )


def _container(cpus: str, memory: str = "1Gi", *, restart: str = "") -> Container:
    limits: dict[str, str | int | float] = {"cpu": cpus}
    if memory:
        limits["memory"] = memory
    return Container(resources=Resources(requests=limits, limits=limits), restart_policy=restart)


@pytest.mark.parametrize(
    ("created", "demands"),
    [
        (numa_pod("a", "2", "1500m", "4000m"), [(2, True), (4, True)]),
        (numa_pod("a", "500m"), None),
        (numa_pod("a", "2", memory=""), None),
        (numa_pod("a", "2", policy=""), None),
        (
            numa_pod("a", "2", init=(_container("3", restart="Always"), _container("4"))),
            [(3, True), (4, False), (2, True)],
        ),
        (numa_pod("a", "2", init=(Container(),)), None),
    ],
)
def test_guaranteed_pods_with_a_policy_get_whole_cpus_exclusively(
    created: Pod, demands: list[tuple[int, bool]] | None
) -> None:
    found = exclusive_cpus(created)
    assert found == (
        None if demands is None else ExclusiveCpus(SINGLE, tuple(CpuDemand(*d) for d in demands))
    )


# -- Numatopologies --------------------------------------------------------------------------------


def numatopology(
    name: str,
    free: str = "0-7",
    *,
    policy: str = SINGLE,
    manager: str = "static",
    reserved: str = "0",
    pods: tuple[str, ...] = (),
    cpus_by_numa: int = 4,
) -> Numatopology:
    """One with two NUMA nodes of four CPUs each, unless given."""
    detail = {
        str(cpu): {"numa": cpu // cpus_by_numa, "socket": cpu // 4, "core": cpu // 2}
        for cpu in range(8)
    }
    spec = {
        "policies": {"CPUManagerPolicy": manager, "TopologyManagerPolicy": policy},
        "resReserved": {"cpu": reserved},
        "numares": {"cpu": {"allocatable": free, "capacity": 8}},
        "cpuDetail": detail,
        "podAllocations": [{"uid": each, "name": each, "namespace": "ns"} for each in pods],
    }
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Numatopology)


def test_reserved_cpus_and_those_of_pods_are_not_free() -> None:
    parsed = NumaNodes.parse(numatopology("a", "0-1,3,5-7", reserved="1500m").spec)
    assert (parsed.total, parsed.free) == ((4, 4), (1, 3))


@pytest.mark.parametrize("free", ["0-", "a", "0,,1", "-1", "1;2", "0-99999999"])
def test_a_malformed_numatopology_is_as_none(free: str) -> None:
    with pytest.raises(ValueError, match="not a list of CPUs"):
        NumaNodes.parse(numatopology("a", free).spec)
    world = numa_world(numatopology("a", free))
    world.upsert(podgroup("p", 1), numa_pod("p", "2"))
    assert world.schedule() == {}
    assert NO_TOPOLOGY in world.fit_message("p")


# -- scheduling ------------------------------------------------------------------------------------


def numa_world(*topologies: Numatopology) -> SchedulerWorld:
    world = SchedulerWorld(CONF)
    for each in topologies:
        world.upsert(node(each.metadata.name))
        report(world, each)
    return world


def report(world: SchedulerWorld, topology: Numatopology) -> None:
    """Add or update a Numatopology."""
    world.cluster.apply(NumatopologyEvent(None, topology))


def test_a_node_has_to_have_the_policy_of_the_pod() -> None:
    world = numa_world(
        numatopology("a", policy=RESTRICTED), numatopology("b", manager="none"), numatopology("c")
    )
    world.upsert(node("d"), podgroup("p", 1), numa_pod("p", "2"))
    assert world.schedule() == {"p": "c"}
    world.upsert(podgroup("q", 1), numa_pod("q", "2", policy=BEST_EFFORT))
    assert world.schedule() == {}
    message = world.fit_message("q")
    assert all(each in message for each in (NO_TOPOLOGY, NOT_STATIC, OTHER_POLICY)), message


def test_other_pods_are_not_concerned() -> None:
    world = numa_world(numatopology("a", "", policy=RESTRICTED))
    world.upsert(podgroup("p", 2), pod("p-0", "p"), numa_pod("p-1", "1500m", group="p"))
    assert world.schedule() == {"p-0": "a", "p-1": "a"}


def test_a_gang_gets_no_more_than_its_nodes_can_admit() -> None:
    world = numa_world(numatopology("a"), numatopology("b", "0-2,4-5"))
    world.upsert(podgroup("g", 4), *(numa_pod(f"g-{at}", "3", group="g") for at in range(4)))
    assert world.schedule() == {}
    assert NOT_ADMITTED in world.fit_message("g")
    report(world, numatopology("b"))
    assert sorted(world.schedule().values()) == ["a", "a", "b", "b"]


def test_cpus_are_promised_until_the_numatopology_lists_the_pod() -> None:
    world = numa_world(numatopology("a"))
    world.upsert(podgroup("p", 1), numa_pod("p", "3"), podgroup("q", 1), numa_pod("q", "3"))
    assert world.schedule() == {"p": "a", "q": "a"}
    world.upsert(podgroup("r", 1), numa_pod("r", "2"))
    assert world.schedule() == {}
    report(world, numatopology("a", "3-7", pods=("uid-p",)))
    assert world.schedule() == {}
    report(world, numatopology("a", "3,4-5", pods=("uid-p", "uid-q")))
    assert world.schedule() == {"r": "a"}


@pytest.mark.parametrize("is_bound", [False, True])
def test_cpus_are_given_back_by_pods_that_do_not_run(is_bound: bool) -> None:
    world = numa_world(numatopology("a", "0-3"))
    first = numa_pod("p", "3")
    world.upsert(podgroup("p", 1), first)
    assert world.schedule() == {"p": "a"}
    world.upsert(podgroup("q", 1), numa_pod("q", "3"))
    assert world.schedule() == {}
    if is_bound:
        world.remove(first)
        assert world.schedule() == {"q": "a"}
    else:
        world.cluster.apply(PlacementForgotten("uid-p"))
        assert len(world.schedule()) == 1


def test_a_new_scheduler_counts_pods_that_are_bound_and_not_listed() -> None:
    world = numa_world(numatopology("a", "0-3"))
    bound = numa_pod("p", "3")
    spec = msgspec.structs.replace(bound.spec, node_name="a")
    world.upsert(podgroup("p", 1), msgspec.structs.replace(bound, spec=spec))
    world.upsert(podgroup("q", 1), numa_pod("q", "3"))
    assert world.schedule() == {}
    report(world, numatopology("a", "3-6", pods=("uid-p",)))
    assert world.schedule() == {"q": "a"}


def test_cpus_of_init_containers_are_free_for_the_next_pod() -> None:
    world = numa_world(numatopology("a", "0-3"))
    init = (_container("4"),)
    world.upsert(podgroup("g", 2))
    world.upsert(*(numa_pod(f"g-{at}", "500m", group="g", init=init) for at in range(2)))
    assert world.schedule() == {"g-0": "a", "g-1": "a"}
    world.upsert(podgroup("p", 1), numa_pod("p", "500m", init=(_container("5"),)))
    assert world.schedule() == {}


def test_cpus_of_planned_members_become_those_of_their_pods() -> None:
    world = PlanningWorld(text=CONF.replace("allocate", "enqueue, allocate"))
    world.upsert(node("a"))
    report(world, numatopology("a", "0-3"))
    template = msgspec.to_builtins(numa_pod("t", "3"))
    template["metadata"] = {"annotations": {NUMA_POLICY: SINGLE}}
    member = MemberRole(name="t", count=1, pod=msgspec.Raw(msgspec.json.encode(template)))
    world.submit(planned_gang("j", member))
    assert world.current_plan("j").nodes == {("t", 0): "a"}
    world.upsert(podgroup("q", 1), numa_pod("q", "3"))
    assert world.schedule() == {}
    bare = created_pod("j", "t", 0, node="a")
    annotations = bare.metadata.annotations | {NUMA_POLICY: SINGLE}
    meta = msgspec.structs.replace(bare.metadata, annotations=annotations)
    spec = msgspec.structs.replace(bare.spec, containers=numa_pod("t", "3").spec.containers)
    world.upsert(msgspec.structs.replace(bare, metadata=meta, spec=spec))
    world.cluster.scheduling_queue.publish(ANY)
    assert world.schedule() == {}
    report(world, numatopology("a", "3-6", pods=(meta.uid,)))
    assert world.schedule() == {"q": "a"}


def test_attempts_that_fail_keep_no_cpus() -> None:
    world = numa_world(numatopology("a"))
    world.upsert(podgroup("g", 2), numa_pod("g-0", "4", group="g"), pod("g-1", "g", cpu=6))
    world.upsert(podgroup("p", 1, created="2026-01-02T00:00:00Z"), numa_pod("p", "4", "4"))
    assert world.schedule() == {"p": "a"}


def test_nodes_are_preferred_where_a_pod_has_few_numa_nodes() -> None:
    world = numa_world(
        numatopology("a", "0-1,4-7", policy=BEST_EFFORT, cpus_by_numa=2),
        numatopology("b", "0-3", policy=BEST_EFFORT),
    )
    world.upsert(podgroup("p", 1), numa_pod("p", "4", policy=BEST_EFFORT))
    assert world.schedule() == {"p": "b"}
    world.upsert(podgroup("q", 1), numa_pod("q", "4", policy=BEST_EFFORT))
    assert world.schedule() == {"q": "a"}


def test_each_pod_of_a_gang_is_scored_after_those_before_it() -> None:
    world = numa_world(
        numatopology("a", "0-5", policy=BEST_EFFORT), numatopology("b", "0-3", policy=BEST_EFFORT)
    )
    gang = (numa_pod(f"g-{at}", "3", policy=BEST_EFFORT, group="g") for at in range(2))
    world.upsert(podgroup("g", 2), *gang)
    assert world.schedule() == {"g-0": "a", "g-1": "b"}


def test_a_deleted_numatopology_makes_its_node_infeasible() -> None:
    world = numa_world(numatopology("a"))
    world.cluster.apply(NumatopologyEvent(numatopology("a"), None))
    world.upsert(podgroup("p", 1), numa_pod("p", "2"))
    assert world.schedule() == {}
    assert NO_TOPOLOGY in world.fit_message("p")


# -- a running scheduler ---------------------------------------------------------------------------


def store_cluster(server: GangServer) -> None:
    """Store a node with one free NUMA node, and two pods that need all of its CPUs."""
    server.prepare()
    server.put(QUEUES, "root", namespace="", spec={"weight": 1}, status={"state": "Open"})
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    server.put(NODES, "n", status={"allocatable": allocatable})
    store_numatopology(server, "0-3")
    server.gang("g", 0, 1)
    for number in range(2):
        meta = {"annotations": {GROUP_NAME: "g", NUMA_POLICY: SINGLE}}
        container = {"name": "c", "resources": {"limits": {"cpu": "4", "memory": "1Gi"}}}
        spec = {"schedulerName": "volcano", "containers": [container]}
        server.put(PODS, f"g-{number}", metadata=meta, spec=spec, status={"phase": "Pending"})


def store_numatopology(server: GangServer, free: str, *pods: str) -> None:
    spec = msgspec.to_builtins(numatopology("n", free, pods=pods).spec)
    server.put(NUMATOPOLOGIES, "n", namespace="", spec=spec)


async def test_a_running_scheduler_watches_numatopologies() -> None:
    async with GangServer(definitions=[definition(NUMATOPOLOGIES)]) as server:
        store_cluster(server)
        async with server.scheduler(conf=CONF):
            assert await server.wait_bound("g", 1) == ["n"]
            store_numatopology(server, "0-7")
            assert await server.wait_bound("g", 2) == ["n", "n"]


async def test_the_plugin_needs_a_restart_if_it_was_not_configured(tmp_path: Path) -> None:
    file = tmp_path / "conf"
    without = CONF.replace(", {name: numa-aware}", "")
    file.write_text(without)
    async with GangServer(definitions=[definition(NUMATOPOLOGIES)]) as server:
        store_cluster(server)
        async with server.scheduler(conf=without, conf_file=file) as run:
            await server.wait_bound("g", 2)
            file.write_text(CONF)
            await wait_for(lambda: any(run.events("InvalidSchedulerConfiguration")))
            (message,) = run.events("InvalidSchedulerConfiguration")
            assert "has to be restarted" in message
