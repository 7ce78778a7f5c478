"""Gangs inside a gang: sub-groups are allocated whole, each within one domain."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.preemption import EvictingWorld, conf
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue
from support.topologies import ALLOCATE, hard, hypernode, soft

from batholith.model.hypernode import HyperNode
from batholith.model.job import NetworkTopology
from batholith.model.meta import LabelSelector
from batholith.model.names import QUEUE_GATE
from batholith.model.podgroup import PodGroup, SubGroupPolicy
from batholith.scheduler.state.core_types import Pod

MODERATE = settings(max_examples=examples(60), deadline=None)
PARTITION = "volcano.sh/partition-id"
BACKFILLING = "configurations: [{name: allocate, arguments: {backfilling: conservative}}]\ntiers:"


def policy(
    size: int, minimum: int = 0, topology: NetworkTopology | None = None, name: str = "x"
) -> SubGroupPolicy:
    """What the job controller writes for a task with partitions."""
    return SubGroupPolicy(
        name=name,
        sub_group_size=size,
        min_sub_groups=minimum,
        network_topology=topology,
        label_selector=LabelSelector(match_labels={"volcano.sh/task-spec": name}),
        match_label_keys=(PARTITION,),
    )


def member(gang: str, partition: int, index: int, **fields: object) -> Pod:
    labels = {"volcano.sh/task-spec": "x", PARTITION: str(partition)}
    return pod(f"{gang}-x-{index}", gang, role="x", labels=labels, **fields)  # type: ignore[arg-type]


def gang(
    name: str,
    partitions: int,
    of: SubGroupPolicy,
    *,
    topology: NetworkTopology | None = None,
    minimum: int | None = None,
    cpu: int = 1,
) -> list[PodGroup | Pod]:
    """A gang of *partitions*, of which it needs all unless a *minimum* of pods is given."""
    size = of.sub_group_size
    group = podgroup(
        name,
        partitions * size if minimum is None else minimum,
        topology=topology,
        sub_groups=(of,),
    )
    pods = [member(name, index // size, index, cpu=cpu) for index in range(partitions * size)]
    return [group, *pods]


def racks_of(chosen: dict[str, str], size: int) -> dict[int, set[int]]:
    """The racks (of two nodes each) of each partition."""
    found: dict[int, set[int]] = {}
    for name, where in chosen.items():
        partition = int(name.rpartition("-")[2]) // size
        found.setdefault(partition, set()).add(int(where[1:]) // 2)
    return found


def tree(text: str = ALLOCATE, *, cpu: int = 2) -> SchedulerWorld:
    """Two spines of two racks of two nodes each: n0 and n1 are rack0, n0 to n3 are spine0."""
    world = SchedulerWorld(text)
    world.upsert(*(node(f"n{index}", cpu=cpu) for index in range(8)), *_tree())
    return world


def _tree() -> list[HyperNode]:
    racks = [hypernode(f"rack{i}", [f"n{2 * i}", f"n{2 * i + 1}"]) for i in range(4)]
    spines = [
        hypernode(f"spine{i}", of=[f"rack{2 * i}", f"rack{2 * i + 1}"], tier=2) for i in range(2)
    ]
    return [*racks, *spines]


def test_each_sub_group_is_in_a_domain_of_its_own_within_that_of_the_gang() -> None:
    world = tree()
    world.upsert(*gang("g", 2, policy(3, 2, hard(1)), topology=hard(2)))
    found = racks_of(world.schedule(), 3)
    assert sorted(map(len, found.values())) == [1, 1]
    assert set().union(*found.values()) in ({0, 1}, {2, 3})


def test_names_of_tiers_keep_sub_groups_out_of_networks_without_them() -> None:
    """n0 to n3 are an island of two racks; n4 to n7 are two islands without racks."""
    world = SchedulerWorld(ALLOCATE)
    world.upsert(*(node(f"n{index}", cpu=2) for index in range(8)))
    world.upsert(
        *(hypernode(f"r{i}", [f"n{2 * i}", f"n{2 * i + 1}"], called="rack") for i in range(2)),
        hypernode("a", of=["r0", "r1"], tier=2, called="island"),
        *(hypernode(f"b{i}", [f"n{2 * i}", f"n{2 * i + 1}"], called="island") for i in (2, 3)),
    )
    world.upsert(pod("o", node_name="n4", scheduler="other"))  # the fullest island is another one
    world.upsert(*gang("g", 2, policy(2, 2, hard(name="rack")), topology=hard(name="island")))
    assert set().union(*racks_of(world.schedule(), 2).values()) <= {0, 1}


def test_a_gang_waits_if_a_sub_group_that_it_needs_fits_no_domain() -> None:
    """Though the spine has a node for each pod."""
    world = tree()
    world.upsert(*gang("g", 1, policy(5, 1, hard(1)), topology=hard(2)))
    assert world.schedule() == {}
    assert world.fit_message("g") == (
        "sub-group x-0: no HyperNode of tier 1 or lower fits 5 more pods: the most, 4, fit in rack0"
    )
    (error,) = world.cluster.gangs["ns/g"].diagnosis.fit_errors.values()  # type: ignore[union-attr]
    assert error.sub_group == "x-0"


def test_sub_groups_beyond_the_minimum_are_allocated_whole_or_not_at_all() -> None:
    world = tree()
    world.upsert(*gang("g", 6, policy(3, 2), minimum=6))
    chosen = world.schedule()
    assert len(chosen) == 15, "five of three pods fit on 16 CPUs; the last CPU is left"
    assert set(Counter(racks_of(chosen, 3)).keys()) == {0, 1, 2, 3, 4}


def test_a_gang_starts_with_the_sub_groups_that_fit_if_these_are_enough() -> None:
    world = tree()
    blockers = [pod(f"o{n}", node_name=f"n{n}", scheduler="other", cpu=2) for n in range(2, 8)]
    world.upsert(*blockers, *gang("g", 2, policy(4, 1, hard(1)), minimum=4))
    assert racks_of(world.schedule(), 4) == {0: {0}}


def test_the_minimum_of_sub_groups_counts_although_enough_pods_fit() -> None:
    """Twelve pods fit, but only one rack takes a sub-group of four."""
    world = tree()
    blockers = [pod(f"o{n}", node_name=f"n{n}", scheduler="other") for n in (2, 4, 6)]
    world.upsert(*blockers, *gang("g", 3, policy(4, 2, hard(1)), minimum=4))
    assert world.schedule() == {}
    assert "sub-group x-1: no HyperNode" in world.fit_message("g")


def test_a_soft_constraint_of_a_sub_group_prefers_one_rack() -> None:
    world = tree()
    world.upsert(*gang("g", 1, policy(4, 1, soft())), *gang("h", 1, policy(5, 1, soft())))
    chosen = world.schedule()
    assert len({int(at[1:]) // 2 for name, at in chosen.items() if name[0] == "g"}) == 1
    assert len(chosen) == 9


def test_pods_in_no_sub_group_are_scheduled_one_by_one() -> None:
    world = tree()
    one = pod("g-m-0", "g", role="m", labels={"volcano.sh/task-spec": "m"})
    world.upsert(*gang("g", 1, policy(4, 1, hard(1)), minimum=5), one)
    chosen = world.schedule()
    assert len(chosen) == 5
    del chosen["g-m-0"]
    assert len(racks_of(chosen, 4)[0]) == 1


def test_a_policy_without_keys_selects_no_pods() -> None:
    world = tree()
    keyless = msgspec.structs.replace(policy(4, 0, hard(1)), match_label_keys=())
    world.upsert(*gang("g", 2, keyless, minimum=1))
    assert len(world.schedule()) == 8


def test_a_sub_group_with_missing_pods_waits_for_them() -> None:
    world = tree()
    group, *pods = gang("g", 2, policy(2, 2), minimum=3)
    world.upsert(group, *pods[:3])
    assert world.schedule() == {}
    assert world.fit_message("g") == ("1 of the 2 sub-groups of x that the group needs have 2 pods")
    world.upsert(pods[3])
    assert len(world.schedule()) == 4


def run(world: SchedulerWorld, chosen: dict[str, str]) -> None:
    for name, where in chosen.items():
        known = world.pod_objects[f"uid-{name}"]
        spec = msgspec.structs.replace(known.spec, node_name=where)
        status = msgspec.structs.replace(known.status, phase="Running")
        world.upsert(msgspec.structs.replace(known, spec=spec, status=status))


def test_a_lost_pod_of_a_sub_group_is_replaced_where_the_sub_group_runs() -> None:
    world = tree()
    world.upsert(*gang("g", 2, policy(3, 2, hard(1)), topology=hard(2)))
    chosen = world.schedule()
    run(world, chosen)
    lost = next(name for name in chosen if name.endswith("-4"))
    world.remove(world.pod_objects[f"uid-{lost}"])
    del chosen[lost]
    world.upsert(member("g", 1, 10))
    again = world.schedule()
    assert list(again) == ["g-x-10"]
    assert int(again["g-x-10"][1:]) // 2 in racks_of(chosen, 3)[1]


def test_a_label_that_changes_moves_a_pending_pod_to_another_sub_group() -> None:
    world = tree()
    world.upsert(podgroup("g", 4, sub_groups=(policy(2, 2),)))
    world.upsert(*(member("g", at, index) for index, at in enumerate((0, 0, 0, 1))))
    assert world.schedule() == {}
    world.upsert(member("g", 1, 2))
    assert len(world.schedule()) == 4


def test_best_effort_pods_count_for_their_sub_group() -> None:
    world = tree()
    pods = [member("g", index // 2, index, cpu=index % 2) for index in range(6)]
    world.upsert(podgroup("g", 2, sub_groups=(policy(2, 1),)), *pods)
    assert len(world.schedule()) == 6


def gated(gang: str, partition: int, index: int) -> Pod:
    labels = {"volcano.sh/task-spec": "x", PARTITION: str(partition)}
    return pod(
        f"{gang}-x-{index}",
        gang,
        role="x",
        labels=labels,
        gates=(QUEUE_GATE,),
        gated_only_by_queue=True,
    )


@pytest.mark.parametrize(("capability", "ungated"), [(1, 0), (2, 2), (3, 3)])
def test_queue_gates_are_removed_once_a_needed_sub_group_is_within_the_limits(
    capability: int, ungated: int
) -> None:
    world = SchedulerWorld(queue_gates=True)
    world.upsert(node("a", cpu=64), queue(capability={"cpu": capability}))
    world.upsert(podgroup("g", 1, sub_groups=(policy(2, 1),)))
    world.upsert(*(gated("g", index // 2, index) for index in range(4)))
    found = world.decision()
    assert [each.name for each in found.ungated] == [f"g-x-{n}" for n in range(ungated)]
    world.upsert(*(member("g", n // 2, n) for n in range(ungated)))
    assert len(world.schedule()) == (2 if ungated else 0), "the second sub-group is not whole"


def test_a_pod_with_a_gate_keeps_its_sub_group_waiting_and_no_other() -> None:
    world = tree()
    labels = {"volcano.sh/task-spec": "x", PARTITION: "0"}
    closed = pod("g-x-0", "g", role="x", labels=labels, gates=("x.io/a",))
    world.upsert(podgroup("g", 2, sub_groups=(policy(2, 1),)), closed)
    world.upsert(member("g", 0, 1), member("g", 1, 2), member("g", 1, 3))
    assert set(world.schedule()) == {"g-x-2", "g-x-3"}
    assert world.fit_message("g") == (
        "sub-group x-0: 1 of the 2 pods that it needs can be scheduled"
    )


def test_what_a_sub_group_has_lost_is_held_where_it_runs() -> None:
    """Nodes of other racks are free, and hold nothing for it."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(*(node(f"n{index}", cpu=2) for index in range(8)), *_tree())
    world.upsert(podgroup("g", 4, sub_groups=(policy(2, 2, hard(1)),), phase="Running"))
    for index in range(4):
        at = f"n{index}"
        world.upsert(member("g", index // 2, index, cpu=2, node_name=at, phase="Running"))
    world.run()
    world.remove(world.pod_objects["uid-g-x-3"])
    world.upsert(pod("other", node_name="n3", scheduler="other"), member("g", 1, 9, cpu=2))
    world.run()
    reservation = world.cluster.reservations.get("ns/g")
    assert reservation is not None
    names = world.cluster.node_matrix.names
    assert [names[each.node_index] for each in reservation.holds.values()] == ["n3"]


# -- evictions -------------------------------------------------------------------------------------


def full_tree(*free: int, text: str | None = None) -> EvictingWorld:
    """The nodes of `tree`, on which pods of low priority run, apart from the *free* ones."""
    world = EvictingWorld(conf(gang=False) if text is None else text)
    world.upsert(*(node(f"n{index}", cpu=2) for index in range(8)), *_tree())
    for index in range(8):
        if index not in free:
            world.gang(f"low{index}", 1, nodes=(f"n{index}",), cpu=2)
    return world


def test_pods_are_evicted_in_the_domain_of_a_sub_group() -> None:
    world = full_tree(0, 1, 2, 5)
    group, *pods = gang("g", 2, policy(2, 2, hard(1)), cpu=2)
    group = podgroup("g", 4, sub_groups=(policy(2, 2, hard(1)),), priority_class="high")
    world.upsert(group, *pods)
    world.run()
    assert world.evicted in (["low3-t-0"], ["low4-t-0"])
    world.finish_termination()
    world.run()
    nodes = {f"g-x-{index}": world.node_of(f"g-x-{index}") for index in range(4)}
    assert sorted(map(len, racks_of(nodes, 2).values())) == [1, 1]


def test_no_pod_is_evicted_for_a_sub_group_that_no_domain_could_fit() -> None:
    world = full_tree(0, 1, 2, 5)
    group = podgroup("g", 3, sub_groups=(policy(3, 1, hard(1)),), priority_class="high")
    world.upsert(group, *(member("g", 0, index, cpu=2) for index in range(3)))
    world.run()
    assert world.evicted == []


def test_evictions_leave_a_gang_its_minimum_of_sub_groups() -> None:
    """Two sub-groups of two run, and one is needed."""
    world = EvictingWorld(conf())
    world.upsert(*(node(f"n{index}", cpu=1) for index in range(4)))
    group = podgroup("low", 1, sub_groups=(policy(2, 1),), priority_class="low", phase="Running")
    world.upsert(group)
    for index in range(4):
        at = f"n{index}"
        world.upsert(member("low", index // 2, index, node_name=at, phase="Running"))
    world.upsert(podgroup("g", 3, priority_class="high"))
    world.upsert(*(pod(f"g-y-{index}", "g") for index in range(3)))
    world.run()
    assert world.evicted == []
    world.upsert(podgroup("h", 2, priority_class="high"))
    world.upsert(*(pod(f"h-y-{index}", "h") for index in range(2)))
    world.run()
    partitions = {int(name[-1]) // 2 for name in world.evicted}
    assert len(world.evicted) == 2
    assert len(partitions) == 1


# -- properties ------------------------------------------------------------------------------------

constraints = st.sampled_from([hard(1), hard(1), hard(2), soft(), None])


@st.composite
def topologies(draw: st.DrawFn) -> list[HyperNode]:
    """Racks of some of eight nodes, and spines of some racks: nodes may be in none."""
    owner = draw(st.lists(st.integers(0, 4), min_size=8, max_size=8))
    above = draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    racks = [
        hypernode(f"rack{i}", [f"n{n}" for n, at in enumerate(owner) if at == i])
        for i in range(4)
        if i in owner
    ]
    spines = [
        hypernode(f"spine{i}", of=[f"rack{r}" for r in range(4) if above[r] == i], tier=2)
        for i in range(2)
    ]
    return [*racks, *(each for each in spines if each.spec.members)]


class History:
    """A cluster with gangs of sub-groups, in which nodes and pods are lost."""

    def __init__(self, data: st.DataObject, text: str) -> None:
        self.data = data
        self.world = EvictingWorld(text)
        self.policies: dict[str, tuple[SubGroupPolicy, NetworkTopology | None]] = {}
        self.world.upsert(queue(), *(node(f"n{index}", cpu=2) for index in range(8)))
        self.world.upsert(*data.draw(topologies()))

    def step(self, index: int) -> None:
        world, data = self.world, self.data
        match data.draw(st.integers(0, 6)):
            case 0 if world.pod_objects:
                lost = data.draw(st.sampled_from([*world.pod_objects.values()]))
                world.remove(lost)
                if data.draw(st.booleans()) and PARTITION in lost.metadata.labels:
                    partition = int(lost.metadata.labels[PARTITION])
                    group = lost.metadata.name.partition("-")[0]
                    world.upsert(member(group, partition, 100 + index))
            case 1:
                world.finish_termination()
            case 2:
                world.remove(node(f"n{data.draw(st.integers(0, 7))}"))
            case 3:
                world.gang(f"low{index}", 1, nodes=(f"n{data.draw(st.integers(0, 7))}",), cpu=1)
            case _:
                self._submit(f"s{index}")

    def _submit(self, name: str) -> None:
        data = self.data
        size, partitions = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
        of = policy(size, data.draw(st.integers(0, partitions)), data.draw(constraints))
        topology = data.draw(constraints)
        self.policies[name] = (of, topology)
        group = podgroup(
            name,
            data.draw(st.integers(0, size * partitions)),
            topology=topology,
            sub_groups=(of,),
            priority_class=data.draw(st.sampled_from(["low", "high"])),
        )
        cpus = [data.draw(st.sampled_from([0, 1, 1, 2])) for _ in range(2)]
        pods = [
            member(name, index // size, index, cpu=cpus[index % 2])
            for index in range(size * partitions)
        ]
        self.world.upsert(group, *pods)

    def check(self, chosen: set[str]) -> None:
        """Check all gangs of which nodes were *chosen* for pods."""
        table = self.world.cluster.domains.table()
        for name, (of, topology) in self.policies.items():
            own = {uid for uid in chosen if uid.startswith(f"uid-{name}-")}
            if not own:
                continue
            counts, nodes = self.bound(name)
            whole = sum(count >= of.sub_group_size for count in counts.values())
            assert whole >= of.min_sub_groups, (name, counts)
            for uid in own:
                partition = self.world.pod_objects[uid].metadata.labels[PARTITION]
                assert counts[partition] >= of.sub_group_size, (name, partition, counts)
                self.check_domain(of.network_topology, nodes[partition], table.domains)
            self.check_domain(topology, set().union(*nodes.values()), table.domains)

    def check_domain(
        self, topology: NetworkTopology | None, nodes: set[str], domains: object
    ) -> None:
        is_known = self.world.cluster.domains.table().is_known
        if topology is None or topology.mode != "hard" or not is_known:
            return
        tier = topology.highest_tier_allowed or 0
        assert any(nodes <= each.nodes for each in domains if each.tier <= tier), nodes  # type: ignore[attr-defined]

    def bound(self, name: str) -> tuple[dict[str, int], dict[str, set[str]]]:
        """By partition: how many pods count, and where they are."""
        counts: dict[str, int] = {}
        nodes: dict[str, set[str]] = {}
        for uid, each in self.world.pod_objects.items():
            if not uid.startswith(f"uid-{name}-") or not each.spec.node_name:
                continue
            if each.metadata.deletion_timestamp:
                continue
            partition = each.metadata.labels[PARTITION]
            counts[partition] = counts.get(partition, 0) + 1
            nodes.setdefault(partition, set()).add(each.spec.node_name)
        return counts, nodes


def test_a_sub_group_whose_pods_are_being_created_is_not_reported_at_once() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=9), *gang("g", 2, policy(2, 1), minimum=2)[:-1])
    decision = world.decision(now=0.0)
    assert {each.name for each in decision.placements} == {"g-x-0", "g-x-1"}
    assert [each.pod_conditions for each in decision.reports] == [()]
    world.cluster.recheck("ns/g")
    (report,) = world.decision(now=20.0).reports
    assert [each.name for each in report.pod_conditions] == ["g-x-2"]


@pytest.mark.parametrize("backfilling", [False, True])
@MODERATE
@given(data=st.data())
def test_no_sub_group_is_split_and_the_minimum_is_kept_whatever_is_lost(
    backfilling: bool, data: st.DataObject
) -> None:
    """INV-TP-2."""
    text = conf(gang=data.draw(st.booleans()))
    history = History(data, text.replace("tiers:", BACKFILLING) if backfilling else text)
    for index in range(data.draw(st.integers(2, 8))):
        for _ in range(data.draw(st.integers(1, 3))):
            history.step(10 * index + _)
        world = history.world
        decision = world.run(time=world.time + data.draw(st.sampled_from([1.0, 400.0])))
        history.check({each.uid for each in decision.placements})
