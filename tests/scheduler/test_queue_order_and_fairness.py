"""Admission to queues, order of gangs and queues, and queue limits."""

import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.meta import ObjectMeta
from batholith.scheduler import conf
from batholith.scheduler.state.core_types import PriorityClass


def phase(world: SchedulerWorld, name: str) -> str:
    return world.cluster.gangs[f"ns/{name}"].phase


def test_new_podgroup_is_admitted_before_it_has_pods() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 3, phase="", resources={"cpu": 3, "count/pods": 3}))
    world.schedule()
    assert phase(world, "g") == "Inqueue"


def test_podgroup_that_needs_more_than_is_idle_is_rejected_with_the_amounts() -> None:
    world = SchedulerWorld()
    world.upsert(*(node(f"n{i}", cpu=32) for i in range(4)))
    world.upsert(podgroup("g", 3, phase="", resources={"cpu": 180, "memory": "192Mi", "pods": 3}))
    world.schedule()
    assert phase(world, "g") == "Pending"
    message = (
        "resource in cluster is overused: insufficient cpu "
        "(requested 180, free 153.6, overcommit factor 1.2)"
    )
    assert world.fit_message("g") == message


def test_rejected_podgroup_does_not_block_a_smaller_one() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("big", 1, phase="", resources={"cpu": 100}))
    world.upsert(podgroup("small", 1, phase="", resources={"cpu": 1}))
    world.schedule()
    assert (phase(world, "big"), phase(world, "small")) == ("Pending", "Inqueue")


def test_podgroups_are_admitted_up_to_the_overcommit_factor() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=10))
    world.upsert(*(podgroup(f"g{i}", 1, phase="Pending", resources={"cpu": 5}) for i in range(4)))
    world.schedule()
    assert [phase(world, f"g{i}") for i in range(4)] == ["Inqueue", "Inqueue", "Pending", "Pending"]


def test_podgroup_is_admitted_when_resources_are_freed() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), pod("x", node_name="a", cpu=8, scheduler="other", phase="Running"))
    world.upsert(podgroup("g", 1, phase="", resources={"cpu": 4}))
    world.schedule()
    assert phase(world, "g") == "Pending"
    world.remove(pod("x", node_name="a", cpu=8, scheduler="other", phase="Running"))
    world.schedule()
    assert phase(world, "g") == "Inqueue"


@pytest.mark.parametrize("state", ["Closed", "Closing", "Unknown", ""])
def test_enqueue_admits_no_podgroup_to_a_queue_that_is_not_open(state: str) -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("q", state=state), podgroup("g", 1, phase="", queue="q"))
    world.upsert(pod("g-0", "g"))
    assert world.schedule() == {}
    assert phase(world, "g") == "Pending"
    assert world.fit_message("g").startswith('queue "q" takes no jobs')
    world.upsert(queue("q"))
    assert world.schedule() == {"g-0": "a"}


WITHOUT_ENQUEUE = conf.DEFAULT.replace("enqueue, ", "")


def test_allocate_admits_podgroups_if_enqueue_is_not_configured() -> None:
    """As in Volcano, no plugin is asked then: enqueue would reject this PodGroup."""
    world = SchedulerWorld(WITHOUT_ENQUEUE)
    world.upsert(node("a"), podgroup("g", 1, phase="", resources={"cpu": 180}))
    world.schedule()
    assert phase(world, "g") == "Inqueue"
    world.upsert(pod("g-0", "g"))
    assert world.schedule() == {"g-0": "a"}


@pytest.mark.parametrize("state", ["Closed", "Closing", "Unknown", ""])
def test_allocate_admits_no_podgroup_to_a_queue_that_is_not_open(state: str) -> None:
    world = SchedulerWorld(WITHOUT_ENQUEUE)
    world.upsert(node("a"), queue(state=state), podgroup("g", 1, phase=""), pod("g-0", "g"))
    assert world.schedule() == {}
    assert phase(world, "g") == "Pending" and "takes no jobs" in world.fit_message("g")
    world.upsert(queue())
    assert world.schedule() == {"g-0": "a"}


def test_a_gang_that_waits_for_nodes_is_told_that_its_queue_has_closed() -> None:
    world = SchedulerWorld()
    world.upsert(node("n", cpu=1), queue("q"), podgroup("g", 2, queue="q"))
    world.upsert(pod("g-0", "g"), pod("g-1", "g"))
    world.decision()
    assert "takes no jobs" not in world.fit_message("g")
    world.upsert(queue("q", state="Closed"))
    (report,) = world.decision().reports
    assert report.key == "ns/g"
    assert "takes no jobs" in world.fit_message("g")


def test_podgroup_of_a_queue_that_does_not_exist_is_rejected() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1, phase="", queue="none"), pod("g-0", "g"))
    assert world.schedule() == {}
    diagnosis = world.cluster.gangs["ns/g"].diagnosis
    assert diagnosis is not None
    assert (diagnosis.reason, diagnosis.message) == (
        "QueueNotFound",
        'queue "none" does not exist',
    )
    world.upsert(queue("none"))
    assert world.schedule() == {"g-0": "a"}


def test_queue_admits_no_more_than_its_capability() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("s", capability={"cpu": 1}))
    for name in ("one", "two"):
        world.upsert(podgroup(name, 1, phase="", queue="s", resources={"cpu": "600m"}))
    world.schedule()
    assert (phase(world, "one"), phase(world, "two")) == ("Inqueue", "Pending")
    message = "queue resource quota insufficient: insufficient cpu (requested 600m, free 400m of 1)"
    assert world.fit_message("two") == message


def test_pods_beyond_the_capability_are_not_placed_on_idle_nodes() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("s", capability={"cpu": 2}), podgroup("g", 1, queue="s"))
    world.upsert(*(pod(f"g-t-{i}", "g") for i in range(4)))
    assert set(world.schedule()) == {"g-t-0", "g-t-1"}
    assert world.fit_message("g").startswith("queue resource quota insufficient")


def test_higher_priority_is_before_older_podgroups() -> None:
    world = SchedulerWorld()
    gold = PriorityClass(metadata=ObjectMeta(name="gold"), value=1000)
    world.upsert(node("a"), podgroup("old", 1, created="2025-01-01T00:00:00Z"))
    world.upsert(podgroup("new", 1, priority_class="gold"))
    world.cluster.update_priority_class(None, gold)
    world.upsert(pod("old-0", "old", cpu=8), pod("new-0", "new", cpu=8))
    assert set(world.schedule()) == {"new-0"}


def test_podgroup_without_a_priority_class_has_the_global_default() -> None:
    world = SchedulerWorld()
    usual = PriorityClass(metadata=ObjectMeta(name="usual"), value=7, global_default=True)
    world.upsert(podgroup("g", 1))
    world.cluster.update_priority_class(None, usual)
    assert world.cluster.gangs["ns/g"].priority == 7
    world.cluster.update_priority_class(usual, None)
    assert world.cluster.gangs["ns/g"].priority == 0


def test_pods_of_higher_priority_in_a_gang_are_first() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=1), podgroup("g", 1))
    world.upsert(pod("g-t-0", "g"), pod("g-t-1", "g", priority=100))
    assert world.schedule() == {"g-t-1": "a"}


def test_gang_that_is_not_ready_is_before_further_pods_of_a_ready_one() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a", cpu=3), podgroup("old", 1, created="2025-01-01T00:00:00Z"), podgroup("new", 1)
    )
    world.upsert(*(pod(f"old-{i}", "old") for i in range(3)), pod("new-0", "new"))
    assert set(world.schedule()) == {"old-0", "old-1", "new-0"}


def test_cluster_is_divided_among_queues_by_weight() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=9), queue("one", weight=1), queue("two", weight=2))
    for name in ("one", "two"):
        world.upsert(podgroup(name, 1, queue=name), *(pod(f"{name}-t-{i}", name) for i in range(9)))
    nodes = world.schedule()
    assert sum(name.startswith("one") for name in nodes) == 3
    assert sum(name.startswith("two") for name in nodes) == 6


@pytest.mark.parametrize("pods", [4, 110])
def test_gang_of_an_overused_queue_is_rejected_with_the_amounts(pods: int) -> None:
    """With 4 pods per node the queue is overused, else the gang exceeds what it deserves."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=4, pods=pods), queue("one"), queue("two"))
    world.upsert(podgroup("big", 5, queue="two"), *(pod(f"big-t-{i}", "big") for i in range(5)))
    for name in ("one", "more"):
        world.upsert(
            podgroup(name, 2, queue="one"), *(pod(f"{name}-t-{i}", name) for i in range(2))
        )
    assert len(world.schedule()) == 2
    messages = {world.fit_message(name) for name in ("one", "more")}
    insufficient = "queue resource quota insufficient: insufficient cpu (requested 1, free 0 of 2)"
    assert messages == {"", insufficient}


def test_queue_of_higher_priority_is_first() -> None:
    world = SchedulerWorld(
        'actions: "allocate"\ntiers:\n- plugins: [{name: gang}, {name: proportion}]'
    )
    world.upsert(node("a", cpu=2, pods=1), queue("b", priority=5), queue("a"))
    for name in ("a", "b"):
        world.upsert(podgroup(name, 1, queue=name), pod(f"{name}-0", name))
    assert set(world.schedule()) == {"b-0"}
