"""Gangs with a constraint on the network between their pods."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.oracle_world import OracleWorld
from support.preemption import EvictingWorld, conf
from support.run_limits import Limits
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue
from support.topologies import ALLOCATE, hard, hypernode, soft

from batholith.model.hypernode import Domain, HyperNode
from batholith.model.job import NetworkTopology
from batholith.model.podgroup import PodGroup
from batholith.scheduler.state.core_types import Node, Pod

MODERATE = settings(max_examples=examples(60), deadline=None)


def tree(text: str = ALLOCATE, *, cpu: int = 2) -> SchedulerWorld:
    """Two spines of two racks of two nodes each: n0 and n1 are rack0, n0 to n3 are spine0."""
    world = SchedulerWorld(text)
    world.upsert(*(node(f"n{index}", cpu=cpu) for index in range(8)), *_tree())
    return world


def _tree() -> list[HyperNode]:
    racks = [hypernode(f"rack{i}", [f"n{2 * i}", f"n{2 * i + 1}"]) for i in range(4)]
    spines = [
        hypernode(f"spine{i}", of=[f"rack{2 * i}", f"rack{2 * i + 1}"], tier=2, called="spine")
        for i in range(2)
    ]
    return [*racks, *spines]


def gang(
    name: str,
    size: int,
    topology: NetworkTopology | None,
    *,
    minimum: int | None = None,
    cpu: int = 1,
) -> list[PodGroup | Pod]:
    """A gang that needs all its pods unless *minimum* is given."""
    group = podgroup(name, size if minimum is None else minimum, topology=topology)
    return [group, *(pod(f"{name}-x-{index}", name, cpu=cpu) for index in range(size))]


def racks(nodes: dict[str, str]) -> list[int]:
    """The racks of chosen pods."""
    return sorted({int(each[1:]) // 2 for each in nodes.values()})


def bind(world: SchedulerWorld, chosen: dict[str, str], phase: str = "Running") -> None:
    """Let the pods run that a cycle has chosen."""
    for name, where in chosen.items():
        known = world.pod_objects[f"uid-{name}"]
        spec = msgspec.structs.replace(known.spec, node_name=where)
        status = msgspec.structs.replace(known.status, phase=phase)
        world.upsert(msgspec.structs.replace(known, spec=spec, status=status))


def test_a_gang_is_allocated_in_the_lowest_tier_that_fits_all_of_it() -> None:
    world = tree()
    world.upsert(*gang("small", 4, hard(2)))
    assert racks(world.schedule()) == [0]
    world.upsert(*gang("large", 8, hard(2)))
    assert racks(world.schedule()) == [2, 3]


def test_of_the_domains_of_a_tier_the_fullest_that_fits_is_chosen() -> None:
    world = tree()
    world.upsert(pod("other", node_name="n5", scheduler="other"), *gang("g", 3, hard(1)))
    assert racks(world.schedule()) == [2]


@pytest.mark.parametrize(
    ("arguments", "rack"),
    [
        ("normal-pod.fading: 0", 0),
        ("normal-pod.enable: true, hypernode.binpack.normal-pod.fading: 0", 1),
        ("normal-pod.enable: true", 2),
    ],
)
def test_pods_without_a_topology_fill_hypernodes_if_that_is_configured(
    arguments: str, rack: int
) -> None:
    plugin = f"{{name: network-topology-aware, arguments: {{hypernode.binpack.{arguments}}}}}"
    world = tree(f'actions: "allocate"\ntiers:\n- plugins: [{plugin}]\n', cpu=4)
    # Rack 1 is fuller than the others, but spine 1 is fuller than spine 0.
    for index, cpu in ((2, 3), (3, 3), (4, 3), (5, 2), (6, 3), (7, 2)):
        world.upsert(pod(f"other-{index}", node_name=f"n{index}", scheduler="other", cpu=cpu))
    world.upsert(*gang("g", 1, None))
    chosen = world.schedule()
    assert racks(chosen) == [rack]
    # The score of a HyperNode is that at the start of a session.
    bind(world, chosen)
    world.upsert(*gang("h", 1, None))
    assert racks(world.schedule()) == [rack]


def test_a_gang_that_fits_no_allowed_domain_waits_though_nodes_are_free() -> None:
    world = tree()
    world.upsert(*gang("g", 5, hard(1)))
    assert world.schedule() == {}
    assert world.fit_message("g") == (
        "no HyperNode of tier 1 or lower fits 5 more pods: the most, 4, fit in rack0"
    )
    fit = next(iter(world.cluster.gangs["ns/g"].diagnosis.fit_errors.values())).domains  # type: ignore[union-attr]
    assert fit is not None
    assert (fit.highest_tier, fit.nearest, fit.needed, fit.fitting) == ("1", "rack0", 5, 4)


def test_a_gang_starts_once_a_domain_fits_it() -> None:
    world = tree()
    blocker = pod("other", node_name="n1", scheduler="other", cpu=2)
    others = [pod(f"o{n}", node_name=f"n{n}", scheduler="other", cpu=2) for n in range(2, 8)]
    world.upsert(blocker, *others, *gang("g", 4, hard(1)))
    assert world.schedule() == {}
    world.remove(blocker)
    assert racks(world.schedule()) == [0]


def test_a_gang_starts_once_there_is_a_domain_for_it() -> None:
    world = tree()
    world.upsert(*gang("g", 5, hard(1)))
    assert world.schedule() == {}
    world.upsert(hypernode("wide", [f"n{n}" for n in range(3, 6)]))
    assert set(world.schedule().values()) == {"n3", "n4", "n5"}


def test_the_highest_tier_may_be_given_by_name() -> None:
    world = tree()
    world.upsert(*gang("g", 5, hard(name="spine")), *gang("h", 1, hard(name="row")))
    assert len(racks(world.schedule())) == 2
    assert world.fit_message("h") == "no HyperNode has a tier with the name 'row'"


def test_a_tier_has_its_number_in_each_tree() -> None:
    """Of two networks, one has an island of two racks, and the other one islands without racks."""
    world = SchedulerWorld(ALLOCATE)
    world.upsert(*(node(f"n{index}", cpu=2) for index in range(8)))
    racks_of_a = [
        hypernode(f"rack{i}", [f"n{2 * i}", f"n{2 * i + 1}"], called="rack") for i in range(2)
    ]
    island_of_a = hypernode("a", of=["rack0", "rack1"], tier=2, called="island")
    islands_of_b = [
        hypernode(f"b{i}", [f"n{4 + 2 * i}", f"n{5 + 2 * i}"], called="island") for i in range(2)
    ]
    both = hypernode("both", of=["a", "b0", "b1"], tier=3)
    world.upsert(*racks_of_a, island_of_a, *islands_of_b, both)
    world.upsert(*gang("large", 8, hard(name="island")))
    assert racks(world.schedule()) == [0, 1]
    world.upsert(*gang("small", 4, hard(name="rack")))
    bind(world, {f"large-x-{i}": f"n{i // 2}" for i in range(8)})
    assert world.schedule() == {}  # the islands of the other network are no racks
    world.upsert(*gang("other", 4, hard(name="island")))
    assert len(racks(world.schedule())) == 1


def test_a_soft_constraint_prefers_a_low_tier_and_requires_none() -> None:
    world = tree()
    world.upsert(*gang("g", 4, soft()), *gang("h", 12, soft()))
    chosen = world.schedule()
    assert len(racks({pod: at for pod, at in chosen.items() if pod.startswith("g")})) == 1
    assert len(chosen) == 16


def test_a_hard_constraint_without_a_highest_tier_allows_all_nodes() -> None:
    world = tree()
    world.upsert(*gang("g", 16, NetworkTopology(mode="hard")))
    assert len(world.schedule()) == 16


def test_replacements_are_allocated_where_the_gang_runs() -> None:
    world = tree()
    world.upsert(*gang("g", 3, hard(1)))
    chosen = world.schedule()
    bind(world, chosen)
    lost = next(iter(chosen))
    world.remove(world.pod_objects[f"uid-{lost}"])
    blocker = pod("other", node_name=chosen.pop(lost), scheduler="other", cpu=1)
    world.upsert(blocker, pod("g-x-9", "g"))
    assert racks(chosen | world.schedule()) == [0]


def test_replacements_wait_if_they_fit_elsewhere_only() -> None:
    world = tree()
    world.upsert(*gang("g", 4, hard(1)))
    chosen = world.schedule()
    bind(world, chosen)
    lost, where = chosen.popitem()
    world.remove(world.pod_objects[f"uid-{lost}"])
    world.upsert(pod("other", node_name=where, scheduler="other"), pod("g-x-9", "g"))
    assert world.schedule() == {}
    assert "fits 1 more pod: the most, 0, fit in rack0" in world.fit_message("g")


def test_more_pods_than_the_minimum_stay_in_an_allowed_domain() -> None:
    world = tree()
    world.upsert(*gang("g", 12, hard(2), minimum=3))
    chosen = world.schedule()
    assert racks(chosen) == [0, 1]
    assert len(chosen) == 8, "the four others do not fit in the spine"


def test_best_effort_pods_stay_with_their_gang() -> None:
    world = tree()
    full = [pod(f"o{n}", node_name=f"n{n}", scheduler="other", pods=2) for n in (0, 1)]
    world.upsert(*full, *gang("g", 2, hard(1)), pod("g-x-8", "g", cpu=0), pod("g-x-9", "g", cpu=0))
    assert len(racks(world.schedule())) == 1


def test_a_gang_whose_pods_run_apart_gets_no_more_pods() -> None:
    world = tree()
    world.upsert(podgroup("g", 3, topology=hard(1)), pod("g-x-2", "g"))
    for index, at in enumerate(("n0", "n7")):
        world.upsert(pod(f"g-x-{index}", "g", node_name=at, phase="Running"))
    assert world.schedule() == {}
    assert world.fit_message("g") == (
        "there is no HyperNode of tier 1 or lower with all pods of the gang that run"
    )


def test_a_topology_has_no_effect_where_nothing_is_known_about_the_network() -> None:
    world = SchedulerWorld(ALLOCATE)
    world.upsert(node("a", cpu=2), node("b", cpu=2), *gang("g", 4, hard(1)))
    assert len(world.schedule()) == 4


LABELS = ALLOCATE.replace(
    "{name: network-topology-aware}",
    "{name: network-topology-aware, arguments: {label-tiers: [rack, zone]}}",
)


def test_a_hard_constraint_holds_also_while_no_hypernode_has_a_node() -> None:
    world = SchedulerWorld(ALLOCATE)
    world.upsert(node("a"), hypernode("rack", ["b"]), *gang("g", 1, hard(1)), *gang("h", 1, soft()))
    assert world.schedule() == {"h-x-0": "a"}
    assert world.fit_message("g") == "there is no HyperNode of tier 1 or lower with nodes"


def test_labels_of_nodes_are_tiers_where_there_are_no_hypernodes() -> None:
    world = SchedulerWorld(LABELS)
    for index in range(8):
        labels = {"rack": f"r{index // 2}", "zone": f"z{index // 4}"}
        world.upsert(node(f"n{index}", cpu=2, labels=labels))
    world.upsert(*gang("g", 4, hard(name="rack")), *gang("h", 5, hard(1)), *gang("i", 6, hard(2)))
    chosen = world.schedule()
    assert {name[0] for name in chosen} == {"g", "i"}
    assert racks({pod: at for pod, at in chosen.items() if pod.startswith("i")}) == [2, 3]
    assert "fits 5 more pods" in world.fit_message("h")
    world.upsert(hypernode("all", [f"n{index}" for index in range(8)]))
    assert len(world.schedule()) == 5, "HyperNodes precede labels"


def full_tree(*free: int) -> EvictingWorld:
    """The nodes of `tree`, on which pods of low priority run, apart from the *free* ones."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(*(node(f"n{index}", cpu=2) for index in range(8)), *_tree())
    for index in range(8):
        if index not in free:
            world.gang(f"low{index}", 1, nodes=(f"n{index}",), cpu=2)
    return world


def submit_urgent(world: EvictingWorld, size: int, topology: NetworkTopology) -> None:
    group = podgroup("g", size, topology=topology, priority_class="high")
    world.upsert(group, *(pod(f"g-x-{index}", "g", cpu=2) for index in range(size)))


def test_pods_are_evicted_in_one_domain() -> None:
    """Though two nodes are free, in two domains."""
    world = full_tree(1, 6)
    submit_urgent(world, 2, hard(1))
    world.run()
    assert world.evicted in (["low0-t-0"], ["low7-t-0"])
    world.finish_termination()
    world.run()
    assert len({int(world.node_of(f"g-x-{index}")[1:]) // 2 for index in range(2)}) == 1


def test_no_pod_is_evicted_if_no_domain_could_fit_the_gang() -> None:
    world = full_tree(1, 6)
    submit_urgent(world, 3, hard(1))
    world.run()
    assert world.evicted == []
    assert "fits 3 more pods" in world.fit_message("g")


def test_pods_are_evicted_where_a_gang_runs_already() -> None:
    world = full_tree(4)
    world.upsert(podgroup("g", 2, topology=hard(1), priority_class="high", phase="Running"))
    world.upsert(pod("g-x-0", "g", cpu=2, node_name="n4", phase="Running"))
    world.upsert(pod("g-x-1", "g", cpu=2))
    world.run()
    assert world.evicted == ["low5-t-0"]


def test_what_a_gang_has_lost_is_held_where_it_runs() -> None:
    """Nodes of other racks are free, and hold nothing for it."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(*(node(f"n{index}", cpu=2) for index in range(8)), *_tree())
    world.upsert(podgroup("g", 2, topology=hard(1), phase="Running"))
    for index in range(2):
        world.upsert(pod(f"g-x-{index}", "g", cpu=2, node_name=f"n{index}", phase="Running"))
    world.run()
    world.remove(world.pod_objects["uid-g-x-1"])
    world.upsert(pod("other", node_name="n1", scheduler="other"), pod("g-x-2", "g", cpu=2))
    world.run()
    reservation = world.cluster.reservations.get("ns/g")
    assert reservation is not None
    names = world.cluster.node_matrix.names
    assert [names[each.node_index] for each in reservation.holds.values()] == ["n1"]


def test_the_start_of_a_gang_is_planned_in_one_domain() -> None:
    """What ends in other domains does not let it start earlier."""
    planning = "configurations: [{name: allocate, arguments: {backfilling: conservative}}]"
    world = tree(ALLOCATE.replace("tiers:", f"{planning}\ntiers:"))
    limits = Limits()
    world.cluster.run_times = limits
    world.time = 0.0
    for index in range(8):
        name = f"run{index}"
        limits.seconds[name] = {0: 300.0, 1: 200.0, 2: 50.0, 4: 60.0}.get(index, 900.0)
        limits.started[name] = 0.0
        at = f"n{index}"
        world.upsert(podgroup(name, 1, phase="Running"))
        world.upsert(pod(f"{name}-x-0", name, node_name=at, phase="Running", cpu=2))
    limits.seconds["g"] = 100.0
    group = podgroup("g", 2, topology=hard(1))
    world.upsert(group, *(pod(f"g-x-{index}", "g", cpu=2) for index in range(2)))
    assert world.schedule() == {}
    planned = world.core.caches.start_plan.reservations["ns/g"]
    assert planned.start == 300.0, "two nodes are free at 60, but in two racks"


# -- properties ------------------------------------------------------------------------------------


@st.composite
def topologies(draw: st.DrawFn) -> list[HyperNode]:
    """Racks of some of eight nodes, and spines of some racks: nodes may be in none."""
    names = [f"n{index}" for index in range(8)]
    owner = draw(st.lists(st.integers(0, 4), min_size=8, max_size=8))
    above = draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    found = [
        hypernode(f"rack{i}", [n for n, at in zip(names, owner, strict=True) if at == i])
        for i in range(4)
        if i in owner
    ]
    found += [
        hypernode(
            f"spine{i}", of=[f"rack{r}" for r in range(4) if above[r] == i], tier=2, called="spine"
        )
        for i in range(2)
    ]
    return [each for each in found if each.spec.members]


constraints = st.sampled_from(
    [hard(1), hard(1), hard(2), hard(name="spine"), hard(0), soft(), None]
)


@st.composite
def gangs(draw: st.DrawFn, name: str) -> list[PodGroup | Pod]:
    """A gang of up to two roles."""
    pods: list[PodGroup | Pod] = []
    for role in "xy"[: draw(st.integers(1, 2))]:
        cpu = draw(st.sampled_from([1, 1, 2, 0]))
        size = draw(st.integers(1, 4))
        pods += [pod(f"{name}-{role}-{i}", name, role=role, cpu=cpu) for i in range(size)]
    minimum = draw(st.integers(0, len(pods)))
    return [podgroup(name, minimum, topology=draw(constraints)), *pods]


class Topologies:
    """A history of a cluster with a topology, in the scheduler and in the oracle."""

    def __init__(self, data: st.DataObject, text: str) -> None:
        self.data = data
        self.world = OracleWorld(text)
        self.world.upsert(queue(), *(self._node(f"n{index}") for index in range(8)))
        self.world.upsert(*data.draw(topologies()))

    def _node(self, name: str) -> Node:
        cpu = self.data.draw(st.sampled_from([1, 2, 2, 4]))
        return node(name, cpu=cpu, pods=self.data.draw(st.sampled_from([2, 110])))

    def step(self, index: int) -> None:
        """Change something."""
        world, data = self.world, self.data
        match data.draw(st.integers(0, 9)):
            case 0 if world.nodes:
                world.remove(data.draw(st.sampled_from(world.nodes)))
            case 1:
                world.upsert(self._node(f"n{data.draw(st.integers(0, 7))}"))
            case 2 | 3 if world.pods:
                world.remove(data.draw(st.sampled_from(world.pods)))
            case 4 if bound := [each for each in world.pods if each.spec.node_name]:
                phase = data.draw(st.sampled_from(["Running", "Succeeded", "Failed"]))
                world.set_phase(data.draw(st.sampled_from(bound)), phase)
            case 5 if groups := world.podgroups:
                group = data.draw(st.sampled_from(groups))
                name = f"{group.metadata.name}-x-{index + 10}"
                world.upsert(pod(name, group.metadata.name, role="x"))
            case _:
                world.upsert(*data.draw(gangs(f"s{index}")))

    def check(self, chosen: dict[str, str]) -> None:
        """Check that no gang with a hard constraint was split by pods that were *chosen*."""
        table = self.world.world.cluster.domains.table()
        domains = table.domains
        for group in self.world.podgroups:
            topology, name = group.spec.network_topology, group.metadata.name
            if topology is None or topology.mode != "hard" or not table.is_known:
                continue
            members = [
                each for each in self.world.pods if each.metadata.name.startswith(f"{name}-")
            ]
            if not any(each.metadata.uid in chosen for each in members):
                continue
            nodes = {
                each.spec.node_name
                for each in members
                if each.spec.node_name and each.status.phase in ("Pending", "Running")
            }
            assert any(nodes <= each.nodes for each in _widest(domains, topology)), (name, nodes)


@MODERATE
@given(data=st.data())
def test_no_gang_with_a_hard_constraint_is_split_whatever_nodes_and_pods_are_lost(
    data: st.DataObject,
) -> None:
    """INV-TP-1; and each decision is that of the oracle."""
    history = Topologies(data, ALLOCATE)
    for index in range(data.draw(st.integers(2, 8))):
        for _ in range(data.draw(st.integers(1, 3))):
            history.step(index)
        decision, _ = history.world.compare_cycle()
        history.check({each.uid: each.node for each in decision.placements})


@MODERATE
@given(data=st.data(), backfilling=st.booleans())
def test_no_gang_with_a_hard_constraint_is_split_by_evictions_and_held_resources(
    data: st.DataObject, backfilling: bool
) -> None:
    """INV-TP-1, with victims, nominated nodes and planned starts."""
    text = conf(gang=False)
    if backfilling:
        planning = "configurations: [{name: allocate, arguments: {backfilling: conservative}}]"
        text = text.replace("tiers:", f"{planning}\ntiers:")
    world = EvictingWorld(text)
    world.upsert(*(node(f"n{index}", cpu=2) for index in range(8)))
    world.upsert(*data.draw(topologies()))
    for index in range(8):
        if data.draw(st.integers(0, 2)):
            world.gang(f"low{index}", 1, nodes=(f"n{index}",), cpu=2)
    groups: dict[str, NetworkTopology | None] = {}
    for step in range(data.draw(st.integers(3, 10))):
        match data.draw(st.integers(0, 5)):
            case 0 if world.pod_objects:
                world.remove(data.draw(st.sampled_from([*world.pod_objects.values()])))
            case 1:
                world.finish_termination()
            case 2:
                world.remove(node(f"n{data.draw(st.integers(0, 7))}"))
            case _:
                name = f"s{step}"
                groups[name] = data.draw(constraints)
                priority = data.draw(st.sampled_from(["low", "high", "high"]))
                size, cpu = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 2))
                group = podgroup(
                    name, size, topology=groups[name], priority_class=priority, roles={}
                )
                world.upsert(group, *(pod(f"{name}-x-{i}", name, cpu=cpu) for i in range(size)))
        decision = world.run(time=world.time + data.draw(st.sampled_from([1.0, 400.0])))
        chosen = {each.name.partition("-")[0] for each in decision.placements}
        for name, topology in groups.items():
            if topology is not None and topology.mode == "hard":
                _check_nodes(world, name, topology, is_chosen=name in chosen)


def _widest(domains: Sequence[Domain], topology: NetworkTopology) -> list[Domain]:
    """The domains of which one has all nodes of a gang."""
    tier, name = topology.highest_tier_allowed, topology.highest_tier_name
    if tier is None:
        return [each for each in domains if each.tier_name == name]
    return [each for each in domains if each.tier <= tier]


def _check_nodes(
    world: EvictingWorld, name: str, topology: NetworkTopology, *, is_chosen: bool
) -> None:
    domains = world.cluster.domains.table().domains
    bound = {
        each.spec.node_name
        for key, each in world.pod_objects.items()
        if key.startswith(f"uid-{name}-")
        and each.spec.node_name
        and not each.metadata.deletion_timestamp
    }
    reservation = world.cluster.reservations.get(f"ns/{name}")
    names = world.cluster.node_matrix.names
    held = set()
    if reservation is not None:
        held = {names[each.node_index] for each in reservation.holds.values()}
    allowed = [each.nodes for each in _widest(domains, topology)]
    if not world.cluster.domains.table().is_known:
        return
    assert not is_chosen or any(bound <= nodes for nodes in allowed), (name, bound)
    new = held - bound
    alive = set().union(*(each.nodes for each in domains))
    assert not new & alive or any(new & alive <= nodes for nodes in allowed), (name, held, bound)
