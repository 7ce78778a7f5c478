"""The actions preempt and reclaim: who is evicted, for whom, and who gets the resources."""

from typing import Any

import pytest
from support.preemption import EvictingWorld, conf, member, node, podgroup, share
from support.scheduler import pod
from support.scheduler_queues import queue as limited_queue

from batholith.model.meta import LabelSelector
from batholith.scheduler.state.core_types import (
    Affinity,
    ContainerPort,
    Node,
    PodAffinity,
    PodAffinityTerm,
)

BACKOFF = """
configurations:
- name: allocate
  arguments:
    eviction-backoff: 10m
tiers:"""


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


def apart_from(app: str) -> Affinity:
    """Pods keep apart from those with a label, on the same node."""
    term = PodAffinityTerm(
        topology_key="kubernetes.io/hostname",
        label_selector=LabelSelector(match_labels={"app": app}),
    )
    return Affinity(
        pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
    )


def host(name: str, cpu: int) -> Node:
    return node(name, cpu=cpu, labels={"kubernetes.io/hostname": name})


@pytest.mark.parametrize("others", [25, 60])
def test_only_the_pod_that_excludes_the_new_one_is_evicted(others: int) -> None:
    """The node has enough for both; the other pods have a lower priority and started later."""
    world = EvictingWorld()
    world.upsert(host("a", cpu=80))
    world.gang("low", others, minimum=0, nodes=("a",), started="2026-01-02T00:00:00Z")
    world.gang("other", 1, minimum=0, nodes=("a",), priority="mid", labels={"app": "x"})
    world.gang("high", 1, priority="high", affinity=apart_from("x"))
    world.run()
    assert world.evicted == ["other-t-0"]
    world.finish_termination()
    world.run()
    assert world.node_of("high-t-0") == "a"


def test_one_victim_suffices_for_the_limit_of_the_queue_and_the_node() -> None:
    world = EvictingWorld()
    world.upsert(limited_queue("q1", capability={"cpu": 6}), node("n1", cpu=3), node("n2", cpu=4))
    world.gang("small", 1, minimum=0, nodes=("n1",), queue_name="q1", cpu=1)
    world.gang("large", 1, minimum=0, nodes=("n2",), queue_name="q1", cpu=4)
    world.gang("high", 1, priority="high", queue_name="q1", cpu=3)
    world.run()
    assert world.evicted == ["large-t-0"]
    assert world.nominated == {"high-t-0": "n2"}


def test_two_pods_of_low_priority_are_evicted_rather_than_one_of_middle_priority() -> None:
    world = EvictingWorld()
    world.upsert(node("a", cpu=4), node("b", cpu=4))
    world.gang("mid", 1, minimum=0, nodes=("a",), priority="mid", cpu=4)
    world.gang("low", 2, minimum=0, nodes=("b",), cpu=2)
    world.gang("high", 1, priority="high", cpu=4)
    world.run()
    assert sorted(world.evicted) == ["low-t-0", "low-t-1"]


def test_pods_of_low_priority_stay_if_one_of_middle_priority_has_to_go_and_suffices() -> None:
    world = EvictingWorld()
    world.upsert(node("a", cpu=6))
    world.gang("mid", 1, minimum=0, nodes=("a",), priority="mid", cpu=4)
    world.gang("low", 2, minimum=0, nodes=("a",), cpu=1)
    world.gang("high", 1, priority="high", cpu=4)
    world.run()
    assert world.evicted == ["mid-t-0"]


@pytest.mark.parametrize(("own", "expected"), [(99, 1), (100, 0), (1000, 0)])
def test_a_pod_whose_own_priority_is_not_lower_stays(own: int, expected: int) -> None:
    """Its gang has a lower priority than it."""
    world = EvictingWorld()
    world.upsert(node("a", cpu=2), podgroup("low", 0, phase="Running", priority_class="low"))
    for index in range(2):
        world.upsert(member(f"low-t-{index}", "low", "a", priority=own))
    world.upsert(podgroup("high", 1, priority_class="high"))
    world.upsert(member("high-t-0", "high", priority=100))
    world.run()
    assert len(world.evicted) == expected


NO_ENQUEUE = """
actions: "allocate, backfill, preempt"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: predicates
  - name: proportion
  - name: nodeorder
"""


@pytest.mark.parametrize("repelled", ["waiting", "running"])
def test_a_gang_gets_the_nodes_from_which_pods_were_evicted_although_they_are_replaced(
    repelled: str,
) -> None:
    """The controller of the evicted pods creates others at once, which fit there as well."""
    waiting: dict[str, Any] = {"affinity": apart_from("blocker")} if repelled == "waiting" else {}
    blocking: dict[str, Any] = {"affinity": apart_from("g")} if repelled == "running" else {}
    labels = {"app": "blocker"}
    world = EvictingWorld(NO_ENQUEUE)
    nodes = tuple(f"n{index}" for index in range(4))
    world.upsert(*(host(name, cpu=8) for name in nodes))
    world.gang("blocker", 4, minimum=1, nodes=nodes, priority="mid", labels=labels, **blocking)
    world.gang("bystander", 4, minimum=1, nodes=nodes)
    world.gang("g", 3, priority="high", phase="Pending", cpu=5, labels={"app": "g"}, **waiting)
    for second in range(1, 20):
        world.run(time=float(second))
        ended = [each for each in world.pod_objects.values() if each.metadata.deletion_timestamp]
        for each in ended[:1]:  # one after the other
            world.remove(each)
            world.upsert(member(f"blocker-new-{second}", "blocker", labels=labels, **blocking))
    assert sorted(world.evicted) == ["blocker-t-0", "blocker-t-1", "blocker-t-2"]
    assert len({world.node_of(f"g-t-{index}") for index in range(3)} - {""}) == 3
    world.validate()


def test_what_is_held_keeps_pods_away_whose_terms_have_come_into_use_later() -> None:
    """No pod has the term when the resources are held."""
    world = EvictingWorld(NO_ENQUEUE)
    world.upsert(host("a", cpu=16), podgroup("new", 1, priority_class="mid"))
    world.gang("old", 1, nodes=("a",), cpu=12)
    world.gang("g", 1, priority="high", cpu=5, labels={"app": "g"})
    world.run(time=1.0)
    world.upsert(member("new-t-0", "new", affinity=apart_from("g")))
    world.run(time=2.0)
    assert world.node_of("new-t-0") == ""
    world.finish_termination()
    world.run(time=3.0)
    assert (world.node_of("g-t-0"), world.node_of("new-t-0")) == ("a", "")


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


def test_best_effort_gang_preempts_best_effort_pods_alone() -> None:
    """The node takes no more pods, but has much of its CPU left."""
    world = EvictingWorld()
    world.upsert(node("a", cpu=16, pods=4))
    world.gang("requesting", 2, minimum=0, nodes=("a",))
    world.gang("low", 2, minimum=0, nodes=("a",), cpu=0, memory=0)
    world.gang("high", 2, priority="high", cpu=0, memory=0)
    world.gang("larger", 3, priority="high", cpu=0, memory=0)
    world.run()
    assert sorted(world.evicted) == ["low-t-0", "low-t-1"]
    assert world.nominated == {"high-t-0": "a", "high-t-1": "a"}
    world.gang("later", 2, priority="mid", cpu=0, memory=0)
    world.run()
    world.finish_termination()
    world.run()
    assert {world.node_of(f"high-t-{index}") for index in range(2)} == {"a"}
    assert world.node_of("later-t-0") == ""
    world.validate()


def test_the_limit_that_evictions_free_is_for_the_gang_while_it_waits() -> None:
    """Another gang of the queue fits a node, and within what the limit leaves until then."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(limited_queue("q1", capability={"cpu": 4}), node("n1", cpu=4), node("n2", cpu=4))
    world.upsert(pod("other", scheduler="other", node_name="n2", phase="Running", cpu=3))
    world.gang("low", 2, minimum=1, nodes=("n1",), queue_name="q1", cpu=2, grace=10)
    world.gang("high", 1, priority="high", queue_name="q1", cpu=2)
    world.run(time=1.0)
    assert len(world.evicted) == 1
    world.gang("small", 1, priority="high", queue_name="q1", cpu=1, policy="Never")
    world.run(time=2.0)
    assert world.node_of("small-t-0") == ""
    assert "queue resource quota insufficient" in world.fit_message("small")
    world.remove(world.pod_objects["uid-high-t-0"])
    world.run(time=3.0)
    assert world.node_of("small-t-0") != ""


def test_a_gang_that_lost_pods_grows_again_after_the_configured_time() -> None:
    world = EvictingWorld(conf().replace("tiers:", BACKOFF))
    world.upsert(node("a", cpu=4))
    world.gang("low", 4, minimum=1, nodes=("a",))
    world.gang("high", 1, priority="high")
    world.run(time=1.0)
    assert len(world.evicted) == 1
    world.finish_termination()
    world.run(time=2.0)
    assert world.node_of("high-t-0") == "a"
    world.upsert(node("b", cpu=4), member("low-new", "low"))
    world.gang("other", 1)
    world.run(time=600.0)
    assert (world.node_of("low-new"), world.node_of("other-t-0")) == ("", "b")
    diagnosis = world.cluster.gangs["ns/low"].diagnosis
    assert diagnosis is not None and "pods were evicted" in diagnosis.message
    world.run(time=601.0)
    assert world.node_of("low-new") == "b"


def test_a_gang_that_was_evicted_whole_starts_at_once_with_its_minimum() -> None:
    world = EvictingWorld(conf(gang=False).replace("tiers:", BACKOFF))
    world.upsert(node("a", cpu=2))
    world.gang("low", 2, nodes=("a",))
    world.gang("high", 1, priority="high")
    world.run(time=1.0)
    assert len(world.evicted) == 1
    world.terminating(next(name for name in ("low-t-0", "low-t-1") if name not in world.evicted))
    world.finish_termination()
    world.upsert(node("b", cpu=4), *(member(f"low-new-{number}", "low") for number in range(3)))
    world.run(time=2.0)
    allocated = [number for number in range(3) if world.node_of(f"low-new-{number}")]
    assert len(allocated) == 2
    world.run(time=601.0)
    assert all(world.node_of(f"low-new-{number}") for number in range(3))
