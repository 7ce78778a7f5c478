"""The actions preempt and reclaim: who is evicted, for whom, and who gets the resources."""

from support.preemption import EvictingWorld, conf, node, share

from batholith.model.meta import LabelSelector
from batholith.scheduler.state.core_types import (
    Affinity,
    ContainerPort,
    PodAffinity,
    PodAffinityTerm,
)


def test_recorded_scenario_preempt() -> None:
    """Recorded: one of four running pods is evicted, and the high pod gets its node."""
    world = EvictingWorld()
    world.upsert(*(node(f"node-{index}", cpu=32) for index in range(4)))
    nodes = tuple(f"node-{index}" for index in range(4))
    world.gang("low", 4, minimum=1, nodes=nodes, cpu=30, preemptable="true")
    world.gang("high", 1, priority="high", cpu=30)
    first = world.run()
    assert len(world.evicted) == 1
    assert world.evicted[0].startswith("low-t-")
    assert first.placements == ()
    freed = world.node_of(world.evicted[0])
    assert world.nominated == {"high-t-0": freed}
    assert world.run().evictions == ()
    world.finish_termination()
    world.run()
    assert world.node_of("high-t-0") == freed
    assert len(world.evicted) == 1


def test_recorded_scenario_reclaim() -> None:
    """Recorded: a queue that has more than its share loses one pod to another queue."""
    world = EvictingWorld()
    world.upsert(*(node(f"node-{index}", cpu=32) for index in range(4)))
    world.upsert(share("gq-one", reclaimable=True), share("gq-two", reclaimable=True))
    nodes = tuple(f"node-{index}" for index in range(4))
    world.gang("one", 4, minimum=1, nodes=nodes, queue_name="gq-one", cpu=30, preemptable="true")
    world.gang("two", 1, queue_name="gq-two", cpu=30)
    world.run()
    assert len(world.evicted) == 1
    world.finish_termination()
    world.run()
    assert world.node_of("two-t-0") == world.nominated["two-t-0"]


def test_gang_is_placed_as_a_whole_or_nothing_is_evicted() -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=2), node("b", cpu=2))
    world.gang("low", 4, minimum=1, nodes=("a", "b"))
    world.gang("high", 5, priority="high")
    world.run()
    assert world.evicted == []
    world.gang("fits", 4, priority="high")
    world.run()
    assert len(world.evicted) == 4


def test_pod_is_evicted_from_which_another_one_keeps_apart() -> None:
    """Filters by other pods are asked again after the evictions (reference quirk 28)."""
    world = EvictingWorld(conf(gang=False))
    labels = {"kubernetes.io/hostname": "a"}
    world.upsert(node("a", cpu=8, labels=labels))
    world.gang("low", 2, minimum=1, nodes=("a",), labels={"app": "db"})
    world.gang("other", 1, nodes=("a",), labels={"app": "web"})
    term = PodAffinityTerm(
        topology_key="kubernetes.io/hostname",
        label_selector=LabelSelector(match_labels={"app": "db"}),
    )
    affinity = Affinity(
        pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
    )
    world.gang("high", 1, priority="high", affinity=affinity)
    world.run()
    assert sorted(world.evicted) == ["low-t-0", "low-t-1"]
    world.finish_termination()
    world.run()
    assert world.node_of("high-t-0") == "a"


def test_pod_with_the_host_port_is_evicted() -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=8))
    world.gang("low", 1, nodes=("a",))
    world.gang("port", 1, nodes=("a",), ports=(ContainerPort(host_port=80),))
    world.gang("high", 1, priority="high", ports=(ContainerPort(host_port=80),))
    world.run()
    assert world.evicted == ["port-t-0"]
    world.finish_termination()
    world.run()
    assert world.node_of("high-t-0") == "a"
