"""Limits of queues for node groups: the annotation ``volcano.sh/nodegroup-resource-limits``."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.preemption import EvictingWorld
from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.scheduler_queues import configuration, queue, submit

from batholith.model.queue import NodeGroupTerms, Queue, QueueAffinity

GROUPS = configuration("{name: gang}, {name: nodegroup}")


def affinity(*groups: str) -> QueueAffinity:
    return QueueAffinity(node_group_affinity=NodeGroupTerms(required=groups))


def limited_world(limits: str, *groups: str, cpu: int = 8) -> SchedulerWorld:
    """A node for each of *groups*, and a queue with limits for them."""
    world = SchedulerWorld(GROUPS.replace("allocate", "allocate, preempt"))
    for number, group in enumerate(groups):
        labels = {"volcano.sh/nodegroup-name": group}
        world.upsert(node(f"{group}{number}", cpu=cpu, labels=labels))
    world.upsert(limited_queue(limits, *groups))
    return world


def limited_queue(limits: str, *groups: str) -> Queue:
    annotations = {"volcano.sh/nodegroup-resource-limits": limits}
    return queue("q", affinity=affinity(*dict.fromkeys(groups)),
                 annotations=annotations)  # fmt: skip


def test_a_queue_gets_no_more_of_a_node_group_than_its_limit() -> None:
    world = limited_world('{"a": {"cpu": "3", "memory": "64Gi"}}', "a", "a", "b")
    submit(world, "g", 6, queue="q")
    nodes = list(world.schedule().values())
    assert sum(each.startswith("a") for each in nodes) == 3
    assert nodes.count("b2") == 3
    world.upsert(pod("foreign", node_name="b2", scheduler="other", cpu=5))
    submit(world, "h", 1, queue="q")
    assert world.schedule() == {}
    assert "of which the queue has reached its limit" in world.fit_message("h")


def test_the_limit_counts_running_pods_and_what_they_leave() -> None:
    world = limited_world('{"a": {"cpu": 2}}', "a")
    world.upsert(podgroup("r", 1, queue="q"))
    world.upsert(*(pod(f"r-{i}", "r", node_name="a0", phase="Running") for i in range(2)))
    submit(world, "g", 1, queue="q")
    assert world.schedule() == {}
    world.remove(world.pod_objects["uid-r-0"])
    assert world.schedule() == {"g-t-0": "a0"}


def test_limits_may_be_changed_added_and_removed() -> None:
    world = limited_world('{"a": {"cpu": 1}}', "a")
    submit(world, "g", 2, minimum=2, queue="q")
    assert world.schedule() == {}
    world.upsert(limited_queue('{"a": {"cpu": 2}}', "a"))
    assert len(world.schedule()) == 2
    submit(world, "h", 1, queue="q")
    assert world.schedule() == {}
    world.upsert(queue("q", affinity=affinity("a")))
    assert len(world.schedule()) == 1
    world.upsert(limited_queue('{"a": {"cpu": 4}}', "a"))
    submit(world, "i", 2, minimum=2, queue="q")
    assert world.schedule() == {}, "the pods from before count, too"


def test_other_queues_and_other_groups_are_not_limited() -> None:
    world = limited_world('{"a": {"cpu": 1}, "none": {"cpu": 0}}', "a", "b")
    world.upsert(queue("free", affinity=affinity("a")))
    submit(world, "g", 3, queue="free")
    submit(world, "h", 3, queue="q")
    nodes = world.schedule()
    assert {nodes[f"g-t-{i}"] for i in range(3)} == {"a0"}
    assert sorted(nodes[f"h-t-{i}"] for i in range(3)) in (["b1"] * 3, ["a0", "b1", "b1"])


@pytest.mark.parametrize(
    "limits", ["", "[]", '{"a": 1}', '{"a": {"cpu": "x"}}', '{"a": {"cpu": []}}']
)
def test_malformed_limits_reject_the_gangs_of_the_queue(limits: str) -> None:
    world = limited_world(limits, "a")
    submit(world, "g", 1, queue="q")
    assert world.schedule() == {}
    assert "nodegroup-resource-limits must be a JSON object" in world.fit_message("g")


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=8),
    limits=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
@settings(max_examples=examples(20), deadline=None)
def test_no_group_ever_exceeds_its_limit(sizes: list[int], limits: tuple[int, int]) -> None:
    world = limited_world(f'{{"a": {{"cpu": {limits[0]}}}, "b": {{"cpu": {limits[1]}}}}}', *"aabb")
    for number, size in enumerate(sizes):
        submit(world, f"g{number}", 2, minimum=2, queue="q", cpu=size)
    used = {"a": 0, "b": 0}
    for name, node_name in world.schedule().items():
        used[node_name[0]] += sizes[int(name[1 : name.index("-")])]
    assert used["a"] <= limits[0]
    assert used["b"] <= limits[1]
    fitting = [size for i, size in enumerate(sizes) if f"ns/g{i}" in world.cluster.pending_gangs]
    assert all(
        sum(
            min((limit - used[group]) // size, 2) for group, limit in zip("ab", limits, strict=True)
        )
        < 2
        for size in fitting
    )


def test_no_pods_are_evicted_for_a_limit() -> None:
    world = EvictingWorld(
        configuration(
            "{name: priority}, {name: gang}, {name: nodegroup}", actions="allocate, preempt"
        )
    )
    world.upsert(node("a0", labels={"volcano.sh/nodegroup-name": "a"}))
    world.upsert(limited_queue('{"a": {"cpu": 2}}', "a"))
    world.upsert(podgroup("r", 1, queue="q", priority_class="low"))
    for number in range(2):
        running = pod(f"r-{number}", "r", node_name="a0", phase="Running", priority=1)
        world.upsert(running)
    world.upsert(podgroup("g", 1, queue="q", priority_class="high"))
    world.upsert(pod("g-t-0", "g", priority=100))
    world.run()
    assert world.evicted == []
    assert "of which the queue has reached its limit" in world.fit_message("g")
