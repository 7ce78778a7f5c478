"""Pods with scheduling gates: those that others lift, and the one that goes with the queue."""

from support.scheduler import World, group, node, pod, queue

from batholith.model.names import QUEUE_GATE
from batholith.scheduler.framework.session import Decision
from batholith.scheduler.state.core_types import Pod
from batholith.scheduler.writers.podgroup_status import build_report

MINE = (QUEUE_GATE,)


def gated(name: str, group: str = "g", *, gates: tuple[str, ...] = MINE, cpu: int = 1) -> Pod:
    """A pod of *group* that its queue is to let in."""
    return pod(name, group, gates=gates, vetted=True, cpu=cpu)


def let_in(decision: Decision) -> list[str]:
    return [task.name for task in decision.ungated]


def limited(cpu: int) -> World:
    """A large node, and a queue that may have *cpu* of it."""
    world = World(queue_gates=True)
    world.add(node("a", cpu=64), queue(capability={"cpu": cpu}))
    return world


def test_a_gang_is_told_by_whose_gates_it_is_held_back() -> None:
    world = World()
    world.add(node("a"), group("g", 3), pod("g-0", "g"))
    world.add(pod("g-1", "g", gates=("x.io/b", "x.io/a")), pod("g-2", "g", gates=("x.io/a",)))
    assert world.decide() == {}
    told = "g-1 and 1 more: held back by the scheduling gates x.io/a, x.io/b"
    assert world.message("g") == told
    gang = world.cluster.gangs["ns/g"]
    first = build_report(gang, now=0.0)
    assert not first.status.conditions, "whoever lifts them may only be about to"
    said = build_report(gang, now=9.0)
    assert [each.reason for each in said.status.conditions] == ["SchedulingGated"]
    assert said.status.conditions[0].message == f"3/3 tasks in gang unschedulable: {told}"
    assert [note.name for note in said.pod_conditions] == ["g-0"], (
        "a gated pod has a condition of its own"
    )
    world.add(pod("g-1", "g"), pod("g-2", "g"))
    assert set(world.decide()) == {"g-0", "g-1", "g-2"}
    assert gang.diagnosis is None


def test_a_role_that_is_held_back_holds_back_the_gang() -> None:
    world = World()
    world.add(node("a"), group("g", 2, roles={"ps": 1, "worker": 1}))
    world.add(*(pod(f"g-worker-{i}", "g", role="worker") for i in range(2)))
    world.add(pod("g-ps-0", "g", role="ps", gates=("x.io/a",)))
    assert world.decide() == {}
    assert world.message("g") == "g-ps-0: held back by the scheduling gate x.io/a"


def test_pods_beyond_the_minimum_may_be_held_back() -> None:
    world = World()
    world.add(node("a"), group("g", 1), pod("g-0", "g"), pod("g-1", "g", gates=("x.io/a",)))
    assert set(world.decide()) == {"g-0"}
    assert world.cluster.gangs["ns/g"].diagnosis is None


def test_the_gate_of_the_queue_goes_when_the_queue_has_room() -> None:
    world = limited(cpu=2)
    world.add(group("g", 2), gated("g-0"), gated("g-1"))
    decision = world.decision()
    assert (let_in(decision), decision.placements) == (["g-0", "g-1"], [])
    assert let_in(world.decision()) == [], "once is enough"
    world.add(pod("g-0", "g", vetted=True))
    assert world.decide() == {}, "the other one's gate is there still"
    assert world.cluster.gangs["ns/g"].diagnosis is None
    world.add(pod("g-1", "g", vetted=True))
    assert set(world.decide()) == {"g-0", "g-1"}


def test_a_gang_is_let_in_whole_or_is_told_why_not() -> None:
    world = limited(cpu=2)
    world.add(group("g", 3), *(gated(f"g-{i}") for i in range(3)))
    assert let_in(world.decision()) == []
    assert world.message("g").startswith("queue resource quota insufficient: insufficient cpu")
    world.add(queue(capability={"cpu": 3}))
    assert let_in(world.decision()) == ["g-0", "g-1", "g-2"]


def test_a_gang_that_others_hold_back_is_not_let_in_and_says_who_does() -> None:
    world = limited(cpu=2)
    world.add(group("g", 2), gated("g-0"))
    world.decide()
    assert world.message("g") == "1 of the 2 pods that the group needs exist"
    world.add(pod("g-1", "g", gates=("x.io/a",)))
    assert let_in(world.decision()) == []
    assert world.message("g") == "g-1: held back by the scheduling gate x.io/a"
    world.add(pod("g-1", "g"))
    assert let_in(world.decision()) == ["g-0"]


def test_who_has_been_let_in_counts_until_it_is_placed() -> None:
    world = limited(cpu=2)
    world.add(group("g", 1), gated("g-0"), gated("g-1"), gated("g-2"))
    world.add(group("h", 1, created="2026-02-01T00:00:00Z"), gated("h-0", "h"))
    assert let_in(world.decision()) == ["g-0", "g-1"]
    world.add(pod("g-0", "g", vetted=True), pod("g-1", "g", vetted=True))
    decision = world.decision()
    assert (let_in(decision), len(decision.placements)) == ([], 2)
    for name in ("g-0", "g-1"):
        world.add(pod(name, "g", vetted=True, on="a", phase="Succeeded"))
    assert let_in(world.decision()) == ["h-0", "g-2"], "gangs that do not run come first"


def test_other_gates_keep_the_queue_from_letting_a_pod_in() -> None:
    world = limited(cpu=2)
    world.add(group("g", 1), gated("g-0", gates=("x.io/a", *MINE)))
    assert let_in(world.decision()) == []
    assert "x.io/a" in world.message("g")
    world.add(gated("g-0"))
    assert let_in(world.decision()) == ["g-0"]


def test_a_pod_that_asks_for_nothing_is_let_in_whatever_the_queue_holds() -> None:
    world = limited(cpu=1)
    world.add(group("g", 1), gated("g-0"), group("h", 1), gated("h-0", "h", cpu=0))
    assert sorted(let_in(world.decision())) == ["g-0", "h-0"]
    world.add(pod("h-0", "h", vetted=True, cpu=0))
    assert world.decide() == {"h-0": "a"}


def test_without_the_feature_nobody_lifts_the_gate_and_the_gang_says_so() -> None:
    world = World()
    world.add(node("a"), group("g", 1), gated("g-0"))
    assert let_in(world.decision()) == []
    assert world.message("g") == f"g-0: held back by the scheduling gate {QUEUE_GATE}"


def test_gated_pods_of_others_do_not_keep_room_and_those_at_the_queue_do() -> None:
    """What an admitted gang still needs is kept for it, unless nobody knows when it may start."""
    for gates, kept in ((("x.io/a",), 0), (MINE, 2000)):
        world = World()
        world.add(node("a"), group("g", 2, resources={"cpu": 2}))
        world.add(*(pod(f"g-{i}", "g", gates=gates) for i in range(2)))
        world.decide()
        assert world.cluster.queues["default"].reserved.get("cpu", 0) == kept
