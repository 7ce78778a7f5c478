"""The plugin ``numa-aware``, and how kubelets choose NUMA nodes."""

import functools
import itertools
from pathlib import Path
from typing import Any, NamedTuple

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
from batholith.scheduler.conf import ConfError
from batholith.scheduler.plugins.numa_aware import (
    NO_TOPOLOGY,
    NOT_ADMITTED,
    NOT_STATIC,
    OTHER_POLICY,
)
from batholith.scheduler.plugins.numa_hints import (
    BEST_EFFORT,
    CONTAINER,
    NONE,
    POD,
    RESTRICTED,
    SINGLE,
    Amounts,
    Fit,
    ResourceAmounts,
    fit,
    hints,
    merge,
    take,
)
from batholith.scheduler.state.cache.events import NumatopologyEvent, PlacementForgotten
from batholith.scheduler.state.core_types import Container, Pod
from batholith.scheduler.state.nodes.numa_topology import NumaNodes, Numatopology
from batholith.scheduler.state.podinfo.numa_request import (
    NUMA_POLICY,
    ContainerNeeds,
    NumaRequest,
    numa_request,
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


def _all_hints(total: Amounts, free: Amounts, amount: int) -> list[_Merged]:
    """The hints of one resource: all masks, and the smallest that suffice on an empty node."""

    def within(amounts: Amounts, mask: int) -> int:
        return sum(count for position, count in enumerate(amounts) if mask >> position & 1)

    masks = range(1, 2 ** len(total))
    sizes = [each.bit_count() for each in masks if within(total, each) >= amount]
    smallest = min(sizes, default=len(total))
    return [
        _Merged(each, each.bit_count() == smallest)
        for each in masks
        if within(free, each) >= amount
    ]


def _better(current: _Merged, candidate: _Merged, needed: int) -> _Merged:
    """The better of two merged hints, by the comparisons of the topology manager."""
    narrower = candidate if _is_narrower(candidate.mask, current.mask) else current
    if current.preferred != candidate.preferred:
        return candidate if candidate.preferred else current
    if current.preferred:
        return narrower
    now, new = current.mask.bit_count(), candidate.mask.bit_count()
    if now > needed:
        return narrower
    if now == needed:
        return narrower if new == needed else current
    if new > needed:
        return current
    if new == needed or new > now:
        return candidate
    return current if new < now else narrower


def _merged(of_resources: list[list[_Merged]]) -> _Merged | None:
    """The best of all permutations of the hints of each resource."""
    needed = max(min(each.mask.bit_count() for each in found) for found in of_resources)
    best: _Merged | None = None
    for permutation in itertools.product(*of_resources):
        masks = {each.mask for each in permutation}
        mask = functools.reduce(int.__and__, masks)
        is_preferred = len(masks) == 1 and all(each.preferred for each in permutation)
        if mask:
            candidate = _Merged(mask, is_preferred)
            best = candidate if best is None else _better(best, candidate, needed)
    return best


def _chosen(policy: str, of_resources: list[list[_Merged]]) -> int | None:
    """The mask that a policy admits; 0 if hints have nothing in common."""
    if policy == SINGLE:
        of_resources = [
            [each for each in found if each.preferred and each.mask.bit_count() == 1]
            for found in of_resources
        ]
        if not all(of_resources):
            return None
    best = _merged(of_resources)
    if policy == BEST_EFFORT:
        return best.mask if best else 0
    return best.mask if best and best.preferred else None


_NUMA_NODES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)),
    min_size=1,
    max_size=4,
)


@given(nodes=_NUMA_NODES, cpus=st.integers(1, 8), gpus=st.integers(1, 4))
def test_hints_are_merged_as_by_an_evaluation_of_all_permutations(
    nodes: list[tuple[int, int, int, int]], cpus: int, gpus: int
) -> None:
    total: ResourceAmounts = (tuple(n[0] for n in nodes), tuple(n[2] for n in nodes))
    free: ResourceAmounts = tuple(tuple(min(n[at], n[at + 1]) for n in nodes) for at in (0, 2))
    of_resources = [_all_hints(total[at], free[at], n) for at, n in ((0, cpus), (1, gpus))]
    for at, amount in ((0, cpus), (1, gpus)):
        assert list(hints(total[at], free[at], amount).items()) == of_resources[at]
    given_hints = [hints(total[0], free[0], cpus), hints(total[1], free[1], gpus)]
    for policy in (NONE, BEST_EFFORT, RESTRICTED, SINGLE):
        request = NumaRequest(policy, (ContainerNeeds((cpus, gpus)),))
        admitted = fit(request, total, free, CONTAINER)
        assert admitted == fit(request, total, free, POD)
        if not all(of_resources):
            assert admitted is None
            continue
        chosen = None if policy == NONE else _chosen(policy, of_resources)
        if policy != NONE:
            assert merge(policy, given_hints) == chosen
        assert (admitted is not None) == (policy == NONE or chosen is not None)
        if admitted is not None:
            before, after = [[sum(each) for each in r] for r in (free, admitted.free)]
            assert (before[0] - after[0], before[1] - after[1]) == (cpus, gpus)
            assert min(map(min, admitted.free)) >= 0
            if policy in (RESTRICTED, SINGLE):
                assert admitted.nodes <= {at for at in range(4) if (chosen or 0) >> at & 1}


def needs(cpus: int, gpus: int = 0, *, is_kept: bool = True) -> ContainerNeeds:
    return ContainerNeeds((cpus, gpus), is_kept)


def test_whole_numa_nodes_are_taken_before_parts_of_others() -> None:
    assert take(((4, 4, 4), ()), ((2, 4, 3), ()), (5, 0), 0b111) == ((1, 0, 3), ())


def test_what_a_hint_lacks_is_taken_from_other_numa_nodes() -> None:
    total: ResourceAmounts = ((4, 4), (0, 2))
    free: ResourceAmounts = ((4, 0), (0, 2))
    found = fit(NumaRequest(BEST_EFFORT, (needs(2, 1),)), total, free, CONTAINER)
    assert found == Fit(((2, 0), (0, 1)), frozenset({0, 1}))
    assert fit(NumaRequest(RESTRICTED, (needs(2, 1),)), total, free, CONTAINER) is None
    assert fit(NumaRequest(RESTRICTED, (needs(4, 1),)), total, total, CONTAINER) == Fit(
        ((4, 0), (0, 1)), frozenset({1})
    )


def test_resources_without_numa_nodes_have_no_preference() -> None:
    found = fit(NumaRequest(SINGLE, (needs(3, 8),)), ((4, 4), ()), ((2, 4), ()), CONTAINER)
    assert found == Fit(((2, 1), ()), frozenset({1}))


def test_containers_are_admitted_one_after_the_other() -> None:
    two = NumaRequest(SINGLE, (needs(3), needs(3)))
    assert fit(two, ((4, 4), ()), ((4, 4), ()), CONTAINER) == Fit(((1, 1), ()), frozenset({0, 1}))
    assert fit(two, ((4, 4), ()), ((4, 2), ()), CONTAINER) is None
    init = NumaRequest(SINGLE, (needs(3, is_kept=False), needs(3)))
    assert fit(init, ((4, 4), ()), ((4, 2), ()), CONTAINER) == Fit(((1, 2), ()), frozenset({0}))


def test_with_the_scope_of_pods_all_containers_have_the_same_numa_nodes() -> None:
    two = NumaRequest(SINGLE, (needs(3), needs(3)))
    assert fit(two, ((4, 4), ()), ((4, 4), ()), POD) is None
    assert fit(two, ((4, 8), ()), ((4, 7), ()), POD) == Fit(((4, 1), ()), frozenset({1}))
    init = NumaRequest(SINGLE, (needs(4, is_kept=False), needs(2), needs(2)))
    assert fit(init, ((4, 4), ()), ((3, 4), ()), POD) == Fit(((3, 0), ()), frozenset({1}))
    assert fit(init, ((4, 4), ()), ((3, 3), ()), POD) is None


# -- pods ------------------------------------------------------------------------------------------


def numa_pod(
    name: str,
    *cpus: str,
    policy: str = SINGLE,
    group: str = "",
    init: tuple[Container, ...] = (),
    memory: str = "1Gi",
    gpus: int = 0,
) -> Pod:
    """A Guaranteed pod with a policy and a container for each of *cpus*."""
    created = pod(name, group or name)
    annotations = created.metadata.annotations | ({NUMA_POLICY: policy} if policy else {})
    return msgspec.structs.replace(
        created,
        metadata=msgspec.structs.replace(created.metadata, annotations=annotations),
        spec=msgspec.structs.replace(
            created.spec,
            containers=tuple(_container(each, memory, gpus=gpus) for each in cpus),
            init_containers=init,
        ),
    )


def _container(cpus: str, memory: str = "1Gi", *, restart: str = "", gpus: int = 0) -> Container:
    limits: dict[str, str | int | float] = {"cpu": cpus}
    if memory:
        limits["memory"] = memory
    if gpus:
        limits["nvidia.com/gpu"] = gpus
    return Container(resources=Resources(requests=limits, limits=limits), restart_policy=restart)


@pytest.mark.parametrize(
    ("created", "needed"),
    [
        (numa_pod("a", "2", "1500m", "4000m"), [needs(2), needs(4)]),
        (numa_pod("a", "500m"), None),
        (numa_pod("a", "2", memory=""), None),
        (numa_pod("a", "2", policy=""), None),
        (
            numa_pod("a", "2", init=(_container("3", restart="Always"), _container("4"))),
            [needs(3), needs(4, is_kept=False), needs(2)],
        ),
        (numa_pod("a", "2", init=(Container(),)), None),
        (numa_pod("a", "2", gpus=1), [needs(2, 1)]),
        (numa_pod("a", "2", memory="", gpus=1), [needs(0, 1)]),
    ],
)
def test_pods_with_a_policy_get_gpus_and_guaranteed_ones_whole_cpus_exclusively(
    created: Pod, needed: list[ContainerNeeds] | None
) -> None:
    found = numa_request(created)
    assert found == (None if needed is None else NumaRequest(SINGLE, tuple(needed)))


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
    gpus: str | None = None,
) -> Numatopology:
    """One with two NUMA nodes of four CPUs each, unless given; with *gpus*, the free ones, also of
    two GPUs each."""
    detail = {
        str(cpu): {"numa": cpu // cpus_by_numa, "socket": cpu // 4, "core": cpu // 2}
        for cpu in range(8)
    }
    spec: dict[str, Any] = {
        "policies": {"CPUManagerPolicy": manager, "TopologyManagerPolicy": policy},
        "resReserved": {"cpu": reserved},
        "numares": {"cpu": {"allocatable": free, "capacity": 8}},
        "cpuDetail": detail,
        "podAllocations": [{"uid": each, "name": each, "namespace": "ns"} for each in pods],
    }
    if gpus is not None:
        spec["gpuDetail"] = {str(gpu): {"numa": gpu // 2, "busID": f"{gpu}"} for gpu in range(4)}
        spec["numares"]["nvidia.com/gpu"] = {"allocatable": gpus, "capacity": 4}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Numatopology)


def test_reserved_cpus_and_those_of_pods_are_not_free() -> None:
    parsed = NumaNodes.parse(numatopology("a", "0-1,3,5-7", reserved="1500m").spec)
    assert (parsed.total, parsed.free) == (((4, 4), ()), ((1, 3), ()))


def test_gpus_have_numa_nodes_and_those_of_pods_are_not_free() -> None:
    parsed = NumaNodes.parse(numatopology("a", "0-7", gpus="0,2-3").spec)
    assert (parsed.total, parsed.free) == (((4, 4), (2, 2)), ((4, 4), (1, 2)))


@pytest.mark.parametrize("free", ["0-", "a", "0,,1", "-1", "1;2", "0-99999999"])
def test_a_malformed_numatopology_is_as_none(free: str) -> None:
    with pytest.raises(ValueError, match="not a list of numbers"):
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


def test_cpus_and_gpus_of_a_pod_are_of_the_same_numa_node() -> None:
    world = numa_world()
    for name, free, gpus in (("a", "0-3", "2-3"), ("b", "4-7", "0-3")):
        world.upsert(node(name, extra={"nvidia.com/gpu": "4"}))
        report(world, numatopology(name, free, gpus=gpus))
    world.upsert(podgroup("g", 2))
    world.upsert(*(numa_pod(f"g-{at}", "2", group="g", gpus=1) for at in range(2)))
    assert world.schedule() == {"g-0": "b", "g-1": "b"}
    world.upsert(podgroup("p", 1), numa_pod("p", "2", gpus=1))
    assert world.schedule() == {}
    assert NOT_ADMITTED in world.fit_message("p")
    report(world, numatopology("a", "0-3", gpus="0"))
    assert world.schedule() == {"p": "a"}


def test_gpus_of_pods_without_whole_cpus_need_no_static_cpu_manager() -> None:
    world = numa_world()
    world.upsert(node("a", extra={"nvidia.com/gpu": "4"}))
    report(world, numatopology("a", manager="none", gpus="0,2"))
    world.upsert(podgroup("p", 1), numa_pod("p", "500m", gpus=2))
    assert world.schedule() == {}
    assert NOT_ADMITTED in world.fit_message("p")
    report(world, numatopology("a", manager="none", gpus="0,2-3"))
    assert world.schedule() == {"p": "a"}


def test_the_scope_of_kubelets_is_an_argument() -> None:
    scoped = CONF.replace("numa-aware}", "numa-aware, arguments: {topologyManagerScope: pod}}")
    world = SchedulerWorld(scoped)
    world.upsert(node("a"), podgroup("p", 1), numa_pod("p", "3", "2"))
    report(world, numatopology("a"))
    assert world.schedule() == {}
    world.upsert(podgroup("q", 1), numa_pod("q", "2", "2"))
    assert world.schedule() == {"q": "a"}
    with pytest.raises(ConfError, match=r"topologyManagerScope: must be container or pod"):
        SchedulerWorld(scoped.replace(": pod", ": pods"))


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
