"""For how long a gang waits before pods are evicted for it."""

from datetime import UTC, datetime

import pytest
from support.preemption import EvictingWorld, conf, node, share

from batholith.model import times

NOW = datetime(2026, 1, 5, tzinfo=UTC).timestamp()


def at(seconds_ago: float) -> str:
    return times.format(datetime.fromtimestamp(NOW - seconds_ago, UTC))


def full_world(action: str) -> EvictingWorld:
    """A full node, with pods of which *action* evicts some for a gang that has waited for five
    minutes."""
    arguments = f"configurations: [{{name: {action}, arguments: {{eviction-delay: 5m}}}}]"
    text = conf(gang=False).replace("tiers:", f"{arguments}\ntiers:")
    world = EvictingWorld(text.replace("reclaim, preempt", action))
    world.time = NOW
    world.upsert(node("a", cpu=4), share("one", reclaimable=True), share("two", reclaimable=True))
    world.gang("low", 4, minimum=1, nodes=("a",), queue_name="one", started=at(3600))
    return world


def waiting_queue(action: str) -> str:
    return "two" if "reclaim" in action else "one"


@pytest.mark.parametrize("action", ["preempt", "gangpreempt", "reclaim", "gangreclaim"])
def test_no_pod_is_evicted_for_a_gang_that_has_not_waited_for_long_enough(action: str) -> None:
    world = full_world(action)
    queue_name = waiting_queue(action)
    world.gang("high", 1, priority="high", queue_name=queue_name, started=at(60))
    world.run()
    assert world.evicted == []
    assert world.cluster.scheduling_queue.starving.next_due() == NOW + 240
    world.run(time=NOW + 239)
    assert world.evicted == []
    world.run(time=NOW + 240)
    assert len(world.evicted) == 1
    world.finish_termination()
    world.run(time=NOW + 241)
    assert world.node_of("high-t-0") == "a"


def test_a_gang_that_fits_meanwhile_starts_without_an_eviction() -> None:
    world = full_world("preempt")
    world.gang("high", 1, priority="high", queue_name="one", started=at(0))
    world.run()
    world.remove(world.pod_objects["uid-low-t-3"])
    world.run(time=NOW + 10)
    assert world.node_of("high-t-0") == "a"
    world.run(time=NOW + 300)
    assert world.evicted == []


def test_the_first_pod_that_waits_counts() -> None:
    world = full_world("preempt")
    world.gang("high", 2, priority="high", queue_name="one", started=at(300))
    world.run()
    assert len(world.evicted) == 2


def test_each_gang_waits_for_its_own_time() -> None:
    world = full_world("preempt")
    world.gang("first", 1, priority="high", queue_name="one", started=at(200))
    world.gang("second", 1, cpu=2, priority="high", queue_name="one", started=at(100))
    world.run()
    world.run(time=NOW + 100)
    assert len(world.evicted) == 1
    world.finish_termination()
    world.run(time=NOW + 199)
    assert (world.node_of("first-t-0"), len(world.evicted)) == ("a", 1)
    world.run(time=NOW + 200)
    assert len(world.evicted) == 3
