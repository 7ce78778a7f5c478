"""Properties of preemption and reclaim over random clusters, and after a crash at any write."""

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.preemption import EvictingWorld, conf, node, share

from batholith.scheduler.framework.decision import Decision

PRIORITIES = {"low": 1, "mid": 10, "high": 100}


@dataclass(frozen=True)
class RunningGang:
    """A gang that runs: the node of each pod, its minimum, its priority, its queue."""

    name: str
    nodes: tuple[int, ...]
    minimum: int
    priority: str
    queue: str


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal pods, running gangs, and one gang that waits."""

    sizes: tuple[int, ...]
    gangs: tuple[RunningGang, ...]
    count: int
    priority: str
    request: int


@st.composite
def clusters(draw: st.DrawFn, *, queues: tuple[str, ...] = ("default",)) -> Cluster:
    """A cluster that is mostly full."""
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    free = [index for index, size in enumerate(sizes) for _ in range(size)]
    shuffled = draw(st.permutations(free))[: draw(st.integers(0, len(free)))]
    gangs: list[RunningGang] = []
    while shuffled:
        taken = draw(st.integers(1, len(shuffled)))
        gangs.append(
            RunningGang(
                f"run{len(gangs)}",
                tuple(shuffled[:taken]),
                draw(st.integers(1, taken)),
                draw(st.sampled_from(sorted(PRIORITIES))),
                draw(st.sampled_from(queues)),
            )
        )
        shuffled = shuffled[taken:]
    return Cluster(
        sizes,
        tuple(gangs),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(sorted(PRIORITIES))),
        draw(st.integers(1, 2)),
    )


def build(
    cluster: Cluster, *, queue_name: str = "default", gang_votes: bool = False
) -> EvictingWorld:
    """The cluster in a world."""
    world = EvictingWorld(conf(gang=gang_votes))
    for index, size in enumerate(cluster.sizes):
        world.upsert(node(f"n{index}", cpu=size, memory="100Gi"))
    for gang in cluster.gangs:
        world.gang(
            gang.name,
            len(gang.nodes),
            minimum=gang.minimum,
            nodes=tuple(f"n{index}" for index in gang.nodes),
            priority=gang.priority,
            queue_name=gang.queue,
        )
    world.gang(
        "wait",
        cluster.count,
        priority=cluster.priority,
        queue_name=queue_name,
        cpu=cluster.request,
    )
    return world


def victims(cluster: Cluster, decision: Decision) -> list[tuple[RunningGang, int]]:
    """The gang and the node of each pod that is evicted."""
    by_name = {gang.name: gang for gang in cluster.gangs}
    found = []
    for eviction in decision.evictions:
        name, _, index = eviction.name.rpartition("-t-")
        found.append((by_name[name], by_name[name].nodes[int(index)]))
    return found


def fits(cluster: Cluster, evicted: Iterable[int]) -> bool:
    """Whether the waiting gang fits once pods on these nodes are deleted."""
    idle = Counter(dict(enumerate(cluster.sizes)))
    idle.subtract(index for gang in cluster.gangs for index in gang.nodes)
    idle.update(evicted)
    return sum(free // cluster.request for free in idle.values()) >= cluster.count


def breaks(cluster: Cluster, chosen: Iterable[tuple[RunningGang, int]]) -> bool:
    lost = Counter(gang.name for gang, _ in chosen)
    return any(len(g.nodes) - lost[g.name] < g.minimum for g in cluster.gangs if lost[g.name])


def cost(chosen: Iterable[tuple[RunningGang, int]]) -> list[int]:
    """The priorities of victims, the highest first: the smaller list is better."""
    return sorted((PRIORITIES[gang.priority] for gang, _ in chosen), reverse=True)


def cheapest(
    cluster: Cluster, candidates: list[tuple[RunningGang, int]], *, breaking: bool
) -> list[int] | None:
    """The lowest cost by which the gang fits, by trying all."""
    costs = [
        cost(chosen)
        for count in range(len(candidates) + 1)
        for chosen in itertools.combinations(candidates, count)
        if (breaking or not breaks(cluster, chosen))
        and fits(cluster, [index for _, index in chosen])
    ]
    return min(costs, default=None)


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_preemption_is_minimal_and_within_priority(cluster: Cluster) -> None:
    world = build(cluster)
    decision = world.decision()
    chosen = victims(cluster, decision)
    own = PRIORITIES[cluster.priority]
    candidates = [
        (gang, index)
        for gang in cluster.gangs
        if PRIORITIES[gang.priority] < own
        for index in gang.nodes
    ]
    assert all(PRIORITIES[gang.priority] < own for gang, _ in chosen)
    if len(decision.placements) == cluster.count:
        assert not chosen
        return
    gentle = cheapest(cluster, candidates, breaking=False)
    expected = gentle if gentle is not None else cheapest(cluster, candidates, breaking=True)
    event(f"victims: {expected and len(expected)}, gentle: {gentle is not None}")
    if expected is None:
        assert not chosen
    else:
        assert fits(cluster, [index for _, index in chosen])
        assert len(decision.nominations) == cluster.count
        if gentle is not None:
            assert not breaks(cluster, chosen)
            assert cost(chosen) == gentle
        else:
            assert breaks(cluster, chosen)
            assert cost(chosen) >= expected


@settings(max_examples=80, deadline=None)
@given(clusters())
def test_gangs_are_never_broken_if_the_gang_plugin_votes(cluster: Cluster) -> None:
    world = build(cluster, gang_votes=True)
    assert not breaks(cluster, victims(cluster, world.decision()))


@settings(max_examples=80, deadline=None)
@given(clusters(queues=("one", "two", "fixed")), st.integers(0, 3))
def test_reclaim_respects_guarantees_and_queues(cluster: Cluster, guarantee: int) -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(share("one", guarantee=guarantee), share("two"), share("fixed", reclaimable=False))
    built = build(cluster, queue_name="two")
    for key, each in built.pod_objects.items():
        world.pod_objects[key] = each
    for index, size in enumerate(cluster.sizes):
        world.upsert(node(f"n{index}", cpu=size, memory="100Gi"))
    for gang in built.cluster.gangs.values():
        assert gang.podgroup is not None
        world.upsert(gang.podgroup)
    for each in built.pod_objects.values():
        world.cluster.update_pod(None, each)
    decision = world.decision()
    chosen = victims(cluster, decision)
    reclaimed = [(gang, index) for gang, index in chosen if gang.queue != "two"]
    assert all(gang.queue != "fixed" for gang, _ in reclaimed)
    left = sum(len(gang.nodes) for gang in cluster.gangs if gang.queue == "one")
    lost = sum(gang.queue == "one" for gang, _ in reclaimed)
    assert not lost or left - lost >= guarantee
    if chosen:
        assert fits(cluster, [index for _, index in chosen])


def writes(world: EvictingWorld, decision: Decision) -> list[tuple[str, str, str]]:
    """The writes of a decision, in the order in which they are sent."""
    return [
        *(("nominate", each.name, each.node) for each in decision.nominations),
        *(("evict", each.name, "") for each in decision.evictions),
        *(("bind", each.name, each.node) for each in decision.placements),
    ]


def carry_out(world: EvictingWorld, write: tuple[str, str, str]) -> None:
    kind, name, target = write
    match kind:
        case "nominate":
            world.nominated_on(name, target)
        case "evict":
            world.evicted.append(name)
            world.terminating(name)
        case "bind":
            world.started(name, target)


def restarted(world: EvictingWorld) -> EvictingWorld:
    """A new scheduler that sees the objects that are stored."""
    new = EvictingWorld(conf(gang=False))
    new.evicted = world.evicted
    new.upsert(*(node(f"n{index}", cpu=2) for index in range(3)))
    new.upsert(*(gang.podgroup for gang in world.cluster.gangs.values() if gang.podgroup))
    new.upsert(*world.pod_objects.values())
    new.time = world.time
    return new


def crash_world() -> EvictingWorld:
    """Three nodes full of low pods, a high gang of three, and a low one that wants any node."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(*(node(f"n{index}", cpu=2) for index in range(3)))
    world.gang("low", 6, minimum=1, nodes=("n0", "n1", "n2"))
    world.gang("high", 3, priority="high")
    world.gang("greedy", 2, minimum=1, priority="low")
    return world


@pytest.mark.parametrize("crash", range(10))
def test_restart_after_a_crash_between_any_two_writes(crash: int) -> None:
    """After kill -9 at any write a restart continues: no victim in vain, no stolen resources."""
    world, left = crash_world(), crash
    for _ in range(12):
        for write in writes(world, world.decision()):
            if left == 0:
                break
            carry_out(world, write)
            left -= 1
        if left == 0:
            left = -1
            world = restarted(world)
        else:
            world.finish_termination()
    assert left < 0 or crash >= 9
    assert len(world.evicted) == 3
    assert all(world.node_of(f"high-t-{index}") for index in range(3))
    assert not any(world.node_of(f"greedy-t-{index}") for index in range(2))
