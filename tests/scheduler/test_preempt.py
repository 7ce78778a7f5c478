"""The actions preempt and reclaim: who is evicted, for whom, and who gets the resources."""

from support.preemption import EvictingWorld, conf, node, share


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
    world.gone()
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
    world.gone()
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
