"""Many nodes of a large gang are lost at once."""

from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.topologies import ALLOCATE, hard, hypernode

SPINE = [f"n{index}" for index in range(510)]
LOST = 8


def test_eight_of_five_hundred_nodes_are_replaced_in_one_decision() -> None:
    """By spare nodes of the same domain, though a waiting gang of a higher priority fits nowhere
    else, and nodes of another domain are free."""
    world = SchedulerWorld(ALLOCATE)
    world.upsert(*(node(name, cpu=1) for name in [*SPINE, *(f"m{i}" for i in range(20))]))
    world.upsert(
        hypernode("spine0", SPINE, tier=2),
        hypernode("spine1", [f"m{i}" for i in range(20)], tier=2),
    )
    world.upsert(podgroup("g", 500, topology=hard(2), phase="Running"))
    where = {f"g-x-{index}": SPINE[index] for index in range(500)}
    for name, at in where.items():
        world.upsert(pod(name, "g", node_name=at, phase="Running"))
    assert world.schedule() == {}
    lost = [f"g-x-{60 * index}" for index in range(LOST)]
    for name in lost:
        world.remove(world.pod_objects[f"uid-{name}"])
        world.remove(node(where[name]))
    world.upsert(podgroup("other", 6), *(pod(f"other-x-{index}", "other") for index in range(6)))
    world.upsert(*(pod(f"{name}-again", "g") for name in lost))
    decision = world.decision()
    chosen = {each.name: each.node for each in decision.placements}
    replaced = {name: at for name, at in chosen.items() if name.startswith("g-")}
    assert len(set(replaced.values())) == LOST
    assert set(replaced.values()) <= set(SPINE[500:])
    assert decision.scheduled == 2, "one statement for all eight, and one for the other gang"
