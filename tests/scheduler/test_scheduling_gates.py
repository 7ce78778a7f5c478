"""Pods with scheduling gates: those that others lift, and the one that goes with the queue."""

from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.names import QUEUE_GATE
from batholith.scheduler.framework.session import Decision
from batholith.scheduler.state.core_types import Pod
from batholith.scheduler.writers.podgroup_status import build_report

CUSTOM_GATE = (QUEUE_GATE,)


def gated_pod(
    name: str, group: str = "g", *, gates: tuple[str, ...] = CUSTOM_GATE, cpu: int = 1
) -> Pod:
    """A pod of *group* that its queue is to let in."""
    return pod(name, group, gates=gates, gated_only_by_queue=True, cpu=cpu)


def ungated_pods(decision: Decision) -> list[str]:
    return [task.name for task in decision.ungated]


def limited_cluster(cpu: int) -> SchedulerWorld:
    """A large node, and a queue that may have *cpu* of it."""
    world = SchedulerWorld(queue_gates=True)
    world.upsert(node("a", cpu=64), queue(capability={"cpu": cpu}))
    return world


def test_a_gang_is_told_by_whose_gates_it_is_held_back() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 3), pod("g-0", "g"))
    world.upsert(pod("g-1", "g", gates=("x.io/b", "x.io/a")), pod("g-2", "g", gates=("x.io/a",)))
    assert world.schedule() == {}
    told = "g-1 and 1 more: held back by the scheduling gates x.io/a, x.io/b"
    assert world.fit_message("g") == told
    gang = world.cluster.gangs["ns/g"]
    first = build_report(gang, now=0.0)
    assert not first.status.conditions, "whoever lifts them may only be about to"
    said = build_report(gang, now=9.0)
    assert [each.reason for each in said.status.conditions] == ["SchedulingGated"]
    assert said.status.conditions[0].message == f"3/3 tasks in gang unschedulable: {told}"
    assert [note.name for note in said.pod_conditions] == ["g-0"], (
        "a gated pod has a condition of its own"
    )
    world.upsert(pod("g-1", "g"), pod("g-2", "g"))
    assert set(world.schedule()) == {"g-0", "g-1", "g-2"}
    assert gang.diagnosis is None


def test_a_role_that_is_held_back_holds_back_the_gang() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 2, roles={"ps": 1, "worker": 1}))
    world.upsert(*(pod(f"g-worker-{i}", "g", role="worker") for i in range(2)))
    world.upsert(pod("g-ps-0", "g", role="ps", gates=("x.io/a",)))
    assert world.schedule() == {}
    assert world.fit_message("g") == "g-ps-0: held back by the scheduling gate x.io/a"


def test_pods_beyond_the_minimum_may_be_held_back() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g"), pod("g-1", "g", gates=("x.io/a",)))
    assert set(world.schedule()) == {"g-0"}
    assert world.cluster.gangs["ns/g"].diagnosis is None


def test_the_gate_of_the_queue_goes_when_the_queue_has_room() -> None:
    world = limited_cluster(cpu=2)
    world.upsert(podgroup("g", 2), gated_pod("g-0"), gated_pod("g-1"))
    decision = world.decision()
    assert (ungated_pods(decision), decision.placements) == (["g-0", "g-1"], [])
    assert ungated_pods(world.decision()) == [], "once is enough"
    world.upsert(pod("g-0", "g", gated_only_by_queue=True))
    assert world.schedule() == {}, "the other one's gate is there still"
    assert world.cluster.gangs["ns/g"].diagnosis is None
    world.upsert(pod("g-1", "g", gated_only_by_queue=True))
    assert set(world.schedule()) == {"g-0", "g-1"}


def test_a_gang_is_let_in_whole_or_is_told_why_not() -> None:
    world = limited_cluster(cpu=2)
    world.upsert(podgroup("g", 3), *(gated_pod(f"g-{i}") for i in range(3)))
    assert ungated_pods(world.decision()) == []
    assert world.fit_message("g").startswith("queue resource quota insufficient: insufficient cpu")
    world.upsert(queue(capability={"cpu": 3}))
    assert ungated_pods(world.decision()) == ["g-0", "g-1", "g-2"]


def test_a_gang_that_others_hold_back_is_not_let_in_and_says_who_does() -> None:
    world = limited_cluster(cpu=2)
    world.upsert(podgroup("g", 2), gated_pod("g-0"))
    world.schedule()
    assert world.fit_message("g") == "1 of the 2 pods that the group needs exist"
    world.upsert(pod("g-1", "g", gates=("x.io/a",)))
    assert ungated_pods(world.decision()) == []
    assert world.fit_message("g") == "g-1: held back by the scheduling gate x.io/a"
    world.upsert(pod("g-1", "g"))
    assert ungated_pods(world.decision()) == ["g-0"]


def test_who_has_been_let_in_counts_until_it_is_placed() -> None:
    world = limited_cluster(cpu=2)
    world.upsert(podgroup("g", 1), gated_pod("g-0"), gated_pod("g-1"), gated_pod("g-2"))
    world.upsert(podgroup("h", 1, created="2026-02-01T00:00:00Z"), gated_pod("h-0", "h"))
    assert ungated_pods(world.decision()) == ["g-0", "g-1"]
    world.upsert(
        pod("g-0", "g", gated_only_by_queue=True), pod("g-1", "g", gated_only_by_queue=True)
    )
    decision = world.decision()
    assert (ungated_pods(decision), len(decision.placements)) == ([], 2)
    for name in ("g-0", "g-1"):
        world.upsert(pod(name, "g", gated_only_by_queue=True, node_name="a", phase="Succeeded"))
    assert ungated_pods(world.decision()) == ["h-0", "g-2"], "gangs that do not run come first"


def test_other_gates_keep_the_queue_from_letting_a_pod_in() -> None:
    world = limited_cluster(cpu=2)
    world.upsert(podgroup("g", 1), gated_pod("g-0", gates=("x.io/a", *CUSTOM_GATE)))
    assert ungated_pods(world.decision()) == []
    assert "x.io/a" in world.fit_message("g")
    world.upsert(gated_pod("g-0"))
    assert ungated_pods(world.decision()) == ["g-0"]


def test_a_pod_that_asks_for_nothing_is_let_in_whatever_the_queue_holds() -> None:
    world = limited_cluster(cpu=1)
    world.upsert(podgroup("g", 1), gated_pod("g-0"), podgroup("h", 1), gated_pod("h-0", "h", cpu=0))
    assert sorted(ungated_pods(world.decision())) == ["g-0", "h-0"]
    world.upsert(pod("h-0", "h", gated_only_by_queue=True, cpu=0))
    assert world.schedule() == {"h-0": "a"}


def test_without_the_feature_nobody_lifts_the_gate_and_the_gang_says_so() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), gated_pod("g-0"))
    assert ungated_pods(world.decision()) == []
    assert world.fit_message("g") == f"g-0: held back by the scheduling gate {QUEUE_GATE}"


def test_gated_pods_of_others_do_not_keep_room_and_those_at_the_queue_do() -> None:
    """What an admitted gang still needs is kept for it, unless nobody knows when it may start."""
    for gates, kept in ((("x.io/a",), 0), (CUSTOM_GATE, 2000)):
        world = SchedulerWorld()
        world.upsert(node("a"), podgroup("g", 2, resources={"cpu": 2}))
        world.upsert(*(pod(f"g-{i}", "g", gates=gates) for i in range(2)))
        world.schedule()
        assert world.cluster.queues["default"].reserved.get("cpu", 0) == kept
