"""Pods with scheduling gates: those of other controllers, and the queue gate."""

from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.names import QUEUE_GATE
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.state.core_types import Pod

CUSTOM_GATE = (QUEUE_GATE,)


def gated_pod(
    name: str, group: str = "g", *, gates: tuple[str, ...] = CUSTOM_GATE, cpu: int = 1
) -> Pod:
    """A pod of *group* with a queue gate."""
    return pod(name, group, gates=gates, gated_only_by_queue=True, cpu=cpu)


def ungated_pods(decision: Decision) -> list[str]:
    return [pod.name for pod in decision.ungated]


def limited_cluster(cpu: int) -> SchedulerWorld:
    """A large node, and a queue with capability *cpu*."""
    world = SchedulerWorld(queue_gates=True)
    world.upsert(node("a", cpu=64), queue(capability={"cpu": cpu}))
    return world


def test_scheduling_gates_of_members_are_reported() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 3), pod("g-0", "g"))
    world.upsert(pod("g-1", "g", gates=("x.io/b", "x.io/a")), pod("g-2", "g", gates=("x.io/a",)))
    assert world.schedule() == {}
    message = "g-1 and 1 more: held back by the scheduling gates x.io/a, x.io/b"
    assert world.fit_message("g") == message
    first = world.report("g")
    assert not first.status.conditions, "the gates may be removed within the grace period"
    report = world.report("g", now=9.0)
    assert [each.reason for each in report.status.conditions] == ["SchedulingGated"]
    assert report.status.conditions[0].message == f"3 of 3 pods cannot be scheduled: {message}"
    assert [each.name for each in report.pod_conditions] == ["g-0"], (
        "the API server sets the condition of a gated pod"
    )
    world.upsert(pod("g-1", "g"), pod("g-2", "g"))
    assert set(world.schedule()) == {"g-0", "g-1", "g-2"}
    assert world.cluster.gangs["ns/g"].diagnosis is None


def test_gates_of_a_required_role_block_the_gang() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 2, roles={"ps": 1, "worker": 1}))
    world.upsert(*(pod(f"g-worker-{i}", "g", role="worker") for i in range(2)))
    world.upsert(pod("g-ps-0", "g", role="ps", gates=("x.io/a",)))
    assert world.schedule() == {}
    assert world.fit_message("g") == "g-ps-0: held back by the scheduling gate x.io/a"


def test_gates_of_pods_beyond_the_minimum_do_not_block_the_gang() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g"), pod("g-1", "g", gates=("x.io/a",)))
    assert set(world.schedule()) == {"g-0"}
    assert world.cluster.gangs["ns/g"].diagnosis is None


def test_queue_gate_is_removed_when_the_queue_has_capacity() -> None:
    world = limited_cluster(cpu=2)
    world.upsert(podgroup("g", 2), gated_pod("g-0"), gated_pod("g-1"))
    decision = world.decision()
    assert (ungated_pods(decision), decision.placements) == (["g-0", "g-1"], ())
    assert ungated_pods(world.decision()) == [], "a gate is removed once"
    world.upsert(pod("g-0", "g", gated_only_by_queue=True))
    assert world.schedule() == {}, "the other pod still has its gate"
    assert world.cluster.gangs["ns/g"].diagnosis is None
    world.upsert(pod("g-1", "g", gated_only_by_queue=True))
    assert set(world.schedule()) == {"g-0", "g-1"}


def test_gates_of_a_gang_are_removed_for_the_minimum_or_not_at_all() -> None:
    world = limited_cluster(cpu=2)
    world.upsert(podgroup("g", 3), *(gated_pod(f"g-{i}") for i in range(3)))
    assert ungated_pods(world.decision()) == []
    assert world.fit_message("g").startswith("queue resource quota insufficient: insufficient cpu")
    world.upsert(queue(capability={"cpu": 3}))
    assert ungated_pods(world.decision()) == ["g-0", "g-1", "g-2"]


def test_queue_gates_stay_while_other_gates_block_the_gang() -> None:
    world = limited_cluster(cpu=2)
    world.upsert(podgroup("g", 2), gated_pod("g-0"))
    world.schedule()
    assert world.fit_message("g") == "1 of the 2 pods that the group needs exist"
    world.upsert(pod("g-1", "g", gates=("x.io/a",)))
    assert ungated_pods(world.decision()) == []
    assert world.fit_message("g") == "g-1: held back by the scheduling gate x.io/a"
    world.upsert(pod("g-1", "g"))
    assert ungated_pods(world.decision()) == ["g-0"]


def test_ungated_pod_counts_in_the_queue_until_it_is_placed() -> None:
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
    assert ungated_pods(world.decision()) == ["h-0", "g-2"], "gangs that are not ready are first"


def test_queue_gate_stays_while_the_pod_has_other_gates() -> None:
    world = limited_cluster(cpu=2)
    world.upsert(podgroup("g", 1), gated_pod("g-0", gates=("x.io/a", *CUSTOM_GATE)))
    assert ungated_pods(world.decision()) == []
    assert "x.io/a" in world.fit_message("g")
    world.upsert(gated_pod("g-0"))
    assert ungated_pods(world.decision()) == ["g-0"]


def test_queue_gate_of_a_best_effort_pod_is_removed_whatever_is_allocated() -> None:
    world = limited_cluster(cpu=1)
    world.upsert(podgroup("g", 1), gated_pod("g-0"), podgroup("h", 1), gated_pod("h-0", "h", cpu=0))
    assert sorted(ungated_pods(world.decision())) == ["g-0", "h-0"]
    world.upsert(pod("h-0", "h", gated_only_by_queue=True, cpu=0))
    assert world.schedule() == {"h-0": "a"}


def test_queue_gate_is_reported_if_the_feature_is_off() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), gated_pod("g-0"))
    assert ungated_pods(world.decision()) == []
    assert world.fit_message("g") == f"g-0: held back by the scheduling gate {QUEUE_GATE}"


def test_minimum_of_a_gang_is_reserved_for_queue_gates_only() -> None:
    """The reservation excludes pods with gates that other controllers remove."""
    for gates, kept in ((("x.io/a",), 0), (CUSTOM_GATE, 2000)):
        world = SchedulerWorld()
        world.upsert(node("a"), podgroup("g", 2, resources={"cpu": 2}))
        world.upsert(*(pod(f"g-{i}", "g", gates=gates) for i in range(2)))
        world.schedule()
        assert world.cluster.queues.by_name["default"].reserved.get("cpu", 0) == kept
