"""A gang is scheduled up to its minimum, or not at all."""

import msgspec
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.meta import Condition
from batholith.scheduler.state.core_types import PodStatus


def test_gang_that_fits_is_scheduled_in_one_cycle() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a"), node("b"), podgroup("g", 3), *(pod(f"g-{i}", "g", cpu=4) for i in range(3))
    )
    assert set(world.schedule()) == {"g-0", "g-1", "g-2"}


def test_gang_that_does_not_fit_allocates_nothing_and_has_a_fit_error() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a", cpu=14), podgroup("g", 4), *(pod(f"j-t-{i}", "g", cpu=5) for i in range(4))
    )
    before = world.cluster.node_matrix.idle.copy()
    assert world.schedule() == {}
    assert (world.cluster.node_matrix.idle == before).all()
    message = "0/1 nodes are unavailable: 1 Insufficient cpu (requested 5, free 4)."
    assert world.fit_message("g") == message


def test_rejected_gang_does_not_block_smaller_ones() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a"), podgroup("big", 3, created="2025-01-01T00:00:00Z"), podgroup("small", 1)
    )
    world.upsert(*(pod(f"big-{i}", "big", cpu=4) for i in range(3)), pod("small-0", "small", cpu=4))
    assert set(world.schedule()) == {"small-0"}


def test_pods_beyond_the_minimum_are_scheduled_if_they_fit() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a"), podgroup("g", 2), *(pod(f"j-t-{i}", "g", role="t", cpu=2) for i in range(6))
    )
    assert set(world.schedule()) == {"j-t-0", "j-t-1", "j-t-2", "j-t-3"}
    diagnosis = world.cluster.gangs["ns/g"].diagnosis
    assert diagnosis is not None and diagnosis.fit_errors["t"].task_name == "j-t-4"


def test_pods_beyond_the_minimum_of_two_gangs_alternate() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), podgroup("h", 1))
    world.upsert(*(pod(f"{name}-{i}", name, cpu=2) for i in range(4) for name in ("g", "h")))
    assert set(world.schedule()) == {"g-0", "g-1", "h-0", "h-1"}


def test_gang_needs_the_minimum_of_each_role() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 3, roles={"ps": 1, "worker": 2}))
    world.upsert(pod("j-ps-0", "g", role="ps", cpu=8), pod("j-worker-0", "g", role="worker"))
    world.upsert(pod("j-worker-1", "g", role="worker"), pod("j-worker-2", "g", role="worker"))
    assert world.schedule() == {}
    world.upsert(node("b"))
    assert {"j-ps-0", "j-worker-0", "j-worker-1"} <= set(world.schedule())


def test_best_effort_pods_count_for_the_minimum() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", pods=1), podgroup("g", 2), pod("g-0", "g"), pod("g-1", "g", cpu=0))
    assert world.schedule() == {}
    world.upsert(node("a", pods=2))
    assert set(world.schedule()) == {"g-0", "g-1"}


def test_gang_of_best_effort_pods_is_scheduled_up_to_its_minimum_or_not_at_all() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a", pods=1), podgroup("g", 2), *(pod(f"g-{i}", "g", cpu=0) for i in range(3))
    )
    assert world.schedule() == {}
    assert "1 Insufficient pods (requested 1, free 0)" in world.fit_message("g")
    world.upsert(node("a", pods=2))
    assert set(world.schedule()) == {"g-0", "g-1"}


def test_gang_is_not_scheduled_before_its_members_exist() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 2), pod("g-0", "g"))
    assert world.schedule() == {}
    assert world.fit_message("g") == "1 of the 2 pods that the group needs exist"
    world.upsert(pod("g-1", "g"))
    assert set(world.schedule()) == {"g-0", "g-1"}


def test_gated_pod_is_not_scheduled_before_its_gate_is_removed() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g", gates=("x.io/a",)))
    assert world.schedule() == {}
    assert world.fit_message("g") == "g-0: held back by the scheduling gate x.io/a"
    world.upsert(pod("g-0", "g"))
    assert world.schedule() == {"g-0": "a"}


def test_pod_without_a_podgroup_is_not_scheduled() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), pod("p"))
    assert world.schedule() == {}
    world.upsert(podgroup("g", 1), pod("p", "g"))
    assert world.schedule() == {"p": "a"}


def test_pods_of_the_default_scheduler_are_scheduled_one_by_one() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), *(pod(f"p{i}", scheduler="default-scheduler", cpu=5) for i in range(2)))
    assert world.schedule() == {"p0": "a"}


def test_placement_is_assumed_until_it_is_confirmed_or_forgotten() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a", cpu=1), podgroup("g", 1), pod("g-0", "g"), podgroup("h", 1), pod("h-0", "h")
    )
    assert world.schedule() == {"g-0": "a"}
    world.upsert(pod("g-0", "g"))  # an update from before the binding
    assert world.schedule() == {}
    world.cluster.forget("uid-g-0")
    assert len(world.schedule()) == 1
    world.upsert(pod("g-0", "g", node_name="a"))
    assert world.cluster.gangs["ns/g"].counts.allocated == 1


def test_finished_pod_frees_resources_for_the_next_gang() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a"), podgroup("g", 1), pod("g-0", "g", cpu=8), podgroup("h", 1), pod("h-0", "h")
    )
    assert set(world.schedule()) == {"g-0"}
    world.upsert(pod("g-0", "g", cpu=8, node_name="a", phase="Running"))
    assert world.schedule() == {}
    world.upsert(pod("g-0", "g", cpu=8, node_name="a", phase="Succeeded"))
    assert world.schedule() == {"h-0": "a"}


def test_running_pod_does_not_wake_rejected_gangs() -> None:
    """Else all of them would be tried again for each pod that starts."""
    world = SchedulerWorld()
    world.upsert(
        node("a"), podgroup("g", 1), pod("g-0", "g", cpu=8), podgroup("h", 1), pod("h-0", "h")
    )
    assert world.schedule() == {"g-0": "a"}
    world.upsert(
        pod("g-0", "g", cpu=8, node_name="a"),
        pod("g-0", "g", cpu=8, node_name="a", phase="Running"),
    )
    world.upsert(pod("g-0", "g", cpu=8, node_name="a", phase="Running", terminating=True))
    assert world.decision().retries == ()
    world.remove(pod("g-0", "g", cpu=8, node_name="a", phase="Running"))
    decision = world.decision()
    assert [(each.name, each.node) for each in decision.placements] == [("h-0", "a")]
    assert dict(decision.retries) == {"nodes": 1}


def test_pod_bound_to_another_node_is_allocated_there() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), node("b"), podgroup("g", 1), pod("g-0", "g", cpu=8))
    assert world.schedule() == {"g-0": "a"}
    world.upsert(pod("g-0", "g", cpu=8, node_name="b"), podgroup("h", 1), pod("h-0", "h", cpu=8))
    assert world.schedule() == {"h-0": "a"}


def test_rejected_gang_is_tried_again_with_a_lower_minimum() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 2), pod("g-0", "g", cpu=5), pod("g-1", "g", cpu=5))
    assert world.schedule() == {}
    world.upsert(podgroup("g", 1))
    assert len(world.schedule()) == 1


def test_gang_without_its_podgroup_has_no_diagnosis() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g", cpu=9))
    assert world.schedule() == {}
    world.remove(podgroup("g", 1))
    assert world.schedule() == {}
    assert world.cluster.gangs["ns/g"].diagnosis is None
    world.remove(pod("g-0", "g", cpu=9))
    world.schedule()
    assert world.cluster.gangs == {}


def test_gang_is_not_tried_again_for_a_new_pod_condition() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g", cpu=9))
    world.schedule()
    gang = world.cluster.gangs["ns/g"]
    version = gang.version
    updated = pod("g-0", "g", cpu=9)
    condition = Condition(type="PodScheduled", status="False", reason="R", message="m")
    status = PodStatus(phase="Pending", conditions=(condition,))
    world.upsert(msgspec.structs.replace(updated, status=status))
    assert gang.version == version
    assert gang.tasks["uid-g-0"].reported_condition == ("R", "m")


@pytest.mark.parametrize(
    ("given", "priority"),
    [("7", 7), ("-7", -7), ("--7", 3), ("\u00b2", 3), ("", 3), ("99999999999", 3), ("x", 3)],
)
def test_priority_annotation_is_used_if_it_is_a_number(given: str, priority: int) -> None:
    world = SchedulerWorld()
    plain = pod("j-t-\u00b2", "g", priority=3)
    annotations = plain.metadata.annotations | {"volcano.sh/task-priority": given}
    meta = msgspec.structs.replace(plain.metadata, annotations=annotations)
    world.upsert(podgroup("g", 1), msgspec.structs.replace(plain, metadata=meta))
    task = world.cluster.task(plain.metadata.uid)
    assert task is not None and task.priority == priority
